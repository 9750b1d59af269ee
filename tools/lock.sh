#!/usr/bin/env bash
# Write requirements.lock anew: the versions and hashes of all that the broker, which runs as root, is installed from.
# Usage: tools/lock.sh PYTHON     the oldest Python that is supported, so that every later one finds its files, too
#
# Review the difference before it is committed: each new version is code that will run as root.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pip-tools
"$work/venv/bin/pip-compile" --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --build-deps-for wheel \
  --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate \
  --output-file "$work/lock" pyproject.toml
{
  echo "# What the broker is installed from, which runs as root; with hashes. Made by tools/lock.sh, used by:"
  echo "#   pip install --require-hashes --requirement requirements.lock"
  echo "#   pip install --no-deps --no-build-isolation ."
  grep -v '^$' "$work/lock"
} >requirements.lock
