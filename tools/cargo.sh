#!/usr/bin/env bash
# Check or test the native engine's crate, or say in one line that this machine cannot.
# Usage: tools/cargo.sh check|test [PYTHON]
set -euo pipefail
[[ -z ${2:-} ]] || export PYO3_PYTHON="$PWD/$2" # whose library the tests link
cd "$(dirname "$0")/../native"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
left_out() { printf 'native engine: %s left out: %s\n' "$1" "$2"; exit 0; }

command -v cargo >/dev/null && command -v rustc >/dev/null || left_out "$1" "cargo is not installed (rust $wanted or later)"
found=$(rustc --version | cut -d ' ' -f 2)
printf '%s\n%s\n' "$wanted" "$found" | sort -V -C || left_out "$1" "rust $found is older than $wanted"
case $1 in
  check)
    if cargo fmt --version >/dev/null 2>&1; then cargo fmt --check; else echo "native engine: cargo fmt left out: rustfmt is not installed"; fi
    if cargo clippy --version >/dev/null 2>&1; then
      cargo clippy --quiet --locked --all-targets -- -D warnings
    else
      echo "native engine: cargo clippy left out: clippy is not installed"
    fi
    ;;
  test)
    # Tests are a program, which needs Python's symbols; the module gets them from the process that loads it.
    cargo test --quiet --locked --no-default-features
    ;;
  *)
    echo "usage: tools/cargo.sh check|test" >&2
    exit 2
    ;;
esac
