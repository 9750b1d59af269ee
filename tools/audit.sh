#!/usr/bin/env bash
# Ask whether a dependency has a known vulnerability, a licence that is not allowed, or another source than the registry.
# Usage: tools/audit.sh PYTHON
#
#   pip-audit    what runs as root (requirements.lock), against the vulnerabilities that PyPI knows
#   cargo-deny   the native engine (native/deny.toml), against RustSec's advisories
#
# Both databases are on the network. Where one cannot be asked nobody knows the answer, and this fails and says so;
# licences, duplicates and sources need no database and are checked all the same.
# The tools are those on the path, else they are installed in build/audit-tools.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=$1
tools=$PWD/build/audit-tools
said=$(mktemp)
trap 'rm -f "$said"' EXIT
PATH=$PATH:$tools/python/bin:$tools/bin
failed=()

say() { printf 'audit: %s\n' "$*"; }
# The name of a check, the sign in its output that it could not be asked, and the command.
check() {
  local name=$1 unreachable=$2
  shift 2
  say "$name"
  "$@" >"$said" 2>&1 && { tail -n 3 "$said"; return; }
  if grep -qE "$unreachable" "$said"; then
    grep -E "$unreachable" "$said" | tail -n 3
    say "$name: NOT AUDITED: the database cannot be reached from here"
  else
    cat "$said"
    say "$name: FAILED"
  fi
  failed+=("$name")
}

if ! command -v pip-audit >/dev/null; then
  say "installing pip-audit"
  "$python" -m venv "$tools/python" && "$tools/python/bin/pip" install --quiet --disable-pip-version-check 'pip-audit>=2.9' ||
    failed+=("installing pip-audit")
fi
# --strict: a package that the database does not know is a failure; without it, it would count as sound.
! command -v pip-audit >/dev/null ||
  check "vulnerabilities of what runs as root" 'not found on PyPI|ConnectionError|Max retries|ServiceError' \
    pip-audit --requirement requirements.lock --require-hashes --disable-pip --strict --progress-spinner off

if ! command -v cargo >/dev/null; then
  say "native engine: cargo-deny left out: cargo is not installed"
  failed+=("native engine")
else
  if ! command -v cargo-deny >/dev/null; then
    say "installing cargo-deny, some minutes"
    cargo install --quiet --locked --root "$tools" cargo-deny@^0.20 || failed+=("installing cargo-deny")
  fi
  if command -v cargo-deny >/dev/null; then
    deny=(cargo-deny --manifest-path native/Cargo.toml --locked --log-level warn check)
    check "licences, duplicates and sources of the native engine" 'failed to (download|fetch)' "${deny[@]}" licenses bans sources
    check "advisories about the native engine" 'failed to fetch advisory database' "${deny[@]}" advisories
  fi
fi
((!${#failed[@]})) || { say "failed: $(printf '%s; ' "${failed[@]}")"; exit 1; }
