"""dev/replay.py: two recordings agree, a planted change is reported, and what may change is only listed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import warm
from tests.support.paths import ROOT

#: Configurations that are recorded, and the step from one wrong argument that is tried to the next: in the usual run,
#: and with --large. The first configurations are cheap, and of several kinds: windows on nodes, patches, a group, text.
_USUAL, _LARGE = (3, 48), (6, 8)
#: Planted changes: name -> (source, what is checked, exit status, what is reported). The package is `zf`.
_PLANTED = {
    "nothing": ("", "", 0, "nothing differs"),
    "another order": (
        "real = zf.ZarrIterableDataset.sample_order\n"
        "zf.ZarrIterableDataset.sample_order = lambda self, epoch=None: real(self, epoch)[::-1]",
        "0",
        1,
        "in order",
    ),
    "another seed for the engine": (
        "real = zf._core.EpochPlan\n"
        "def plan(**options): return real(**options | {'seed': options['seed'] + 1})\n"
        "zf._core.EpochPlan = plan",
        "0",
        1,
        "in core",
    ),
    "another state": (
        "real = zf.ZarrIterableDataset.state_dict\n"
        "zf.ZarrIterableDataset.state_dict = lambda self: real(self) | {'more': 1}",
        "0,1",  # both, for the list of numbers itself
        1,
        "in state",
    ),
    "a refusal that succeeds": ("zf.lead = lambda low, high: None", "wrong", 1, "in refusals"),
    "a refusal with another text": (
        "real = zf.lead\n"
        "def lead(low, high):\n"
        "    try: return real(low, high)\n"
        "    except zf.ConfigError as error: raise zf.ConfigError(f'{error}, and more')\n"
        "zf.lead = lead",
        "wrong",
        0,
        "another text: zf.lead(",
    ),
}
_SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import replay
import zarrfeed as zf
tried = [call for number, call in enumerate(replay.calls()) if number % int(sys.argv[6]) == 0 or "zf.lead(" in call]
replay.calls = lambda: tried
record, folder, planted = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
assert replay.main(["record", "--count", sys.argv[5], "--record", record]) == 0
for name, (source, only) in planted.items():
    print(f"== {name}", flush=True)
    child = os.fork()
    if not child:
        exec(source, {"zf": zf})
        options = ["--only", only] if only else []
        status = replay.main(["--folder", folder, "--jobs", "1", "check", "--record", record, *options])
        print(f"status {status}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(autouse=True)
def _finds_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "dev")


def tool(name: str) -> Any:
    return importlib.import_module(f"recording.{name}")


def test_two_recordings_agree_and_a_planted_change_is_reported(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    sizes = map(str, _LARGE if pytestconfig.getoption("--large") else _USUAL)
    elsewhere = tmp_path / "a folder with a longer name"
    elsewhere.mkdir()
    planted = json.dumps({name: planted[:2] for name, planted in _PLANTED.items()})
    done = subprocess.run(
        [*warm.command(), "-c", _SCRIPT, ROOT / "dev", tmp_path / "record.txt", elsewhere, planted, *sizes],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])
    for name, (_, _, status, reported) in _PLANTED.items():
        assert f"status {status}" in parts[name], (name, parts[name])
        assert reported in parts[name], (name, parts[name])


def test_a_draw_follows_from_its_seed_and_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [tool("draw").draw(1, number).text for number in range(60)]
    monkeypatch.setattr("random.random", lambda: 0.5)
    assert drawn == [tool("draw").draw(1, number).text for number in range(60)]
    assert len(set(drawn)) == 60
    assert drawn[0] != tool("draw").draw(2, 0).text


def test_a_text_has_numbers_of_values_and_nothing_of_classes() -> None:
    render = tool("canonical").render
    assert render([1, (2.0, None)]) == render((np.int64(1), [np.float64(2), None])) == "[1, [2.0, None]]"
    assert render(np.arange(3, dtype=">i2")) == ">i2[3] 0 1 2"
    assert render(np.arange(999)) != render(np.arange(999) // 998 * 998)  # beyond the items that are shown
    assert render(torch.arange(3)) == "int64[3] 0 1 2"
    assert render(torch.ones(1, 2).expand(3, 2)) == "float32[3, 2] 1.0 1.0 1.0 1.0 1.0 1.0"
    assert render(torch.eye(2).to_sparse()).startswith("coo[2, 2] int64[2, 2] 0 1 0 1")


def test_numbers_of_a_page_stay_when_its_words_and_lines_move() -> None:
    numbers_of = tool("canonical").numbers_of
    assert numbers_of("reads 12 chunks, 3.5 times: 1e-3") == numbers_of("1e-3 of 3.5; chunks: 12") != numbers_of("12")


def test_what_differs_between_two_runs_is_taken_out_of_a_text(tmp_path: Path) -> None:
    without_addresses = tool("canonical").without_addresses
    assert without_addresses(f"{tmp_path}/s0, memory://139985, <x at 0x7fab>", tmp_path) == (
        "STORES/s0, memory://ADDRESS, <x at 0xADDRESS>"
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = tool("record")
    long = record.shortened("é" * 500)
    entries = {
        0: record.Entry({"order": "aa", "state": "bb"}, (long, "here: ConfigError: 'x'\nand more")),
        7: record.Entry({"order": "cc", "state": "dd"}, saved=('{"a": "b  c"}', "ee")),
    }
    refusals = {"zf.open(VALUE)": ("taken", long), "f(' \u2028')": ("A: b",)}
    made = record.Record(3, 8, entries, refusals)
    made.write(tmp_path / "record.txt")
    assert record.Record.read(tmp_path / "record.txt") == made
    assert len(long) < 200
    assert long != record.shortened("é" * 501)


def test_a_refusal_that_became_something_else_is_told_from_one_that_was_reworded() -> None:
    record = tool("record")
    made = record.Record(1, 0, {}, {"a": ("ConfigError: no", "taken"), "b": ("TypeError: no",), "c": ("taken",)})
    now = {"a": ("ConfigError: never", "ConfigError: no"), "b": ("ConfigError: no",), "c": ("taken",)}
    assert [one[:3] for one in made.changed_refusals(now)] == [("a", 0, True), ("a", 1, False), ("b", 0, False)]


def test_a_job_that_hangs_or_crashes_or_fails_is_told_from_a_result() -> None:
    def do(job: str) -> dict[str, int]:
        if job == "hangs":
            time.sleep(3600)
        if job == "crashes":
            os._exit(3)
        if job == "fails":
            raise ValueError("no")
        return {"done": 1}

    jobs = ["hangs", "works", "crashes", "fails", "works"]
    found: Iterator[tuple[str, Any]] = tool("forks").run_forked(jobs, do, processes=5, limit_s=5)
    results = dict(found)
    assert results["works"] == {"done": 1}
    assert "ended with -9" in results["hangs"]
    assert "ended with 3" in results["crashes"]
    assert "ValueError: no" in results["fails"]
