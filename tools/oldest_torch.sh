#!/usr/bin/env bash
# Run what the tests know of torch on the oldest one that is supported. It lies in a folder of its own before the
# environment's packages, and takes CUDA's libraries from there where they fit: 1 GB instead of five.
# Usage: tools/oldest_torch.sh PYTHON [--selection]     the second for what differs most between torch's versions
set -euo pipefail
python=$1
tests=(tests/unit/integrations tests/loopback/integrations)
if [[ ${2-} == --selection ]]; then
  tests=(tests/loopback/integrations/test_torch_{overloads,hooks,suite,setups}.py)
fi
place=$PWD/out/oldest-torch
oldest=$("$python" -c 'import re, tomllib; given = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"]; print(re.search(r">=([\d.]+)", given[0])[1])')
install() { "$python" -m pip install --quiet --disable-pip-version-check --no-compile --upgrade --target "$place" "$@"; }
version() { PYTHONPATH=$place "$python" -c 'import torch; print("torch", torch.__version__)'; }
if [[ $(version 2>/dev/null) != "torch $oldest."* ]]; then
  rm -rf "$place"
  install --no-deps "torch==$oldest.*" nvidia-curand # which newer ones load no more
  libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
  if [[ -d $libraries ]]; then cp --recursive --symbolic-link --no-clobber "$libraries" "$place/"; fi
  version &>/dev/null || install "torch==$oldest.*"
fi
version
PYTHONPATH=$place exec "$python" -m tools.suite -q "${tests[@]}"
