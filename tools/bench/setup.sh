#!/usr/bin/env bash
# What the benchmarks need beyond the project's own set-up: iperf3, as a Debian package, where this is root.
set -euo pipefail
command -v iperf3 >/dev/null && exit 0
if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
  echo "bench: iperf3 is not installed (Debian: apt-get install iperf3); the rest is measured without it"
  exit 0
fi
echo "bench: installing the Debian package iperf3"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iperf3 >/dev/null
