#!/usr/bin/env bash
# Try the package in Debian machines under systemd, and look at it with lintian. `make test-deb` calls it, as root.
# Usage: tools/deb/test.sh PYTHON     PYTHON is that of this project's environment; SUITES=trixie for one machine
set -euo pipefail
missing=()
for program in lintian mmdebstrap; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if ((${#missing[@]})); then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
exec "$1" -m pytest tests/deb
