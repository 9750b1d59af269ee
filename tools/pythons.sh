#!/usr/bin/env bash
# Try the package on other Pythons than this environment's: installing it, its tests, and a recording made here.
# Usage: tools/pythons.sh PYTHON WHEELS [WHICH...]     by default trixie (Python 3.13) and forky (3.14)
#
# WHICH is a suite of Debian, whose own python3 is tried in a root that is made for it (as root, by mmdebstrap, from the
# mirror that this machine installs from), or an interpreter of this machine: `python3.12`, or a path.
# PYTHON is that of this project's environment, WHEELS the folder that has the wheel (`make wheel`).
#
#   PYTHONS_DIR   where roots, environments and downloads are kept; nothing else is written (default out/pythons)
#   MIRROR        of Debian, instead of the one that apt uses here
#   TORCH=1       torch and the tests that need it, too: several GB for each Python
#   TESTS         for pytest, instead of the unit and loopback tests and, as root, three files of the lab's
#
# What runs in a root has mounts and processes of its own, in name spaces that end with this script, however it ends:
# nothing stays mounted.
set -euo pipefail
say() { printf 'pythons: %s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }

if [[ ${1:-} == --in-root ]]; then # in those name spaces: ROOT PLACE DOWNLOADS COMMAND...
  root=$2 place=$3 downloads=$4
  shift 4
  mount --bind "$root" "$root" # a mount point, as `ip -n` wants of what is at /
  mkdir -p "$root"/{hive-qos,downloads}
  mount --bind "$place" "$root/hive-qos"
  mount --bind "$downloads" "$root/downloads"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  exec chroot "$root" "$@"
fi

here=$(realpath "$0")
python=$(realpath -s "$1")
wheel=$(ls -t "$2"/hive_qos-*manylinux*_"$(uname -m)".whl 2>/dev/null | head -n 1) || true
[[ -n $wheel ]] || fail "there is no wheel in $2; make wheel builds one"
wheel=$(realpath "$wheel")
shift 2
(($#)) || set -- trixie forky
cd "$(dirname "$0")/.."
. tools/debian_mirror.sh
folder=$(realpath -m "${PYTHONS_DIR:-out/pythons}")
mkdir -p "$folder"/{downloads,logs,roots,tmp}
apart() { # with us these end, and with them all their mounts and processes
  TMPDIR=$folder/tmp setpriv --pdeathsig KILL \
    unshare --mount-proc --pid --fork --kill-child --propagation private "$@"
}

# What each Python gets: the sources without what git ignores, the wheel, and what this environment's decides.
prepare() {
  local place=$1
  rm -rf "$place"
  mkdir -p "$place"/{source,wheel}
  git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create | tar -x -C "$place/source"
  cp "$wheel" "$place/wheel"
  cp -r "$folder/recorded" "$place"
  chmod 755 "$place"
}

is_suite() { # or this ends
  [[ $1 =~ ^[a-z]+$ ]] || fail "$1 is no interpreter on this machine and no suite of Debian"
  [[ $EUID -eq 0 ]] || fail "$1: a root of its own needs root; or name interpreters of this machine"
  command -v mmdebstrap >/dev/null || fail "$1: mmdebstrap makes its root (Debian: apt-get install mmdebstrap)"
  [[ -n $(mirror) ]] || fail "$1: apt knows no mirror of Debian here (apt-get update); or pass MIRROR=http://..."
}

make_root() {
  local suite=$1 root=$folder/roots/$1 log=$folder/logs/$1-root.log from
  from=$(mirror)
  if [[ ! -e $root/.whole ]]; then
    say "$suite: making its root from $from"
    rm -rf "$root"
    # A mirror that stands still has a Release file that is out of date by its own word.
    apart mmdebstrap --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
      --include=python3,python3-venv,ca-certificates,gcc,iproute2,iptables,libc6-dev,make,procps,rsync,systemd \
      "$suite" "$root" "$from" >"$log" 2>&1 || {
        grep '^E: ' "$log" >&2 || tail -n 5 "$log" >&2
        fail "$suite: no root from $from (not reachable, or without this suite); MIRROR=... names another; log: $log"
      }
    touch "$root/.whole"
  fi
  # Where this machine reaches the registry by its own names and certificates, so does the root.
  local file
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [[ ! -e $file ]] || cp -L "$file" "$root$file"
  done
}

for which in "$@"; do
  type -P "$which" >/dev/null || is_suite "$which"
done
rm -rf "$folder/recorded"
say "recording decisions with $("$python" --version)"
"$python" -m tools.simulate tools/simulate/receiver.toml --record "$folder/recorded" --control leased --seconds 10 \
  >"$folder/logs/recorded.log" 2>&1 ||
  { cat "$folder/logs/recorded.log" >&2; exit 1; }

failed=()
for which in "$@"; do
  name=$(tr -c 'A-Za-z0-9.\n' _ <<<"${which#/}")
  place=$folder/$name log=$folder/logs/$name.log
  settings=(PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1
    TORCH="${TORCH:-}" TESTS="${TESTS:-}")
  # Of the settings of pip those that say where packages come from.
  for variable in PIP_CERT PIP_INDEX_URL PIP_DEFAULT_TIMEOUT https_proxy http_proxy no_proxy; do
    [[ -z ${!variable:-} ]] || settings+=("$variable=${!variable}")
  done
  if interpreter=$(type -P "$which"); then
    prepare "$place"
    run=(env -i HOME="$place" PIP_CACHE_DIR="$folder/downloads" "${settings[@]}"
      bash tools/pythons_try.sh "$interpreter" "$place")
  else
    make_root "$which"
    prepare "$place"
    run=(apart bash "$here" --in-root "$folder/roots/$which" "$place" "$folder/downloads"
      /usr/bin/env -i HOME=/root PIP_CACHE_DIR=/downloads "${settings[@]}"
      bash /hive-qos/source/tools/pythons_try.sh python3 /hive-qos)
  fi
  say "$which: trying; log: $log"
  "${run[@]}" </dev/null 2>&1 | tee "$log" || failed+=("$which")
done
((!${#failed[@]})) || fail "FAILED: ${failed[*]}"
say "all good: $*"
