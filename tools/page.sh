#!/usr/bin/env bash
# Tests of the status page in headless Chromium, and of metrics and alert rules by promtool. `make test-page` calls it.
# Chromium is installed as root (300 MB); of the package `prometheus` only promtool is taken, into out/promtool.
set -euo pipefail
python=$1
apt() { apt-get -qq -o DPkg::Lock::Timeout=120 "$@"; }

if ! command -v chromium-headless-shell >/dev/null && ! command -v chromium >/dev/null; then
  [[ $EUID -eq 0 ]] || { echo "page: no Chromium here: as root, apt-get install chromium-headless-shell" >&2; exit 1; }
  apt update
  DEBIAN_FRONTEND=noninteractive apt install --no-install-recommends chromium-headless-shell fonts-dejavu-core
fi
if ! command -v promtool >/dev/null && [[ ! -x out/promtool/usr/bin/promtool ]]; then
  mkdir -p out/promtool
  (cd out/promtool && apt download prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb)
fi
exec "$python" -m pytest tests/browser
