#!/usr/bin/env bash
# Build the container image hive-qos:VERSION from Debian's packages, the locked Python packages and a wheel of ours.
# Usage: tools/image.sh PYTHON DIRECTORY-OF-THE-WHEEL
#
# No registry of images is asked: mmdebstrap makes the tree from a Debian mirror, pip fills it by requirements.lock,
# buildah packs it. Result: out/image/hive-qos.tar (an OCI archive, `podman load`) and the image in buildah's storage.
set -euo pipefail
python=$1
wheels=$2
suite=trixie
python_version=3.13
image=out/image
root=$image/rootfs

say() { printf 'image: %s\n' "$*"; }
[[ $EUID -eq 0 ]] || { say "left out: needs root for the tree" >&2; exit 1; }
for tool in mmdebstrap buildah; do
  command -v "$tool" >/dev/null || { say "left out: no $tool; apt-get install $tool" >&2; exit 1; }
done
shopt -s nullglob
machine=$(uname -m)
version=$("$python" -c 'import hive_qos; print(hive_qos.__version__)')
found=("$wheels"/hive_qos-"$version"-*manylinux*_"$machine".whl "$wheels"/hive_qos-"$version"-*-any.whl)
[[ ${#found[@]} -gt 0 ]] || { say "no wheel of hive-qos $version in $wheels; run make wheel" >&2; exit 1; }

rm -rf "$root"
mkdir -p "$image"
say "Debian $suite"
mmdebstrap --quiet --variant=essential --include=python3,tzdata --format=directory \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$root"

say "Python packages for $python_version"
packages=/opt/hive-qos/lib
platforms=()
for glibc in 2_34 2_28 2_17; do platforms+=(--platform "manylinux_${glibc}_$machine"); done
platforms+=(--platform "manylinux2014_$machine")
install() {
  "$python" -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --no-compile \
    --python-version "$python_version" --implementation cp "${platforms[@]}" --target "$root$packages" "$@"
}
install --require-hashes -r requirements.lock
rm -rf "$root$packages/bin" # programs of packages: none is used
install --no-index "${found[0]}"
mkdir -p "$root/opt/hive-qos/bin" "$root/etc/hive-qos" "$root/run/hive-qos" "$root/var/lib/hive-qos"
rm -rf "$root$packages/bin"
cat > "$root/opt/hive-qos/bin/hive-qos" <<PROGRAM
#!/usr/bin/python3 -P
import sys
sys.path.insert(1, "$packages")
from broker.cli import main
sys.exit(main())
PROGRAM
chmod 755 "$root/opt/hive-qos/bin/hive-qos"
# The daemon starts helpers with this interpreter: they need the packages, too.
site=$(chroot "$root" /usr/bin/python3 -c 'import site; print(site.getsitepackages()[0])')
mkdir -p "$root$site"
echo "$packages" > "$root$site/hive-qos.pth"
# Nobody gets more rights in here (no-new-privileges says so, too).
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} +
# The root file system is read-only at run time: compile now, or every start would again.
chroot "$root" /usr/bin/python3 -m compileall -q "$packages"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/var/log/*
chroot "$root" /opt/hive-qos/bin/hive-qos --version

say "packing"
buildah build --quiet --layers=false --format docker --isolation chroot --tag "hive-qos:$version" \
  --file packaging/container/Containerfile "$image" >/dev/null
rm -f "$image/hive-qos.tar"
buildah push --quiet "hive-qos:$version" "docker-archive:$image/hive-qos.tar:hive-qos:$version"
say "hive-qos:$version in $image/hive-qos.tar, $(du -sh "$root" | cut -f1) unpacked, $(du -sh "$image/hive-qos.tar" | cut -f1) packed"
