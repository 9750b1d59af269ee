#!/usr/bin/env bash
# What tools/pythons.sh does with one Python. Every step is taken, whatever became of those before it.
# Usage: tools/pythons_try.sh PYTHON PLACE     PLACE has source/, wheel/ and recorded/; environments are made in it
set -euo pipefail
python=$1
place=$2
cd "$place/source"
export PATH="/usr/sbin:/usr/bin:/sbin:/bin" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
wheel=$(echo "$place"/wheel/*.whl)
version=$("$python" -c 'import platform; print(platform.python_version())')
trap 'exit 130' INT TERM # as the first process of its name space it would not hear them
failed=()
step() { # NAME COMMAND...
  local name=$1
  shift
  printf '\n== Python %s: %s\n' "$version" "$name"
  # Not in a condition: there bash would go on after what fails inside.
  set +e
  (set -e; "$@")
  local code=$?
  set -e
  ((code == 0)) || failed+=("$name")
}
engine='import transport.engine as e; print(e.find_engine("auto").name)'

the_wheel() { # with two ranks, and neither torch nor compiler
  bash tools/wheel_check.sh "$python" "$wheel" native
}

from_the_sources() { # twice, without cargo; what is uninstalled leaves nothing
  "$python" -m venv "$place/plain"
  cd "$place" # not where the sources are
  local bin=$place/plain/bin said
  said=$("$bin/pip" install -v "$place/source" 2>&1) || { tail -n 30 <<<"$said"; return 1; }
  grep -o 'hive-qos: without the native engine.*' <<<"$said"
  "$bin/pip" install -q "$place/source"
  [[ $("$bin/python" -c "$engine") == aioquic ]]
  "$bin/hive-qos" --version
  "$bin/python" -m hive_qos --version
  "$bin/pip" install -q "$wheel" --force-reinstall --no-deps
  [[ $("$bin/python" -c "$engine") == native ]]
  "$bin/pip" uninstall -q -y hive-qos
  local left
  left=$(find plain -path '*hive*' -o -path '*/site-packages/transport*' -o -path '*/site-packages/broker*')
  [[ -z $left ]] || { echo "uninstalled, and left: $left"; return 1; }
}

every_module_without_a_warning() {
  cd "$place"
  "$place/tests/bin/python" -W error - <<'PYTHON'
import importlib.util, pkgutil
torch = importlib.util.find_spec("torch") is not None
packages = ["hive_qos", "transport", "broker", "shaping", *(["integrations"] if torch else [])]
count = 0
for package in map(importlib.import_module, packages):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(count, "modules imported, no warning")
PYTHON
}

the_recording() {
  local file count=0
  cd "$place"
  for file in $(find "$place/recorded" -name '*.jsonl' | sort); do
    "$place/tests/bin/hive-qos" replay "$file" >"$place/replayed" 2>&1 || { cat "$place/replayed"; return 1; }
    count=$((count + 1))
  done
  ((count > 0))
  echo "$count recordings replayed to the same bytes"
}

tests() {
  local chosen left_out=()
  read -ra chosen <<<"${TESTS:-tests/unit tests/loopback}"
  if [[ -z ${TESTS:-} && $EUID -eq 0 ]]; then
    chosen+=(tests/lab/kernel/test_shaping_kernel.py tests/lab/daemon/test_broker_daemon.py tests/lab/daemon/test_engine_marks.py)
  elif [[ -z ${TESTS:-} ]]; then
    echo "the lab's tests left out: they need root"
  fi
  if [[ -z ${TORCH:-} ]]; then
    mapfile -t left_out < <(grep -rlE '^(import|from) torch' tests --include='test_*.py')
    left_out+=(tests/loopback/integrations)
    echo "left out, for they need torch (TORCH=1): ${left_out[*]}"
  fi
  "$place/tests/bin/python" -m pytest -q --tb=short -p no:cacheprovider "${left_out[@]/#/--ignore=}" "${chosen[@]}"
}

step "the wheel" the_wheel
step "from the sources" from_the_sources
"$python" -m venv "$place/tests"
step "what the tests need" "$place/tests/bin/pip" install -q "$wheel[dev,demo${TORCH:+,torch}]"
step "every module" every_module_without_a_warning
step "a recording of another Python" the_recording
step "tests" tests
if ((${#failed[@]})); then
  printf '\nPython %s: FAILED: %s\n' "$version" "$(IFS=,; echo "${failed[*]}")"
  exit 1
fi
printf '\nPython %s: all good\n' "$version"
