"""Run the tests or benchmarks of dev/gpu.sh within their time, and write what they find to one folder.

python dev/gpu_parts.py tests --out FOLDER --data FOLDER --limit SECONDS [--without-gpu] [-- ARGUMENT...]

FOLDER has, after each step and so whenever the run is cut off:

    page.md        what ran, and what came of it; the machine
    tests.json     for each test: outcome, seconds, the error; or the JSON files and plots of a benchmark
    machine.json   GPU, driver, torch, processor, cores, NUMA nodes, versions
    PART.log       everything that was printed

Test files run in processes of their own, the most telling first, so that a crash or a hang in one of them costs no
more than its share of the time. Needs the standard library alone; torch is asked in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "gpu"

#: The files of tests/gpu, the most telling first.
ORDER = ("test_prefetch.py", "test_pinned_memory.py", "test_workers.py", "test_forks.py", "test_steps.py")

#: Seconds for one file of tests, of which most are the start of CUDA and what torch.compile compiles.
FILE_LIMIT_S = 150
#: Seconds for one test: a copy that never ends is a failure of that test.
TEST_LIMIT_S = 60
#: Seconds for what a benchmark has begun when its limit, after which it begins no part, is over.
LAST_S = 60
#: Seconds between the signal that asks a process to end and the one that ends it.
GRACE_S = 15

#: The plugins that pytest.ini names. Those of other packages on the machine are left alone: their warnings are errors.
PLUGINS = ("xdist.plugin", "pytest_timeout")

MODULES = {"feed": "benchmarks.gpu", "scaling": "benchmarks.cores"}

#: A script that tells of torch and its device; it may take long, or crash.
_ASK_TORCH = """
import json, os, torch
found = {"torch": torch.__version__, "torch built for CUDA": torch.version.cuda, "GPUs": torch.cuda.device_count()}
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    found |= {"GPU": p.name, "multiprocessors": p.multi_processor_count, "cuDNN": torch.backends.cudnn.version()}
    found["GPU memory, GiB"] = round(p.total_memory / 2**30)
print(json.dumps(found))
"""
_PACKAGES = ("zarrfeed", "zarr", "numcodecs", "numpy", "obstore", "matplotlib", "pytest")
_QUERIES = (
    ("nvidia-smi", "nvidia-smi", "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,"
     "clocks.max.sm,power.limit,persistence_mode", "--format=csv"),
    ("nvidia-smi topo -m", "nvidia-smi", "topo", "-m"),
    ("lscpu", "lscpu"),
)  # fmt: skip


@dataclass
class Step:
    """A process that ran, or was cut off."""

    name: str
    command: list[str]
    status: int | None = None  #: None: it was cut off
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """The end of the step, in words."""
        if self.status is None:
            return f"cut off after {self.seconds:.0f} s"
        end = "passed" if self.status == 0 else f"ended by signal {-self.status}" if self.status < 0 else "failed"
        return f"{end} after {self.seconds:.0f} s"


def run_step(step: Step, limit_s: float, log: IO[str], environment: dict[str, str] | None = None) -> Step:
    """Run a process for so long at most, and print and log what it says.

    It leads a process group, all of which ends with it. One that does not end by SIGINT is killed.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        step.command, cwd=ROOT, env=environment, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    copier = subprocess.Popen(["tee", "-a", log.name], stdin=process.stdout)  # which no hang of the process stops
    assert process.stdout is not None
    process.stdout.close()
    try:
        step.status = process.wait(max(1.0, limit_s))
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        end_group(process)
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        step.seconds = time.monotonic() - began
        end_group(process, grace_s=0)
        try:
            copier.wait(GRACE_S)
        except subprocess.TimeoutExpired:  # a process that left the group holds the other end of the pipe
            copier.kill()
            copier.wait()
    return step


def end_group(process: subprocess.Popen[str], grace_s: float = GRACE_S) -> None:
    """Interrupt a process group if there is time for it, and kill what is left."""
    if grace_s and process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ask(*command: str, limit_s: float = 30) -> str | None:
    """Return what a command prints; None where there is no such command or it fails."""
    try:
        done = subprocess.run(command, text=True, check=True, capture_output=True, timeout=limit_s, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def describe_machine() -> dict[str, Any]:
    """Return what results depend on: processor, NUMA nodes, GPU, driver and versions."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"))
    versions = "from importlib.metadata import version; import sys; print(*map(version, sys.argv[1:]))"
    found: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "NUMA nodes": {node.parent.name: node.read_text().strip() for node in nodes},
        "memory, GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        "commit": ask("git", "rev-parse", "HEAD"),
    }
    for package in _PACKAGES:
        found[package] = ask(sys.executable, "-c", versions, package)
    found |= json.loads(ask(sys.executable, "-c", _ASK_TORCH, limit_s=90) or "{}")
    models = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    found["processor"] = models[0].strip() if models else platform.processor()
    for name, *command in _QUERIES:
        found[name] = ask(*command)
    found["the wheel has the sources of this folder"] = is_of_these_sources()
    return found


def is_of_these_sources() -> bool:
    """Return whether the installed package has the same Python files as src/; a wheel may be older than its tests."""
    script = "import importlib.util as u; print(u.find_spec('zarrfeed').submodule_search_locations[0])"
    installed = ask(sys.executable, "-c", script)
    here = ROOT / "src" / "zarrfeed"
    files = [path.relative_to(here) for path in here.rglob("*.py")]
    return installed is not None and all(
        (Path(installed) / one).is_file() and (Path(installed) / one).read_bytes() == (here / one).read_bytes()
        for one in files
    )


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return what tests/gpu/recorder.py wrote: the last record of each test, in the order in which they began."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:  # cut off while it was written
            continue
        found[record["test"]] = found.get(record["test"], {}) | record
    return list(found.values())


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: whoever takes the folder away finds all of it."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.replace(path)


def page_of(part: str, steps: Iterable[Step], records: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """Return the page: what ran, each test that did not pass, and the machine."""
    lines = ["# tests" if part == "tests" else "## The run", ""]
    lines += [f"- {step.name}: {step.outcome}" for step in steps] + [""]
    if part == "tests":
        counts: dict[str, int] = {}
        for record in records:
            counts[record["outcome"]] = counts.get(record["outcome"], 0) + 1
        lines += [", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())) or "no test ran", ""]
        reasons = [record.get("error", "") for record in records if record["outcome"] == "skipped"]
        lines += [f"- {reasons.count(reason)} skipped: {reason}" for reason in dict.fromkeys(reasons)]
        lines += ["", "| test | outcome | seconds | measured |", "|---|---|---|---|"]
        for record in (one for one in records if one["outcome"] != "skipped"):
            measured = "; ".join(f"{name}: {value}" for name, value in record.get("measured", {}).items())
            lines.append(f"| {record['test']} | {record['outcome']} | {record.get('seconds', 0):.1f} | {measured} |")
        for record in records:
            if record["outcome"] not in ("passed", "skipped"):
                lines += ["", f"## {record['test']}: {record['outcome']}", "", "```", record.get("error", ""), "```"]
    lines += ["", "## The machine", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items() if "\n" not in str(value)]
    for name, value in machine.items():
        if "\n" in str(value):
            lines += ["", f"`{name}` says:", "", "```", str(value), "```"]
    return "\n".join(lines) + "\n"


def test_command(files: Sequence[str], records: Path, *, without_gpu: bool) -> list[str]:
    """Return pytest's command for files of tests/gpu, or for arguments of the user."""
    plugins = [word for plugin in (*PLUGINS, "tests.gpu.recorder") for word in ("-p", plugin)]
    chosen = [] if without_gpu else ["-m", "cuda"]
    # Libraries warn of a GPU in words that no test run here has seen yet: they are shown, and fail nothing.
    options = ["-n", "0", "-v", "-p", "no:cacheprovider", "-o", f"timeout={TEST_LIMIT_S}", "-W", "default"]
    return [sys.executable, "-m", "pytest", *plugins, *options, "--records", str(records), *chosen, *files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a part; return 1 if a step of it failed or was cut off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("tests", *MODULES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds for all of it")
    parser.add_argument("--without-gpu", action="store_true", help="run what needs no GPU")
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.arguments = words[cut + 1 :]  # for pytest, or for the benchmark
    end = time.monotonic() + options.limit
    out, part = options.out.resolve(), options.part
    out.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    write_whole(out / "machine.json", json.dumps(machine, indent=2) + "\n")
    if not machine["the wheel has the sources of this folder"]:
        print("gpu.sh: zarrfeed was built from other sources than those here: make the wheel anew if they matter")
    steps: list[Step] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (out / f"{part}.log").open("a") as log:
        try:
            if part == "tests":
                _run_tests(steps, out, log, end, options)
            else:
                _run_benchmark(steps, out, log, end, options, machine)
        except KeyboardInterrupt:
            print(f"gpu.sh: interrupted; {out} has what came before")
            return 130
    for step in steps:
        print(f"gpu.sh: {step.name}: {step.outcome}")
    print(f"gpu.sh: {out / 'page.md'} has the results")
    return int(any(step.status != 0 for step in steps))


def _run_tests(steps: list[Step], out: Path, log: IO[str], end: float, options: argparse.Namespace) -> None:
    records = out / ".records"
    records.unlink(missing_ok=True)
    machine = json.loads((out / "machine.json").read_text())
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    jobs: list[list[str]] = [options.arguments] if options.arguments else [[str(TESTS / name)] for name in ORDER]
    for job in jobs:
        left = end - time.monotonic() - GRACE_S
        step = Step(Path(job[0]).name, test_command(job, records, without_gpu=options.without_gpu))
        steps.append(step)
        try:
            if left > 1:
                run_step(step, left if job is jobs[-1] else min(left, FILE_LIMIT_S), log, environment)
        finally:
            found = read_records(records)
            write_whole(out / "tests.json", json.dumps(found, indent=2) + "\n")
            write_whole(out / "page.md", page_of("tests", steps, found, machine))
    records.unlink(missing_ok=True)


def _run_benchmark(
    steps: list[Step], out: Path, log: IO[str], end: float, options: argparse.Namespace, machine: dict[str, Any]
) -> None:
    """Run a module of benchmarks, which writes a page after each of its parts, and add the machine to the page."""
    options.data.mkdir(parents=True, exist_ok=True)
    left = end - time.monotonic() - GRACE_S
    command = [sys.executable, "-m", MODULES[options.part], "--out", str(out), "--data", str(options.data.resolve())]
    begins = max(1, int(left - min(LAST_S, left / 4)))
    step = Step(MODULES[options.part], [*command, "--limit", str(begins), *options.arguments])
    steps.append(step)
    try:
        run_step(step, left, log, os.environ | {"PYTHONUNBUFFERED": "1"})
    finally:
        own = out / f"{step.name.rpartition('.')[2]}.md"
        written = own.read_text() if own.exists() else f"# {options.part}\n"
        write_whole(out / "page.md", f"{written}\n{page_of(options.part, steps, [], machine)}")


if __name__ == "__main__":
    sys.exit(main())
