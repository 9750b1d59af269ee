#!/usr/bin/env bash
# Run what the tests know of torch on the oldest one that is supported. It lies in a folder of its own before the
# environment's packages: several GB.
# Usage: tools/oldest_torch.sh PYTHON [--selection]     the second for what differs most between torch's versions
set -euo pipefail
python=$1
tests=(tests/unit/integrations tests/loopback/integrations)
if [[ ${2-} == --selection ]]; then
  tests=(tests/unit/integrations tests/loopback/integrations/test_torch_{collectives,overloads,hooks,suite,setups}.py)
fi
place=$PWD/out/oldest-torch
oldest=$("$python" -c 'import re, tomllib; given = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"]; print(re.search(r">=([\d.]+)", given[0])[1])')
if ! ls -d "$place/torch-$oldest".*.dist-info >/dev/null 2>&1; then
  "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$place" "torch==$oldest.*"
fi
PYTHONPATH=$place "$python" -c 'import torch; print("torch", torch.__version__)'
PYTHONPATH=$place exec "$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
