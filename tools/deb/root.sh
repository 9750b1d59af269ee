#!/usr/bin/env bash
# Make a Debian root with systemd and the shells that complete, in which the package can be tried. Does nothing where it is.
# Usage: tools/deb/root.sh SUITE DIRECTORY     as root; MIRROR=... names another mirror than this machine's
set -euo pipefail
. "$(dirname "$0")/../debian_mirror.sh"
suite=$1
root=$2
fail() { printf 'deb: %s\n' "$*" >&2; exit 1; }

[[ ! -e $root/.whole ]] || exit 0
[[ $EUID -eq 0 ]] || fail "a root of $suite needs root"
command -v mmdebstrap >/dev/null || fail "mmdebstrap makes the root of $suite (Debian: apt-get install mmdebstrap)"
from=$(mirror)
[[ -n $from ]] || fail "apt knows no mirror of Debian here (apt-get update); or pass MIRROR=http://..."
mkdir -p "$(dirname "$root")"
rm -rf "$root"
log=$root.log
# A mirror that stands still has a Release file that is out of date by its own word. Name spaces end with us, and their mounts.
unshare --mount-proc --pid --fork --kill-child --propagation private \
  mmdebstrap --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
  --include=bash-completion,dbus,fish,iproute2,procps,python3,systemd,systemd-sysv,zsh "$suite" "$root" "$from" >"$log" 2>&1 ||
  { tail -n 5 "$log" >&2; fail "no root of $suite from $from; the log is $log"; }
touch "$root/.whole"
