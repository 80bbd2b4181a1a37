"""Build the fuzz targets with libFuzzer, make their seeds, and run each for a time. Needs clang.

python dev/fuzz.py --seconds 600                  all targets, 600 seconds of processor time each
python dev/fuzz.py --seconds 600 --jobs 4         the same, four of them at once
python dev/fuzz.py --seconds 60 --target codecs   one of them

Inputs that reached new code are kept in ``build/fuzz/corpus``, so that the next run goes on from there; an input that
broke something is kept in ``build/fuzz/findings``, and ``build/fuzz/cpp/fuzz/codecs_fuzz FILE`` runs it again. Exits
with 1 if there was any.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
TARGETS = sorted(path.name.removesuffix("_fuzz.cc") for path in (ROOT / "cpp" / "fuzz").rglob("*_fuzz.cc"))
# Longer inputs say nothing new about formats whose blocks are this short.
MAX_INPUT_BYTES = 8192
# One that takes this long hangs, whatever else the machine does.
TIMEOUT_S = 300


@dataclass
class Result:
    """What became of one target."""

    executions: int = 0
    cpu_s: float = 0
    edges: int = 0
    failed: bool = False


def build(targets: list[str]) -> None:
    """Configure, and compile the targets."""
    subprocess.run(["cmake", "--preset", "fuzz"], cwd=ROOT, check=True)
    programs = [f"{target}_fuzz" for target in targets]
    subprocess.run(["cmake", "--build", "--preset", "fuzz", "--target", *programs], cwd=ROOT, check=True)


def run_round(target: str, seconds: float, result: Result) -> None:
    """Run a target for `seconds` of wall clock time, and add what it did to `result`."""
    executable = BUILD / "cpp" / "fuzz" / f"{target}_fuzz"
    corpus, seeds, findings = BUILD / "corpus" / target, BUILD / "seeds" / target, BUILD / "findings"
    for directory in (corpus, seeds, findings):
        directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([executable, f"--write-seeds={seeds}"], check=True)
    # Stores are written anew for every input, and left behind by a process that ends in a finding.
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as stores,
        tempfile.TemporaryFile() as log,
    ):
        process = subprocess.Popen(
            [
                executable,
                f"-max_total_time={max(1, round(seconds))}",
                f"-timeout={TIMEOUT_S}",
                f"-max_len={MAX_INPUT_BYTES}",
                *("-rss_limit_mb=2048", "-malloc_limit_mb=512", "-print_final_stats=1"),
                f"-artifact_prefix={findings}/{target}-",
                *(corpus, seeds),
            ],
            env={"UBSAN_OPTIONS": "print_stacktrace=1", **os.environ, "TMPDIR": stores},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read().decode(errors="replace")
    result.cpu_s += usage.ru_utime + usage.ru_stime
    result.executions += sum(int(n) for n in re.findall(r"number_of_executed_units: (\d+)", text))
    result.edges = max([result.edges, *(int(n) for n in re.findall(r" cov: (\d+) ", text))])
    result.failed = process.returncode != 0
    if result.failed:
        print(text[-20_000:], file=sys.stderr)


def run(target: str, seconds: float) -> Result:
    """Run a target until it has used `seconds` of processor time or found something, and print what became of it."""
    result = Result()
    while result.cpu_s < seconds and not result.failed:
        run_round(target, seconds - result.cpu_s, result)
    outcome = "FINDING, see build/fuzz/findings" if result.failed else "nothing found"
    print(f"{target:12} {result.cpu_s / 60:12.1f} {result.executions:12} {result.edges:8}  {outcome}", flush=True)
    return result


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="processor time of each target")
    parser.add_argument("--target", action="append", choices=TARGETS, help="may be given several times; all if not")
    parser.add_argument("--jobs", type=int, default=1, help="targets that run at once")
    arguments = parser.parse_args()
    targets = arguments.target or TARGETS
    build(targets)
    print(f"{'target':12} {'CPU minutes':>12} {'executions':>12} {'edges':>8}  result", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = [pool.submit(run, target, arguments.seconds) for target in targets]
    return 1 if any(result.result().failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
