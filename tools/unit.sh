#!/bin/sh
# The unit tests, in two processes side by side. (Their results would cost xdist a third of the time again: thousands of tests of
# a millisecond or two.) With arguments: just `pytest ARGUMENTS`, in one process.
#
#   tools/unit.sh PYTHON [ARGUMENT...]
set -u
cd "$(dirname "$0")/.."
python=$1
shift

# Compiled tests are kept whatever the environment says: compiling them takes as long as a third of the tests.
unset PYTHONDONTWRITEBYTECODE

if [ $# -gt 0 ]; then
    exec "$python" -m pytest tests/unit -q "$@"
fi

# About half of the work. The other process takes whatever is not named here, so that nothing can be left out.
some="bench deploy rehearsal cli units inspect report"
# What programs print and what is logged is of no interest to them, and catching it costs each test something.
plain="--capture=sys -p no:logging"
told=$(mktemp)
trap 'rm -f "$told"' EXIT
# shellcheck disable=SC2046,SC2086 # words
"$python" -m pytest -q $plain -p no:cacheprovider $(printf 'tests/unit/%s ' $some) >"$told" 2>&1 &
# shellcheck disable=SC2046,SC2086
"$python" -m pytest -q $plain tests/unit $(printf ' --ignore tests/unit/%s' $some)
second=$?
wait $!
first=$?
cat "$told"
[ "$first" = 0 ] && [ "$second" = 0 ]
