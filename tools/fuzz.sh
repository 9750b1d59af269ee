#!/usr/bin/env bash
# Feed the native engine's parsers and its matching with what a fuzzer makes up, or say in one line why not.
# Usage: FUZZ_S=60 tools/fuzz.sh PYTHON [TARGET...]
#
# What cargo-fuzz does, with the cargo that is here: coverage and AddressSanitizer are unstable options, which a stable
# compiler takes with RUSTC_BOOTSTRAP. What is found new stays in out/fuzz/TARGET, what breaks a target too; the seeds
# are in native/fuzz/seeds, and `cargo test` runs all of them (native/src/testing/fuzz.rs).
set -euo pipefail
seconds=${FUZZ_S:-60}
[[ -n ${1:-} ]] || { echo "usage: tools/fuzz.sh PYTHON [TARGET...]" >&2; exit 2; }
PYO3_PYTHON=$(realpath -s "$1")
shift
root=$(realpath "$(dirname "$0")/..")
cd "$root/native/fuzz"
left_out() { printf 'native engine: fuzzing left out: %s\n' "$1"; exit 0; }

command -v cargo >/dev/null && command -v rustc >/dev/null || left_out "cargo is not installed"
command -v c++ >/dev/null || left_out "libFuzzer needs a C++ compiler"
host=$(rustc -vV | sed -n 's/^host: //p')
compgen -G "$(rustc --print sysroot)/lib/rustlib/$host/lib/librustc*_rt.asan.a" >/dev/null ||
  left_out "this Rust has no AddressSanitizer for $host"

export PYO3_PYTHON RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
# With --target the flags are for the targets alone and not for the build scripts.
cargo build --quiet --locked --release --target "$host" --target-dir ../target/fuzz

# Python keeps what it allocates at its start, and a terabyte may be asked for and refused; its own allocator would hide a use after free of what it lends.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc
if (($#)); then targets=("$@"); else targets=(header stream_readers matching connection); fi
broken=()
for target in "${targets[@]}"; do
  found="$root/out/fuzz/$target"
  mkdir -p "$found"
  echo "fuzzing $target for $seconds s"
  "../target/fuzz/$host/release/$target" -max_total_time="$seconds" -max_len=4608 -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$found/broke-" "$found" "seeds/$target" 2>"$found.log" ||
    { tail -n 60 "$found.log" >&2; broken+=("$target"); continue; }
  grep -E '^stat::number_of_executed_units|cov: ' "$found.log" | tail -n 2
done
((!${#broken[@]})) || { echo "fuzzing: broken: ${broken[*]}" >&2; exit 1; }
