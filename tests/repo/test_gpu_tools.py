"""dev/gpu.sh, the parts that it runs, and the folder of wheels that it installs from."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.proc import living

SCRIPT = ROOT / "dev" / "gpu.sh"


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "dev")
    return importlib.import_module(name)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("gpu_parts", monkeypatch)


@pytest.fixture
def wheelhouse(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("wheelhouse", monkeypatch)


def run(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script where PATH has no more than it needs at first, and no interpreter."""
    commands = tmp_path / "commands"
    commands.mkdir(exist_ok=True)
    bash, dirname = shutil.which("bash"), shutil.which("dirname")
    assert bash is not None
    assert dirname is not None
    if not (commands / "dirname").exists():
        (commands / "dirname").symlink_to(dirname)
    environment = {"PATH": str(commands), "HOME": str(tmp_path)} | variables
    command = [bash, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, text=True, check=False, capture_output=True, timeout=60)


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists() or shutil.which("nvidia-smi") is not None


# --- dev/gpu.sh -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("part", ["tests", "feed", "scaling"])
def test_without_a_gpu_each_part_is_skipped_in_a_sentence(part: str, tmp_path: Path) -> None:
    done = run(tmp_path, part, "--out", str(tmp_path / "out"), OUT=str(tmp_path / "other"))
    assert (done.returncode, done.stderr) == (0, "")
    sentence = f"gpu.sh: there is no NVIDIA GPU here, so {part} is skipped; --without-gpu runs what needs none\n"
    assert done.stdout == sentence
    assert sorted(one.name for one in tmp_path.iterdir()) == ["commands"], "nothing was written"


@pytest.mark.parametrize(
    "arguments",
    [(), ("speed",), ("tests", "--out"), ("tests", "--limit", "soon"), ("tests", "--gpu", "1"), ("--out", "x")],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: dev/gpu.sh tests|feed|scaling ")


def test_an_interpreter_without_torch_and_a_folder_without_wheels_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "tests", "--without-gpu")
    assert done.returncode == 1
    assert "neither python3, python nor python3.12 has torch: name one that has with --python" in done.stderr
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    done = run(tmp_path, "tests", "--without-gpu", "--python", str(without))
    assert (done.returncode, done.stderr) == (1, f"gpu.sh: --python: {without} has no torch\n")
    done = run(tmp_path, "tests", "--without-gpu", "--python", sys.executable, "--wheels", str(tmp_path))
    assert done.returncode == 1
    assert f"--wheels: {tmp_path} has no wheel of zarrfeed; dev/wheels.py --gather makes one" in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt install shellcheck")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", str(SCRIPT)], text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout


# --- dev/gpu_parts.py -----------------------------------------------------------------------------------------------


def test_every_file_of_the_tests_for_a_gpu_has_its_turn(parts: ModuleType) -> None:
    assert sorted(parts.ORDER) == sorted(path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py"))


def step(parts: ModuleType, tmp_path: Path, script: str, limit_s: float = 60) -> Any:
    with (tmp_path / "log").open("a") as log:
        return parts.run_step(parts.Step("a step", [sys.executable, "-u", "-c", script]), limit_s, log)


def test_a_step_is_logged_and_says_how_it_ended(parts: ModuleType, tmp_path: Path) -> None:
    for script, outcome in (
        ("print('one')", "passed after"),
        ("print('two'); raise SystemExit(3)", "failed after"),
        ("import os; print('three'); os.abort()", "ended by signal 6 after"),
    ):
        assert step(parts, tmp_path, script).outcome.startswith(outcome)
    assert [line for line in (tmp_path / "log").read_text().split() if line in ("one", "two", "three")] == [
        "one", "two", "three",
    ]  # fmt: skip


def test_a_step_that_hangs_is_cut_off_with_the_processes_that_it_started(
    parts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor its child heeds SIGINT, as a process that waits for a driver does not."""
    monkeypatch.setattr(parts, "GRACE_S", 2)
    monkeypatch.setattr(parts.end_group, "__defaults__", (0.5,))
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = f"subprocess.Popen([sys.executable, '-c', '{deaf}; time.sleep(600)'])"
    script = f"{deaf}\nimport subprocess, sys\nchild = {child}\nprint(child.pid); time.sleep(600)"
    for limit_s in (3, 30, 100):  # a busy machine may not have started the child by then
        done = step(parts, tmp_path, script, limit_s=limit_s)
        if printed := re.search(r"^\d+$", (tmp_path / "log").read_text(), re.MULTILINE):
            break
    assert printed
    assert done.status is None
    assert done.outcome.startswith("cut off after")
    left = int(printed[0])
    end = time.monotonic() + 240
    while living(left) and time.monotonic() < end:
        time.sleep(0.05)
    assert living(left) is None


def test_a_process_that_a_step_leaves_behind_holds_nothing_up(
    parts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "GRACE_S", 1)
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    began = time.monotonic()
    assert step(parts, tmp_path, f"import subprocess, sys; print({child}.pid)").status == 0
    assert time.monotonic() - began < 200
    os.kill(int((tmp_path / "log").read_text()), signal.SIGKILL)


def test_what_ran_before_a_crash_is_on_the_page(parts: ModuleType, tmp_path: Path) -> None:
    lines = [
        {"test": "a", "outcome": "cut off"},
        {"test": "a", "outcome": "passed", "seconds": 1.5, "measured": {"blocks": 7}},
        {"test": "b", "outcome": "cut off"},
        {"test": "b", "outcome": "failed", "seconds": 2, "error": "assert 1 == 2", "measured": {}},
        {"test": "c", "outcome": "cut off"},
        {"test": "d", "outcome": "skipped", "seconds": 0, "error": "there is one GPU here"},
    ]
    records = tmp_path / "records"
    records.write_text("\n".join(map(json.dumps, lines)) + '\n{"test": "e", "outc')
    found = parts.read_records(records)
    assert [(record["test"], record["outcome"]) for record in found] == [
        ("a", "passed"), ("b", "failed"), ("c", "cut off"), ("d", "skipped"),
    ]  # fmt: skip
    machine = {"cores": 16, "nvidia-smi": "name\nGPU"}
    page = parts.page_of("tests", [parts.Step("x", [], 1, 4.0)], found, machine)
    for line in (
        "- x: failed after 4 s",
        "1 cut off, 1 failed, 1 passed, 1 skipped",
        "- 1 skipped: there is one GPU here",
        "| a | passed | 1.5 | blocks: 7 |",
        "## b: failed",
        "assert 1 == 2",
        "## c: cut off",
        "- cores: 16",
    ):
        assert line in page.splitlines(), line
    assert parts.read_records(tmp_path / "none") == []


def test_the_recorder_notes_each_test_before_it_runs_and_how_it_ends(tmp_path: Path, parts: ModuleType) -> None:
    file = tmp_path / "test_few.py"
    file.write_text(
        "import os, pytest\n"
        "def test_good(record_property): record_property('bytes', 5)\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='no GPU')\ndef test_skipped(): pass\n"
        "@pytest.fixture\ndef broken(): raise OSError('no fixture')\n"
        "def test_broken(broken): pass\n"
        "def test_crash(): os._exit(9)\n"
    )
    records = tmp_path / "records"
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "tests.gpu.recorder"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--records", str(records), str(file)]
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=120)
    found = {record["test"].rpartition("::")[2]: record for record in parts.read_records(records)}
    assert {name: record["outcome"] for name, record in found.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_skipped": "skipped",
        "test_broken": "failed in setup",
        "test_crash": "cut off",
    }
    assert found["test_good"]["measured"] == {"bytes": 5}
    assert "assert 1 == 2" in found["test_bad"]["error"]
    assert "no GPU" in found["test_skipped"]["error"]
    assert "no fixture" in found["test_broken"]["error"]


# --- dev/wheels.py --gather -----------------------------------------------------------------------------------------


def a_wheel(path: Path, size: int = 10) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("x", b"\0" * size)
    return path


def test_the_folder_holds_what_is_needed_beside_torch(wheelhouse: ModuleType) -> None:
    names = {wheelhouse.name_of(one) for one in wheelhouse.requirements()}
    assert {"zarr", "numpy", "xxhash", "google-crc32c", "pytest", "pytest-xdist", "hypothesis", "matplotlib"} <= names
    assert not any(name.startswith("torch") for name in names)
    assert wheelhouse.name_of("google_crc32c-1.9.0-cp312-cp312-manylinux2014_x86_64.whl") == "google-crc32c"
    assert wheelhouse.name_of("zarr[remote]>=3") == "zarr"


def test_gathering_leaves_out_torch_and_what_the_machine_has(
    wheelhouse: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []

    def download(folder: Path, needed: list[str], python: str, platforms: list[str], *options: str) -> None:
        asked.append((needed, python, platforms, options))
        if platforms == ["any"]:
            a_wheel(folder / "fonttools-4.1-py3-none-any.whl")
            return
        for name in ("numpy-2", "zarr-3", "torch-2", "nvidia_cublas-13", "triton-3", "fonttools-4.1"):
            a_wheel(folder / f"{name}-cp312-cp312-manylinux_2_28_x86_64.whl", 5000)

    monkeypatch.setattr(wheelhouse, "_download", download)
    own = a_wheel(tmp_path / "zarrfeed-1-cp312-cp312-manylinux_2_28_x86_64.whl")
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "gathered.txt").write_text("old-1-py3-none-any.whl\n")
    a_wheel(folder / "old-1-py3-none-any.whl")
    total = wheelhouse.gather(folder, own, without=["numpy"])
    names = sorted(path.name.split("-")[0] for path in folder.glob("*.whl"))
    assert names == ["fonttools", "zarr", "zarrfeed"]
    assert total == sum(path.stat().st_size for path in folder.glob("*.whl"))
    assert not any(one.startswith("numpy") for one in asked[0][0])
    assert asked[0][1] == "3.12"
    assert "manylinux_2_28_x86_64" in asked[0][2]
    assert asked[1][0] == ["fonttools==4.1"]
    assert "3 wheels" in capsys.readouterr().out
    again = wheelhouse.gather(folder, folder / own.name, without=["numpy"])  # from a wheel that lies there already
    assert again == total
    other = a_wheel(folder / "zarrfeed-1-cp313-cp313-manylinux_2_28_x86_64.whl")  # as dist/ has them
    with pytest.raises(SystemExit, match="holds wheels that were not gathered, such as zarrfeed-1-cp313"):
        wheelhouse.gather(folder, own)
    assert other.exists()
    assert (folder / own.name).exists()


def test_too_large_a_folder_fails_with_the_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = imported("wheels", monkeypatch)
    wheel = a_wheel(tmp_path / "zarrfeed-1-cp312-cp312-manylinux_2_28_x86_64.whl")
    said: list[Any] = []
    for total, status in ((59_999_999, 0), (60_000_000, 1)):

        def gather(*given: Any, total: int = total, **options: Any) -> int:
            said.append((given, options))
            return total

        monkeypatch.setattr(wheels, "gather", gather)
        arguments = ["--gather", str(tmp_path / "out"), "--wheel", str(wheel)]
        assert wheels.main([*arguments, "--without", "numpy", "--without", "rich"]) == status
    assert said[0] == ((tmp_path / "out", wheel), {"python": "3.12", "machine": "x86_64", "without": ["numpy", "rich"]})
    assert "must be less than 60000000 bytes; --without NAME" in capsys.readouterr().out
