#!/usr/bin/env bash
# Build the Debian package: one file for Debian 12 and 13, which apt installs without a network.
# Usage: tools/deb/build.sh PYTHON DIRECTORY [ARCHITECTURE]     PYTHON is 3.11 or later, with venv
#
# Debian's own Python packages are too old for the broker (aioquic, cryptography, numpy in 12), so those of
# requirements.lock come with it, as wheels by their hashes. They lie in a virtual environment whose interpreter is a link
# to Debian's: Debian's security updates reach it. What wheels for two Pythons have differs only in compiled modules, whose
# names tell the Python; so one folder serves both, and the package outlives the upgrade of Debian 12 to 13.
set -euo pipefail
cd "$(dirname "$0")/../.."
directory=$2
architecture=${3:-$(dpkg --print-architecture)}
pythons=(3.11 3.13) # and no other: packaging/debian/control depends on one of them
declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
machine=${machines[$architecture]:?no wheels are known for $architecture}
say() { printf 'deb: %s\n' "$*"; }

wheel=$(ls -t "$directory"/hive_qos-*manylinux*_"$machine".whl 2>/dev/null | head -n 1) || true
[[ -n $wheel ]] || { say "there is no wheel for $machine in $directory; make wheel builds one" >&2; exit 1; }
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
chmod 755 "$work"
say "making an environment of requirements.lock"
"$1" -m venv "$work/environment"
python=$work/environment/bin/python
"$python" -m pip install -q --disable-pip-version-check --require-hashes --requirement requirements.lock
bash tools/deb/tree.sh "$python" "$root"

say "fetching packages of requirements.lock for Python ${pythons[*]} on $machine"
fetch() { # PYTHON-VERSION WHAT...
  local platforms=(--platform "manylinux_2_28_$machine" --platform "manylinux2014_$machine")
  "$python" -m pip install -q --disable-pip-version-check --no-compile --no-deps --only-binary=:all: "${platforms[@]}" \
    --python-version "$1" --implementation cp --target "$work/$1" "${@:2}"
}
site=$root/usr/lib/hive-qos/lib/python3/site-packages
mkdir -p "$site" "$root/usr/lib/hive-qos/bin" "$root/usr/bin"
for version in "${pythons[@]}"; do
  fetch "$version" --require-hashes --requirement requirements.lock
  rm -rf "$work/$version/bin" # programs of packages; nobody uses them here
  fetch "$version" "$wheel"
  # Needed to build, or by developers of the packages; or about how pip installed them.
  rm -rf "$work/$version"/{bin,setuptools*,_distutils_hack,distutils-precedence.pth,numpy/distutils,numpy/f2py}
  find "$work/$version" \( -name tests -o -name include \) -type d -prune -exec rm -rf {} +
  find "$work/$version" \( -name RECORD -o -name REQUESTED -o -name INSTALLER -o -name direct_url.json \) -delete
  # What may differ: compiled modules by their names, and how each wheel was built.
  differ=$(diff -rq "$site" "$work/$version" | grep -vE '^Only in|\.dist-info/|numpy/__config__\.py ') || true
  [[ -z $differ ]] || { say "wheels differ between Pythons: $differ" >&2; exit 1; }
  cp -r "$work/$version/." "$site"
  ln -s python3 "$root/usr/lib/hive-qos/lib/python$version"
done
find "$site" -type f -exec chmod 644 {} +
find "$root" -type d -exec chmod 755 {} +

home=$root/usr/lib/hive-qos
ln -s /usr/bin/python3 "$home/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$home/pyvenv.cfg"
# -I: what runs as root takes no module from the folder or the variables of who calls it.
printf '#!/usr/lib/hive-qos/bin/python -I\nfrom broker.cli import main\n\nmain()\n' >"$home/bin/hive-qos"
chmod 755 "$home/bin/hive-qos"
ln -s ../lib/hive-qos/bin/hive-qos "$root/usr/bin/hive-qos"

packages=$("$python" - "$site" <<'PYTHON'
import importlib.metadata, sys
for one in sorted(importlib.metadata.distributions(path=[sys.argv[1]]), key=lambda one: one.name.lower()):
    licence = one.metadata["License-Expression"] or one.metadata["License"] or ""
    classified = [text.rpartition(" :: ")[2] for text in one.metadata.get_all("Classifier", []) if text.startswith("License")]
    print(f" {one.name} {one.version}:", licence if 0 < len(licence) < 60 else ", ".join(classified) or "see there")
PYTHON
)
P=$packages awk '$0 == "@PACKAGES@" { print ENVIRON["P"]; next } 1' packaging/debian/copyright \
  >"$root/usr/share/doc/hive-qos/copyright"
chmod 644 "$root/usr/share/doc/hive-qos/copyright"
sed -i "s/@ARCHITECTURE@/$architecture/; s/@KIB@/$(du -sk --exclude=DEBIAN "$root" | cut -f1)/" "$root/DEBIAN/control"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$directory"
dpkg-deb --build --root-owner-group "$root" "$directory" | sed 's/^dpkg-deb: /deb: /'
