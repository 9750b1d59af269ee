#!/usr/bin/env bash
# Run what the tests know of torch on the oldest one that is supported. It lies in a folder of its own before the
# environment's packages: several GB. Usage: tools/oldest_torch.sh PYTHON
set -euo pipefail
place=$PWD/out/oldest-torch
oldest=$("$1" -c 'import re, tomllib; given = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"]; print(re.search(r">=([\d.]+)", given[0])[1])')
if ! ls -d "$place/torch-$oldest".*.dist-info >/dev/null 2>&1; then
  "$1" -m pip install --quiet --disable-pip-version-check --upgrade --target "$place" "torch==$oldest.*"
fi
PYTHONPATH=$place "$1" -c 'import torch; print("torch", torch.__version__)'
PYTHONPATH=$place exec "$1" -m pytest -q tests/unit/integrations tests/loopback/integrations
