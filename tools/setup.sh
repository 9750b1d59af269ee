#!/usr/bin/env bash
# Bring in what the project needs: Debian packages (as root), a virtual environment, Python packages.
# Usage: tools/setup.sh PYTHON VENV
set -euo pipefail
python=$1
venv=$2

say() { printf 'setup: %s\n' "$*"; }
# The demo's trainers run as an ordinary user: an interpreter below /root would be out of their reach.
reachable() { setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'exec "$0" -c "import sys"' "$1" 2>/dev/null; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

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
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
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
if [[ ! -x $venv/bin/python ]]; then
  say "making the virtual environment $venv"
  "$python" -m venv "${site[@]}" "$venv"
fi
say "installing Python packages (the first time downloads torch, several GB)"
"$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[torch,demo,dev]'
say "done"
