#!/usr/bin/env bash
# Run the tests of etcd as a register against Debian's server. Where none is here, it is unpacked below out/: its
# package would start a service. Usage: tools/etcd.sh PYTHON
set -euo pipefail
if ! command -v etcd >/dev/null; then
  place=$PWD/out/etcd
  if [[ ! -x $place/usr/bin/etcd ]]; then
    mkdir -p "$place"
    (cd "$place" && apt-get download -qq etcd-server && dpkg -x etcd-server_*.deb . && rm etcd-server_*.deb)
  fi
  PATH=$place/usr/bin:$PATH
fi
exec "$1" -m pytest -q -m etcd_server tests/loopback/integrations/test_volatile_etcd.py
