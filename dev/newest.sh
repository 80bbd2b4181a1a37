#!/usr/bin/env bash
# Run the tests with the newest releases of everything, on the newest Python, without constraints.txt.
#
#   dev/newest.sh                          the newest of python3.14, python3.13 and python3.12 that is found
#   dev/newest.sh --python python3.12      another one
#   dev/newest.sh --venv DIR               keep the environment there, and use it again (torch with CUDA takes 6 GB)
#   dev/newest.sh --without-torch          only what needs no torch: tests/support/without_torch.py
#   dev/newest.sh --without-torch --built DIR   the same with the engine that another build of these sources compiled
#   dev/newest.sh -- tests/unit/plan/order/test_order.py   arguments for pytest
#
# Exits with 0 if all tests pass, and with 77 if there is no such Python.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

python='' venv='' with_torch=yes built=''
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2; shift 2 ;;
    --venv) mkdir -p "$2"; venv=$(cd "$2" && pwd); shift 2 ;;
    --without-torch) with_torch=no; shift ;;
    --built) built=$2; shift 2 ;;
    --) shift; break ;;
    *) echo "usage: dev/newest.sh [--python PYTHON] [--venv DIR] [--without-torch] [--built DIR] [-- PYTEST_ARGUMENT...]" >&2; exit 2 ;;
  esac
done

# Print an interpreter of a version: from PATH, where one that does not start counts for nothing, or from pyenv.
find_python() {
  local candidate
  for candidate in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if [ -x "$candidate" ] && "$candidate" -c 'import venv' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
}

for version in 3.14 3.13 3.12; do
  [ -n "$python" ] || python=$(find_python "$version")
done
if [ -z "$python" ]; then
  echo "newest.sh: neither python3.14, python3.13 nor python3.12 is on PATH or in pyenv: skipped"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 711 "$work"  # tests that give up root's rights must be able to reach their files
venv=${venv:-$work/venv}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
unset PYTHONPATH PYTHONHOME

if [ "$with_torch" = no ]; then
  pip install --upgrade zarr numpy obstore xxhash
  # Python and zarr-python are new here: the engine is not made fast, its sources are compiled together, and GCC
  # does not collect garbage below 1 GiB.
  pip wheel --no-deps --wheel-dir "$work/wheel" -C cmake.build-type=None \
    -C "cmake.define.CMAKE_CXX_FLAGS=-O0 --param=ggc-min-heapsize=1048576" \
    -C cmake.define.CMAKE_UNITY_BUILD=ON -C cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE=12 \
    -C cmake.define.ZARRFEED_BUILT="$built" .
  pip install --force-reinstall --no-deps "$work"/wheel/*.whl
  cd "$work"
  python "$root/tests/support/without_torch.py"
else
  pip install --upgrade --upgrade-strategy eager ".[test]"
  python -c 'from importlib.metadata import version; print(*(f"{p} {version(p)}" for p in ("zarr", "numpy", "torch")))'
  pytest -p no:cacheprovider "$@"
fi
