"""benchmarks/suites/costs.py: every probe gives its figures, and the table says which goals are missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.data.layouts import LAYOUTS
from benchmarks.data.stores import Store, prepare_store
from benchmarks.suites import costs
from benchmarks.suites.cost_probes import PROBES
from benchmarks.suites.costs import Row, to_markdown


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare_store(LAYOUTS["A"].scaled("small"), tmp_path_factory.mktemp("data"), scale="small")


@pytest.mark.parametrize(
    ("probe", "case", "names"),
    [
        ("cpu", "zarrfeed", {"cpu_s_per_gb", "gb_per_s"}),
        ("cpu", "zarr-chunkwise-0w", {"cpu_s_per_gb", "gb_per_s"}),
        ("heartbeat", "nothing", {"longest_ms", "p99_9_ms", "on_a_core_ms"}),
        ("heartbeat", "ceiling", {"longest_ms", "p99_9_ms", "on_a_core_ms"}),
        ("heartbeat", "zarrfeed", {"longest_ms", "p99_9_ms", "on_a_core_ms"}),
        ("first", "zarrfeed", {"ms"}),
        ("first", "zarr-chunkwise-0w", {"ms"}),
        ("memory", "64MiB", {"refused", "grown_mib", "peak_mib"}),
        ("growth", "4", {"grown_mib"}),
        ("epochs", "-", {"second_over_first", "first_gb_per_s"}),
        ("threads", "1", {"zarrfeed", "ceiling_scatter", "ceiling_decode", "of_ceiling"}),
        ("python", "64", {"us_per_batch"}),
    ],
)
def test_a_probe_gives_its_figures(store: Store, probe: str, case: str, names: set[str]) -> None:
    figures = PROBES[probe](store, case, 0.05)
    assert figures.keys() == names
    may_be_nothing = {"refused", "grown_mib", "cpu_s_per_gb"}  # clocks have ticks, and memory is used again
    assert all(value > 0 for name, value in figures.items() if name not in may_be_nothing)


@pytest.mark.parametrize("how", ["loop", "full"])
def test_a_step_is_timed_beside_the_loader(store: Store, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)  # other tests have the same process
    assert PROBES["step"](store, how, 0).keys() == {"slowdown_percent", "on_a_core_percent", "noise_percent"}


def test_a_budget_that_is_too_small_is_a_figure_and_no_failure(store: Store) -> None:
    assert PROBES["memory"](store, "1MiB", 0) == {"refused": 1}


def test_goals_are_upper_bounds_unless_they_say_more() -> None:
    rows = [
        Row("a", "", 5.0, "ms", 5),
        Row("b", "", 5.1, "ms", 5),
        Row("c", "", 0.89, "", 0.9, more=True),
        Row("d", "", 3.0, "GB/s"),
        Row("e", "", None, "refused", 150),
    ]
    assert [row.met for row in rows] == [True, False, False, None, None]
    assert to_markdown(rows).splitlines()[2:] == [
        "| a |  | 5.00 ms | at most 5 |",
        "| b |  | **5.10** ms | at most 5 |",
        "| c |  | **0.89** | at least 0.9 |",
        "| d |  | 3.00 GB/s |  |",
        "| e |  | refused | at most 150 |",
    ]


def test_rates_over_threads_become_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"zarrfeed": 5.0, "ceiling_scatter": 6.0, "ceiling_decode": 7.0, "of_ceiling": 0.83}
    monkeypatch.setattr(costs, "_run", lambda *_: figures)
    monkeypatch.setattr(costs, "usable_cores", lambda: 4)
    options = ["--costs", "threads", "--scale", "small", "--data", str(tmp_path / "data"), "--out", str(tmp_path)]
    assert costs.main(options) == 0
    rows = json.loads((tmp_path / "costs.json").read_text())["rows"]
    assert [row["threads"] for row in rows if row["what"].startswith("zarrfeed")] == [1, 2, 3, 4]
    assert [row["met"] for row in rows if row["goal"]] == [False] * 4
    assert (tmp_path / "threads.png").read_bytes().startswith(b"\x89PNG")


def test_each_measurement_is_a_process_and_the_table_is_written(tmp_path: Path) -> None:
    options = ["--costs", "growth", "--scale", "small", "--data", str(tmp_path / "data"), "--out", str(tmp_path)]
    assert costs.main(options) == 0
    (row,) = json.loads((tmp_path / "costs.json").read_text())["rows"]
    assert (row["cost"], row["goal"]) == ("growth", 8)
    assert "| growth | epoch 2 to 20 |" in (tmp_path / "costs.md").read_text()
