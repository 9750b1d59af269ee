#!/usr/bin/env bash
# Run the native engine's tests with what finds mistakes in `unsafe` code, or with panics in all its places; says in one
# line why where that cannot be.
# Usage: tools/sanitize.sh address|thread|faults PYTHON [PYTEST ARGUMENTS]
#
#   address   AddressSanitizer over the crate's tests and over the engine tests that lend Python's memory
#   thread    ThreadSanitizer over the crate's tests; needs the compiler's own sources (rust-src)
#   faults    an ordinary build in which tests may ask for panics (feature `faults`)
#
# RUSTC may name another compiler than the one on the path.
#
# The sanitizers are unstable options, which a stable compiler takes with RUSTC_BOOTSTRAP. AddressSanitizer's runtime is
# loaded before Python, so that it knows Python's memory too: whoever reads a buffer after it was given back and freed is
# caught. A real error ends the process with a report and status 99.
set -euo pipefail
what=${1:-}
[[ $what == address || $what == thread || $what == faults ]] && [[ -n ${2:-} ]] ||
  { echo "usage: tools/sanitize.sh address|thread|faults PYTHON [PYTEST ARGUMENTS]" >&2; exit 2; }
python=$(realpath -s "$2")
shift 2
root=$(realpath "$(dirname "$0")/..")
cd "$root/native"
left_out() { printf 'native engine: %s run left out: %s\n' "$what" "$1"; exit 0; }

rustc=${RUSTC:-rustc}
command -v cargo >/dev/null && command -v "$rustc" >/dev/null || left_out "cargo is not installed"
host=$("$rustc" -vV | sed -n 's/^host: //p')
sysroot=$("$rustc" --print sysroot)
has() { compgen -G "$sysroot/lib/rustlib/$host/lib/librustc*_rt.$1.a" >/dev/null || left_out "this Rust has no $1 for $host"; }
built="$root/native/target/$what"
# With the line numbers that a report names, which tests are otherwise built without.
export PYO3_PYTHON=$python RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only
cargo_for() { cargo "$1" --quiet --locked --target "$host" --target-dir "$built" "${@:2}"; }

# Have Python import this build rather than the one that is installed.
module() {
  mkdir -p "$built/module"
  cp "$built/$host/debug/libhive_qos_native.so" "$built/module/hive_qos_native.abi3.so"
}
engine_tests() { # what is loaded first, then what pytest gets
  local preload=$1
  shift
  cd "$root"
  # The safe path: whatever lies in the working directory comes after this build.
  LD_PRELOAD=$preload PYTHONSAFEPATH=1 PYTHONPATH="$built/module:$root" HIVE_TEST_ENGINES=all PYTHONMALLOC=malloc \
    "$python" -m pytest -p no:cacheprovider -o "pythonpath=$built/module" -q "$@"
}

case $what in
  address)
    has asan
    command -v cc >/dev/null || left_out "its runtime has to be linked, and there is no cc"
    mkdir -p "$built"
    runtime=$built/runtime.so # not libasan.so: for that name it would take itself for another one
    cp "$sysroot/lib/rustlib/$host/lib/"librustc*_rt.asan.a "$built/libasan.a"
    # What a program needs before its own start has no place in a library.
    ar d "$built/libasan.a" $(ar t "$built/libasan.a" | grep preinit)
    cc -shared -o "$runtime" -Wl,--whole-archive "$built/libasan.a" -Wl,--no-whole-archive \
      -lstdc++ -lpthread -ldl -lrt -lm
    export RUSTFLAGS="-Zsanitizer=address"
    export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:exitcode=99
    cargo_for test --no-default-features
    cargo_for rustc --lib -- -Zexternal-clangrt # the runtime is loaded before, not a part of the module
    module
    (($#)) || set -- tests/loopback/native_engine/test_engine_native.py \
      tests/loopback/native_engine/test_engine_native_lent.py tests/loopback/native_engine/test_native_executor.py
    rm -f "$built"/report.*
    ASAN_OPTIONS+=:log_path=$built/report # pytest would keep to itself what the process says at its end
    engine_tests "$runtime" "$@" || { status=$?; cat "$built"/report.* >&2 2>/dev/null || true; exit "$status"; }
    ;;
  thread)
    has tsan
    [[ -d $sysroot/lib/rustlib/src/rust/library ]] || left_out "its standard library has to be built as well (rustup component add rust-src)"
    export RUSTFLAGS="-Zsanitizer=thread" TSAN_OPTIONS=exitcode=99:allocator_may_return_null=1 # a terabyte is asked for
    cargo_for test --lib -Zbuild-std --no-default-features
    ;;
  faults)
    cargo_for build --lib --features faults
    module
    engine_tests "" tests/loopback/native_engine/test_engine_native_faults.py "$@"
    ;;
esac
