#!/usr/bin/env bash
# Run what needs an NVIDIA GPU, on a fresh machine that has one, in less than eight minutes.
#
#   dev/gpu.sh tests       tests/gpu: page-locked memory, prefetch to the device, workers, forks, training steps
#   dev/gpu.sh feed        benchmarks.gpu: how much of a training step's time the data costs
#   dev/gpu.sh scaling     benchmarks.cores: rates on 1, 4 and 16 threads
#   dev/gpu.sh tests -- tests/gpu/test_prefetch.py -k csr      arguments for pytest, or for the benchmark
#
#   --out FOLDER           where results go; else $OUT, else gpu-results/
#   --wheels FOLDER        where wheels lie, of dev/wheels.py --gather; else wheelhouse/, if it is there
#   --data FOLDER          where benchmarks write their stores, at most 2 GB; else build/gpu/data/
#   --python PYTHON        an interpreter that has torch; else the first of python3, python and python3.12 that has
#   --limit SECONDS        for all of it, installation included; else 460
#   --without-gpu          a rehearsal without a GPU: whatever needs none
#
# The machine has a Python with torch, built for CUDA, and 16 cores. It needs no network where there are wheels, and no
# compiler. Where there are none, zarrfeed is built here, and the rest comes from PyPI. torch stays as it is: a virtual
# environment in build/gpu/ sees the packages of the Python that has it, and is used again by the next call.
#
# Exits with 0 if all is well, with 0 and a sentence where there is no GPU, with 1 if something failed, with 2 for wrong
# arguments. Results are written as they come, so what is there when time runs out is kept.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
root=$PWD

usage() {
  echo "usage: dev/gpu.sh tests|feed|scaling [--out FOLDER] [--wheels FOLDER] [--data FOLDER] [--python PYTHON]" >&2
  echo "       [--limit SECONDS] [--without-gpu] [-- ARGUMENT...]" >&2
  exit 2
}

# Print a path of the caller's as an absolute one.
of_caller() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$caller/$1" ;; esac; }

case ${1:-} in
  tests | feed | scaling) part=$1; shift ;;
  *) usage ;;
esac
out=$root/gpu-results wheels='' data=$root/build/gpu/data python='' limit=460 without_gpu=no
if [ -n "${OUT:-}" ]; then out=$(of_caller "$OUT"); fi
while [ $# -gt 0 ]; do
  case $1 in
    --out | --wheels | --data | --python | --limit) [ $# -gt 1 ] || usage ;;&
    --out) out=$(of_caller "$2"); shift 2 ;;
    --wheels) wheels=$(of_caller "$2"); shift 2 ;;
    --data) data=$(of_caller "$2"); shift 2 ;;
    --python) case $2 in */*) python=$(of_caller "$2") ;; *) python=$2 ;; esac; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --without-gpu) without_gpu=yes; shift ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[[ $limit =~ ^[0-9]+$ ]] || usage

say() { echo "gpu.sh: $*"; }
fail() { say "$*" >&2; exit 1; }

# Succeeds if the system shows an NVIDIA GPU, whatever torch makes of it.
has_gpu() {
  local node
  for node in /dev/nvidia[0-9]* /dev/dxg; do
    if [ -e "$node" ]; then return 0; fi
  done
  [[ $(nvidia-smi -L 2>/dev/null || true) == *GPU* ]]
}

if [ "$without_gpu" = no ] && ! has_gpu; then
  say "there is no NVIDIA GPU here, so $part is skipped; --without-gpu runs what needs none"
  exit 0
fi

# Succeeds if an interpreter has torch, without importing it.
has_torch() { "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; }

for candidate in python3 python python3.12; do
  if [ -z "$python" ] && has_torch "$candidate"; then python=$(command -v "$candidate"); fi
done
[ -n "$python" ] || fail "neither python3, python nor python3.12 has torch: name one that has with --python"
has_torch "$python" || fail "--python: $python has no torch"
if [ -z "$wheels" ] && [ -d wheelhouse ]; then wheels=$root/wheelhouse; fi
if [ -n "$wheels" ]; then
  compgen -G "$wheels/zarrfeed-*.whl" >/dev/null || fail "--wheels: $wheels has no wheel of zarrfeed; dev/wheels.py --gather makes one"
fi

# --- the environment ------------------------------------------------------------------------------------------------

unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
venv=$root/build/gpu/venv
made_of=$("$python" -c 'import sys; print(sys.executable, sys.version)'; cksum dev/gpu-requirements.txt; [ -z "$wheels" ] || ls -l "$wheels")
if [ -e "$venv/made-of" ] && [ "$(cat "$venv/made-of")" = "$made_of" ]; then
  say "using $venv again"
else
  say "installing with $python, from ${wheels:-PyPI and these sources}"
  rm -rf "$venv"
  mkdir -p build/gpu
  if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --without-pip "$venv"
    pip=("$python" -m pip --python "$venv/bin/python")
  else
    "$python" -m venv "$venv"
    pip=("$venv/bin/python" -m pip)
  fi
  # The Python that has torch may be a virtual environment itself, which --system-site-packages would not show.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -c 'if True:
    import importlib.util, os, sys
    torch = importlib.util.find_spec("torch").origin
    folders = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    folders.append(os.path.dirname(os.path.dirname(torch)))
    print(*dict.fromkeys(f"import site; site.addsitedir({folder!r})" for folder in folders), sep="\n")' >"$site/torch.pth"
  install=(install --quiet --no-compile --disable-pip-version-check)
  if [ -n "$wheels" ]; then
    "${pip[@]}" --isolated "${install[@]}" --no-index --find-links "$wheels" --pre zarrfeed -r dev/gpu-requirements.txt ||
      fail "$wheels lacks a wheel for $("$python" --version); make it anew with dev/wheels.py --gather"
  else
    "${pip[@]}" "${install[@]}" "$root" -r dev/gpu-requirements.txt ||
      fail "cannot build and install from PyPI; without a network, bring wheels of dev/wheels.py --gather"
  fi
  printf '%s\n' "$made_of" >"$venv/made-of"
fi

if [ "$without_gpu" = no ]; then
  (cd / && "$venv/bin/python" -c 'if True:
    import sys, torch
    if not torch.cuda.is_available():
        sys.exit(f"gpu.sh: torch {torch.__version__}, built for CUDA {torch.version.cuda}, cannot use the GPU of this machine")')
fi

# --- the part -------------------------------------------------------------------------------------------------------

options=(--out "$out" --data "$data" --limit $((limit > SECONDS ? limit - SECONDS : 1)))
if [ "$without_gpu" = yes ]; then options+=(--without-gpu); fi
exec "$venv/bin/python" dev/gpu_parts.py "$part" "${options[@]}" -- "$@"
