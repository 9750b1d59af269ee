# Sourced by scripts that make Debian roots: where packages come from.

mirror() { # MIRROR, or the first of Debian's that apt knows; nothing where it knows none
  [[ -z ${MIRROR:-} ]] || { echo "$MIRROR"; return; }
  local known
  known=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null) || true
  sed -n 's/^Debian //p;T;q' <<<"$known" # a pipe that is closed early would end the script now and then
}
