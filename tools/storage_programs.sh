#!/usr/bin/env bash
# Run the adapter's tests against Syncthing and rclone themselves, in the lab (as root). Debian has both.
# Usage: tools/storage_programs.sh PYTHON
set -euo pipefail
missing=()
for program in syncthing rclone; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if ((${#missing[@]})); then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
exec "$1" -m pytest -q -m storage_programs tests/lab/storage_programs
