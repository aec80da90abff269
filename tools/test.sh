#!/bin/sh
# All tests: the unit tests, then on practice hosts those that measure time (the load client's and the others in two
# processes: hardly anything of them computes), then the rest, many side by side (they mostly wait; each worker has a
# practice host of its own). With arguments: just `pytest ARGUMENTS`.
#
#   tools/test.sh PYTHON [ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
python=$1
shift

run() { "$python" -m pytest "$@"; }

if [ "$(id -u)" != 0 ]; then
    # Practice hosts need root; no file of root's may stay in the checkout.
    run() {
        sudo env PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=/tmp/deployer-hypothesis \
            "$python" -m pytest -p no:cacheprovider "$@"
    }
fi

if [ $# -gt 0 ]; then
    run "$@"
    exit
fi
failed=
tools/unit.sh "$python" || failed="$failed  [unit tests]"
run tests/host tests/e2e -n 2 --dist loadgroup -m "alone and not sglang" || failed="$failed  [tests that measure time]"
[ -z "$failed" ] || echo "failed so far:$failed"
run tests/host tests/e2e -n 6 --dist worksteal -m "not alone and not sglang" || failed=yes
[ -z "$failed" ]
