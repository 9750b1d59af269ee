#!/usr/bin/env bash
# Install a wheel into a fresh environment from which cargo cannot be reached, and have two ranks use its engine.
# Usage: tools/wheel_check.sh PYTHON WHEEL ENGINE     ENGINE is native or aioquic: what has to be taken there
set -euo pipefail
python=$(realpath -s "$(command -v "$1")")
wheel=$(realpath "$2")
engine=$3
examples=$(realpath "$(dirname "$0")/../examples")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place" # not in the repository, whose own modules would be imported
export PATH=/usr/bin:/bin HIVE_BROKER=off
if command -v cargo >/dev/null; then echo "wheel check: cargo is in $PATH; that proves nothing" >&2; exit 1; fi

"$python" -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check "$wheel"
found=$(venv/bin/python -c 'import transport.engine as e; print(e.find_engine("auto").name)')
[[ $found == "$engine" ]] || { echo "wheel check: $(basename "$wheel") takes $found, not $engine" >&2; exit 1; }
for rank in 0 1; do
  timeout 60 venv/bin/python "$examples/allreduce.py" --rank "$rank" --world-size 2 --meet "$place/meet" >"$rank.log" 2>&1 &
  ranks[rank]=$!
done
for rank in 0 1; do
  wait "${ranks[rank]}" || { cat "$rank.log" >&2; exit 1; }
  grep -q "rank $rank: \[0.5, 1.5, 2.5, 3.5\]" "$rank.log" || { cat "$rank.log" >&2; exit 1; }
done
echo "wheel check: two ranks of $(basename "$wheel") reduced four tensors through the $engine engine"
