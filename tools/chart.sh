#!/usr/bin/env bash
# Render and lint the Helm chart with Helm's own engine, and hold it against Kubernetes' schemas.
# Usage: tools/chart.sh PYTHON
#
# Both come as Python packages: no Helm is among Debian's. 0.4 GB, kept apart in out/chart; nothing else needs them.
set -euo pipefail
python=$1
folder=out/chart
wanted="helm-python-sdk==0.2.2 kubernetes-validate==1.37.0"

if [[ $(cat "$folder/.done" 2>/dev/null) != "$wanted" ]]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  # shellcheck disable=SC2086
  "$python" -m pip install -q --disable-pip-version-check --only-binary :all: --target "$folder" $wanted
  echo "$wanted" > "$folder/.done"
fi
PYTHONPATH=$folder exec "$python" -m pytest tests/chart
