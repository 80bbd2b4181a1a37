#!/usr/bin/env bash
# The Python tests over an extension built with AddressSanitizer and UBSan, in a virtual environment of its own that sees
# the packages of the one that is active: dev/pytest_asan.sh tests/parity/test_stores.py -x
# Leaks are looked for, too, but only those whose stack goes through the engine count: interpreter, NumPy and torch leave
# memory behind at exit, on purpose.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build/pytest-asan
mkdir -p "$environment/logs"
rm -f "$environment"/logs/*
if [ ! -e "$environment/venv" ]; then
  python3 -m venv "$environment/venv"
  site=$(echo "$environment"/venv/lib/python3*/site-packages)
  python3 -c 'import sys; print(*[p for p in sys.path if p.endswith("site-packages")], sep="\n")' > "$site/active.pth"
fi
python="$PWD/$environment/venv/bin/python"
"$python" -m pip install --quiet --no-build-isolation --no-deps --force-reinstall \
  --config-settings=cmake.define.ZARRFEED_SANITIZE=address,undefined \
  --config-settings=cmake.build-type=RelWithDebInfo .

# The interpreter is not instrumented, so the runtime library has to be there before it; and libstdc++, whose exceptions
# it watches. Both sanitizers end the process at the first finding.
compiler=${CXX:-g++}
export LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
export ASAN_OPTIONS="detect_leaks=1:log_path=$PWD/$environment/logs/report:allocator_may_return_null=1"
export LSAN_OPTIONS=exitcode=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=86
# UBSan of GCC knows no log_path beside ASan. So standard error is left where it is, and kept: were it captured for the
# test under way, its reports would be lost with the process. One process, as the one that writes them.
status=0
"$python" -m pytest -p no:cacheprovider --numprocesses=0 --capture=sys -o timeout=1200 "$@" 2> "$environment/logs/stderr" || status=$?
cat "$environment/logs/stderr" >&2

"$python" dev/sanitizer_report.py "$environment"/logs || status=1
exit "$status"
