#!/usr/bin/env bash
# Bring in what the project needs: Debian packages (as root), a virtual environment, Python packages.
# Usage: tools/setup.sh PYTHON VENV
#        tools/setup.sh --package-only VENV     install this package again, which builds what changed of its Rust
#
# The native engine is built with the cargo that is here, in release mode. None is installed: Debian's is years older
# than the crate's dependencies allow, and a toolchain of its own is more than a set-up should bring. Without one the
# pure-Python engine does everything, slower; `make wheel` elsewhere gives a package that needs no cargo.
set -euo pipefail
python=$1
venv=$2

say() { printf 'setup: %s\n' "$*"; }
install() { # pip shows nothing of a build that went well, so what it says of the native engine is taken from its log
  local log=$venv/setup.log installed
  installed=$(realpath -s "$venv")/bin/python
  if ! "$venv/bin/python" -m pip install -v --disable-pip-version-check "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    say "pip failed; its whole log is $log" >&2
    exit 1
  fi
  if ! grep -q 'hive-qos: without the native engine' "$log"; then
    say "native engine $(cd / && "$installed" -c 'import hive_qos_native as n; print(n.__version__)')"
  elif [[ ! -t 1 ]]; then # setup.py has told the terminal where there is one
    grep -o 'hive-qos: without the native engine.*' "$log"
  fi
}

if [[ $python == --package-only ]]; then
  install --no-deps -e .
  exit 0
fi
# The demo's trainers run as an ordinary user: an interpreter below /root would be out of their reach.
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
reachable() { as_nobody sh -c 'exec "$0" -c "import sys"' "$1" 2>/dev/null; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [[ $EUID -eq 0 ]] && ! as_nobody test -r "$PWD/Makefile"; then
  say "ordinary users cannot read $PWD, and the demo and the lab's tests run programs from it as one;" >&2
  say "put the checkout below /opt or /srv, or make its folders readable for all" >&2
  exit 1
fi
real=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
if [[ $EUID -eq 0 ]] && ! reachable "$real"; then
  if [[ -x /usr/bin/python3 ]] && recent /usr/bin/python3; then
    say "ordinary users cannot run $python; using /usr/bin/python3 instead"
    python=/usr/bin/python3
  else
    say "ordinary users cannot run $real: the demo will say so; pass PYTHON=... for another" >&2
  fi
fi
if ! recent "$python"; then
  say "$python is older than Python 3.11; pass PYTHON=... for another" >&2
  exit 1
fi

missing=()
command -v ip >/dev/null || missing+=(iproute2)
command -v rsync >/dev/null || missing+=(rsync)
command -v systemd-analyze >/dev/null || missing+=(systemd)
command -v groff >/dev/null || missing+=(groff-base)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
# The crate's own tests are a program that links Python's shared library; only Debian's comes without it.
if command -v cargo >/dev/null && [[ $real == /usr/bin/* || $python == /usr/bin/* ]] && ! "$python" -c '
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY")).exists())'
then
  missing+=(libpython3-dev)
fi
# A test gives the daemon a wall clock of its own, by a library of thirty lines of C.
[[ $EUID -ne 0 ]] || command -v cc >/dev/null || missing+=(gcc libc6-dev)
if ((${#missing[@]})); then
  if [[ $EUID -ne 0 ]]; then
    say "missing: ${missing[*]}; install them first: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  say "installing Debian packages: ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# A torch that is already installed for this Python is reused: the download is the longest part of the set-up.
site=()
if "$python" -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13))' 2>/dev/null
then
  say "using the torch that is installed for $python"
  site=(--system-site-packages)
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # none, or one whose making was interrupted
  say "making the virtual environment $venv"
  "$python" -m venv --clear "${site[@]}" "$venv"
fi
# The crate is built while pip brings in the packages: each takes a minute. With what setup.py says to cargo, so that pip
# then finds it done, or waits for it; whatever is wrong with it pip's own turn tells.
crate=
if command -v cargo >/dev/null && [[ ${HIVE_NATIVE_BUILD:-auto} != off && -z ${HIVE_NATIVE_TARGET:-} ]]; then
  PYO3_NO_PYTHON=1 CARGO_TARGET_DIR=native/target \
    cargo build --quiet --release --locked --lib --manifest-path native/Cargo.toml >/dev/null 2>&1 &
  crate=$!
  trap 'kill $crate 2>/dev/null || true' EXIT
fi
say "installing Python packages (the first time downloads torch, several GB)"
install -e '.[torch,demo,dev]'
[[ -z $crate ]] || wait $crate || true
say "done"
