#!/usr/bin/env bash
# Check or test the native engine's crate, or say in one line that this machine cannot.
# Usage: tools/cargo.sh check|test|test-long [PYTHON]
#        tools/cargo.sh able     say nothing: exit code 0 where it can be built and is wanted here, else 1
set -euo pipefail
[[ -z ${2:-} ]] || export PYO3_PYTHON="$PWD/$2" # whose library the tests link
cd "$(dirname "$0")/../native"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
what=${1:-}
left_out() {
  [[ $what != able ]] || exit 1
  printf 'native engine: %s left out: %s\n' "$what" "$1"
  exit 0
}
# Its checks are a part of what CI promises; elsewhere a toolchain without them is somebody's own.
needed() {
  local tool=$1 component=$2
  ! cargo "$tool" --version >/dev/null 2>&1 || return 0
  if [[ -n ${CI:-} ]]; then
    echo "native engine: cargo $tool cannot run: $component is not installed; in CI it has to be (rustup component add $component)" >&2
    exit 1
  fi
  echo "native engine: cargo $tool left out: $component is not installed"
  return 1
}

[[ ${HIVE_NATIVE_BUILD:-auto} != off ]] || left_out "HIVE_NATIVE_BUILD=off"
command -v cargo >/dev/null && command -v rustc >/dev/null || left_out "cargo is not installed (rust $wanted or later)"
found=$(rustc --version | cut -d ' ' -f 2)
printf '%s\n%s\n' "$wanted" "$found" | sort -V -C || left_out "rust $found is older than $wanted"
case $what in
  able) ;;
  check)
    if needed fmt rustfmt; then
      cargo fmt --check
      cargo fmt --check --manifest-path fuzz/Cargo.toml
    fi
    if needed clippy clippy; then
      # Once as it is shipped, and once with all that only tests and fuzzers have.
      cargo clippy --quiet --locked --lib -- -D warnings
      cargo clippy --quiet --locked --all-targets --features faults,fuzzing -- -D warnings
    fi
    ;;
  test)
    # Tests are a program, which needs Python's symbols; the module gets them from the process that loads it.
    cargo test --quiet --locked --no-default-features --lib
    ;;
  test-long)
    cargo test --quiet --locked --no-default-features --lib -- --ignored
    ;;
  *)
    echo "usage: tools/cargo.sh check|test|test-long|able [PYTHON]" >&2
    exit 2
    ;;
esac
