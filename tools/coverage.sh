#!/usr/bin/env bash
# Run tests and report which lines and branches of the packages they reach, programs that they start included.
# Usage: tools/coverage.sh PYTHON [PYTEST ARGUMENT...]     by default the unit and loopback tests
#
# Leaves out/coverage/report.txt and out/coverage/html. Two kinds of programs are not counted: those that run as a user
# who may not write there, and those that are killed. Measuring takes time, which a test of real time may miss: its
# failure fails this, too, but the report is written first.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=$1
shift
(($#)) || set -- tests/unit tests/loopback
rm -rf out/coverage
mkdir -p out/coverage
"$python" -m coverage run -m pytest "$@"
code=$?
"$python" -m coverage combine --quiet &&
  "$python" -m coverage html --quiet &&
  "$python" -m coverage report >out/coverage/report.txt || exit 1
tail -n 1 out/coverage/report.txt
echo "coverage: out/coverage/report.txt and out/coverage/html/index.html; pytest ended with $code"
exit $code
