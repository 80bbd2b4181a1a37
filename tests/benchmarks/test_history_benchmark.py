"""benchmarks/suites/history.py: what counts as a fall, what does not, and what a file of rows is read for.

Nothing here depends on how fast this machine is: rounds are made up, or references are wrong by a factor of 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.data.layouts import LAYOUTS, QUICK
from benchmarks.harness.machine import processor
from benchmarks.harness.rounds import Round, Rounds, Turn, measure_rounds
from benchmarks.loaders import CEILINGS, LIBRARY_CEILING, LOADERS, OURS, YARDSTICK, Batch
from benchmarks.report.history import (
    LEAST_ROUNDS,
    Ratio,
    Row,
    Verdict,
    append_rows,
    is_settled,
    judge,
    last_row,
    median_bounds,
    ratios,
    read_history,
    summarise,
)
from benchmarks.suites import history, throughput
from benchmarks.suites.history import Slowed, two_tries
from tests.support.paths import ROOT

ROUNDS, CORES = 40, 2
QUIET, OTHERS = 0.1, 1.0


def made_up(
    rng: np.random.Generator | None = None,
    *,
    ours: float = 1.0,
    scatter: float = 1.0,
    waits: float = 1.0,
    noise: float = 0.1,
    rounds: int = ROUNDS,
    foreign_cores: float | None = OTHERS,
) -> Rounds:
    """Return rounds in which sides take so many CPU seconds, and more in turns that others disturbed.

    `ours`, `scatter`: zarrfeed, and the ceiling with our kernels, take that much longer than in `reference()`; `waits`:
    zarrfeed takes that much longer by the clock alone.
    """
    rng = rng or np.random.default_rng(1)

    def disturbed() -> npt.NDArray[np.float64]:
        outliers = np.where(rng.random(rounds) < 0.15, rng.exponential(1.0, rounds), 0.0)
        return np.exp(rng.normal(0, noise, rounds)) + outliers

    taken = {OURS: ours * disturbed(), YARDSTICK: scatter * 1.1 * disturbed(), LIBRARY_CEILING: 1.4 * disturbed()}
    clock = {OURS: waits, YARDSTICK: 1.0, LIBRARY_CEILING: 1.0}
    turns = [
        {side: Turn(clock[side] * cpu_s[n] / CORES, cpu_s[n]) for side, cpu_s in taken.items()} for n in range(rounds)
    ]
    return Rounds(turns, foreign_cores)


def reference(foreign_cores: float | None = OTHERS, **changes: Any) -> Row:
    of = {YARDSTICK: Ratio(1.0, 1.1, 1.2), LIBRARY_CEILING: Ratio(1.3, 1.4, 1.5)}
    row = Row("0123456789ab", "2026-01-01", "a processor", CORES, "a machine", "A", 100, foreign_cores, of, of)
    return replace(row, **changes)


def fell(rounds: Rounds, row: Row | None = None) -> bool:
    return judge("A", rounds, row or reference(), CORES).fell


def test_what_is_as_fast_as_before_or_a_little_slower_does_not_fall() -> None:
    assert not fell(made_up())
    assert not fell(made_up(ours=1.05))
    assert not fell(made_up(ours=0.5))


def test_what_is_20_percent_slower_falls_and_the_verdict_has_the_numbers() -> None:
    verdict = judge("A", made_up(ours=1.2, noise=0.03), reference(), CORES)
    assert verdict.fell
    assert verdict.words.startswith("cpu 0.")
    assert " of ceiling-scatter, had 1.100 (-" in verdict.words
    assert " of ceiling-library, had 1.400 (-" in verdict.words
    assert verdict.words.endswith("; FELL since 0123456")


def test_false_alarms_are_rarer_than_1_in_1000_and_slower_layouts_are_seen() -> None:
    """False alarms are counted without a second try, with turns that differ more than where one core of two is busy.

    On such a machine the quartiles of a ratio are 4 % apart from its median: turns differ by 5 %.
    """
    rng = np.random.default_rng(2)
    tries = 2000
    assert sum(fell(made_up(rng, noise=0.12)) for _ in range(tries)) <= tries / 1000
    assert sum(fell(made_up(rng, noise=0.05, ours=1.2)) for _ in range(200)) >= 160


def test_a_try_ends_early_where_the_layout_is_as_fast_and_hardly_ever_where_it_is_slower() -> None:
    rng = np.random.default_rng(3)

    def rounds_until_settled(**changes: Any) -> int:
        turns = made_up(rng, noise=0.05, **changes).turns
        return next((n for n in range(ROUNDS) if is_settled(turns[:n], reference())), ROUNDS)

    assert not is_settled(made_up().turns, None)
    as_fast = [rounds_until_settled() for _ in range(50)]
    assert min(as_fast) == LEAST_ROUNDS
    assert np.median(as_fast) < ROUNDS / 2
    assert sum(rounds_until_settled(ours=1.2) < ROUNDS for _ in range(50)) <= 1
    assert rounds_until_settled(scatter=0.8, ours=1.25) == ROUNDS, "the libraries' ceiling shows it"


def test_rounds_that_differ_too_much_judge_nothing() -> None:
    shares = [0.8] * 22 + [1.5] * 18  # of the reference: the median has lost enough, which 4 rounds more would change
    turns: list[Round] = [
        {OURS: Turn(1.0, 1.0), YARDSTICK: Turn(1.0, 1.1 * share), LIBRARY_CEILING: Turn(1.0, 1.4 * share)}
        for share in shares
    ]
    assert not fell(Rounds(turns, OTHERS))
    assert fell(Rounds(turns[:32], OTHERS)), "22 of 32"


def test_a_slower_kernel_falls_though_the_ceiling_with_our_kernels_falls_along() -> None:
    assert fell(made_up(ours=1.4, scatter=1.4))
    assert not fell(made_up(ours=1.1, scatter=1.1)), "the ratio to the libraries' ceiling differs by that"


def test_a_faster_ceiling_makes_nothing_slower() -> None:
    assert not fell(made_up(scatter=0.5))


def test_clock_times_are_judged_only_if_the_machine_was_quiet_both_times() -> None:
    assert not fell(made_up(waits=2.0, foreign_cores=OTHERS), reference(QUIET))
    assert not fell(made_up(waits=2.0, foreign_cores=QUIET), reference(OTHERS))
    assert not fell(made_up(waits=2.0, foreign_cores=QUIET), reference(None))
    assert fell(made_up(waits=2.0, foreign_cores=QUIET), reference(QUIET))
    assert not fell(made_up(waits=1.15, foreign_cores=QUIET), reference(QUIET)), "clock times differ more"


@pytest.mark.parametrize(
    ("rounds", "row", "words"),
    [
        (made_up(ours=9, foreign_cores=1.6), reference(), "others kept 1.6 of 2 cores busy, more than 1.5"),
        (made_up(ours=9, rounds=14), reference(), "only 14 rounds fitted into the time, fewer than 15"),
        (Rounds([], None), reference(), "only 0 rounds"),
        (made_up(ours=9), None, "the history has no row of such a machine"),
    ],
    ids=["busy", "few rounds", "none", "no row"],
)
def test_what_cannot_be_judged_is_said_and_does_not_fall(rounds: Rounds, row: Row | None, words: str) -> None:
    verdict = judge("A", rounds, row, CORES)
    assert not verdict.fell
    assert verdict.words.startswith("not judged: ")
    assert words in verdict.words


@pytest.mark.parametrize("n", [4, 15, 40, 101])
def test_bounds_hold_the_median_as_often_as_they_say(n: int) -> None:
    rng = np.random.default_rng(3)
    below, above = 0, 0
    for values in rng.exponential(1.0, (4000, n)):
        low, high = median_bounds(values.tolist())
        below += low > np.log(2)  # the median of this distribution
        above += high < np.log(2)
    for wrong in (below, above):
        assert 0.03 < wrong / 4000 < 0.115, "at most a tenth, and no wider than discrete bounds have to be"


def test_too_few_values_bound_nothing() -> None:
    assert median_bounds([1.0, 2.0, 3.0]) == (-np.inf, np.inf)
    assert median_bounds([]) == (-np.inf, np.inf)


def test_a_layout_fails_only_if_it_falls_on_two_tries_and_only_those_that_fell_have_a_second() -> None:
    tried: list[str] = []
    falls = {"A": [False], "D": [True, False], "G": [True, True]}

    def one_try(layout: str) -> Verdict:
        tried.append(layout)
        return Verdict(layout, falls[layout].pop(0), "words")

    said: list[str] = []
    assert two_tries(list(falls), one_try, said.append) == ["G"]
    assert tried == ["A", "D", "G", "D", "G"], "second tries come late, when the machine may be less busy"
    assert said[-1] == "try 2, G: words"


def test_rows_are_read_as_they_were_added_and_the_newest_of_a_machine_counts(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(path) == []
    first, other, newer = reference(), reference(cpu="another"), reference(commit="ba9876543210")
    append_rows(path, [first, other])
    append_rows(path, [newer])
    assert read_history(path) == [first, other, newer]
    assert last_row(read_history(path), cpu="a processor", cores=CORES, layout="A") == newer
    for missing in ({"cpu": "a third"}, {"cores": 3}, {"layout": "D"}):
        wanted: dict[str, Any] = {"cpu": "a processor", "cores": CORES, "layout": "A", **missing}
        assert last_row(read_history(path), **wanted) is None
    again = replace(other, rounds=7)
    append_rows(path, [again])
    assert read_history(path) == [first, newer, again], "a commit that is measured again has its last row"


def test_quartiles_and_median_of_the_ratios_within_a_round() -> None:
    turns: list[Round] = [
        {OURS: Turn(1.0 * slow, 2.0 * slow), LIBRARY_CEILING: Turn(3.0 * slow, ratio * 2.0 * slow)}
        for slow, ratio in ((1, 1.0), (100, 5.0), (7, 2.0), (1, 4.0), (50, 3.0))
    ]
    rounds = Rounds(turns, None)
    assert ratios(rounds, LIBRARY_CEILING, "cpu") == pytest.approx([1, 5, 2, 4, 3])
    assert ratios(rounds, LIBRARY_CEILING, "wall") == pytest.approx([3] * 5)
    assert summarise(ratios(rounds, LIBRARY_CEILING, "cpu")) == Ratio(2.0, 3.0, 4.0)


class _Loader:
    """Delivers one tensor an epoch, which is its number, and takes some CPU time."""

    settings: dict[str, object] = {}  # noqa: RUF012 (as the protocol has it)
    samples_per_epoch = 1

    def __init__(self, log: list[str]) -> None:
        self.epochs: list[int] = []
        self._log = log

    def epoch(self, epoch: int) -> Iterator[Batch]:
        self.epochs.append(epoch)
        self._log.append(OURS)
        until = process_time() + 0.01
        while process_time() < until:
            pass
        yield torch.tensor([epoch])

    def close(self) -> None:
        """Do nothing."""


class _Ceiling:
    settings: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def measure(self) -> float:
        self._log.append(self._name)
        return 0.25


def test_in_a_round_each_side_has_one_turn_and_another_one_begins() -> None:
    log: list[str] = []
    loader = _Loader(log)
    rounds = measure_rounds(loader, {name: _Ceiling(log, name) for name in "ab"}, rounds=6, max_s=60)
    assert log[:5] == [OURS] * 3 + ["a", "b"], "nothing of the first epochs is timed"
    timed = [log[5 + 3 * i : 8 + 3 * i] for i in range(6)]
    assert all(sorted(turn) == sorted(["a", "b", OURS]) for turn in timed)
    assert [turn[0] for turn in timed] == ["a", "b", OURS] * 2
    assert loader.epochs == list(range(1, 10)), "no epoch is read twice"
    assert all(turn["a"].wall_s == 0.25 for turn in rounds.turns), "what a ceiling says about itself"
    assert all(turn[OURS].cpu_s >= 0.01 for turn in rounds.turns)
    assert not measure_rounds(loader, {}, rounds=6, max_s=0).turns, "time is up"
    assert len(measure_rounds(loader, {}, rounds=6, max_s=60, is_settled=lambda turns: len(turns) == 2).turns) == 2


def test_a_slowed_loader_delivers_the_same_and_takes_the_share_of_cpu_time_more() -> None:
    begin = process_time()
    plain = list(_Loader([]).epoch(5))
    took = process_time() - begin
    begin = process_time()
    slowed = list(Slowed(_Loader([]), 9.0).epoch(5))
    assert slowed == plain
    assert process_time() - begin > 0.1 > 0.01
    assert took >= 0.01


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands take stores of a few MiB."""
    monkeypatch.setattr(history, "QUICK", "small")


def run(tmp_path: Path, command: str, *options: str, layout: str = "A") -> int:
    files = ["--file", str(tmp_path / "history.jsonl"), "--picture", str(tmp_path / "history.svg")]
    return history.main([command, "--layouts", layout, "--rounds", "16", *files, *options])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("known", "status"), [(0.01, 0), (100.0, 1)], ids=["faster", "slower"])
def test_check_fails_after_two_tries_where_the_history_has_been_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], known: float, status: int
) -> None:
    # whatever else this machine does, and however few rounds it has the time for
    monkeypatch.setattr("benchmarks.report.history.why_not_judged", lambda *_: "")
    cpu, cores = processor()
    of = {name: Ratio(known, known, known) for name in (YARDSTICK, LIBRARY_CEILING)}
    append_rows(tmp_path / "history.jsonl", [reference(cpu=cpu, cores=cores, of_cpu=of, of_wall=of)])
    assert run(tmp_path, "check") == status
    printed = capsys.readouterr().out
    assert ("try 2, A: cpu " in printed) == bool(status)
    assert ("A: slower on two tries" in printed) == bool(status)


def test_check_begins_no_try_when_its_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu, cores = processor()
    append_rows(tmp_path / "history.jsonl", [reference(cpu=cpu, cores=cores)])
    assert run(tmp_path, "check", "--max-seconds", "0") == 0
    assert "try 1, A: not judged: the check has taken 0 s without it" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_check_writes_its_stores_and_measures_when_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, cores = processor()
    append_rows(tmp_path / "history.jsonl", [reference(cpu=cpu, cores=cores)])
    begin, events = tmp_path / "begin", list[str]()
    prepare, measure = history._prepare, history._measure

    def prepared(*arguments: Any) -> Any:
        events.append("prepares")
        return prepare(*arguments)

    def measured(*arguments: Any) -> Any:
        assert begin.exists()
        events.append("measures")
        return measure(*arguments)

    def sleep(_: float) -> None:
        events.append("waits")
        if events.count("waits") == 2:
            begin.touch()

    monkeypatch.setattr(history, "_prepare", prepared)
    monkeypatch.setattr(history, "_measure", measured)
    monkeypatch.setattr(history, "sleep", sleep)
    run(tmp_path, "check", "--wait-for", str(begin))
    assert events[:4] == ["prepares", "waits", "waits", "measures"]
    assert events.count("prepares") == 1


def test_check_reads_nothing_where_the_history_has_no_such_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(history, "prepare_store", None)
    append_rows(tmp_path / "history.jsonl", [reference()])
    assert run(tmp_path, "check") == 0
    assert "not judged: history.jsonl has no row of" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_check_fails_where_zarrfeed_delivers_wrong_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cores = processor()
    append_rows(tmp_path / "history.jsonl", [reference(cpu=cpu, cores=cores)])
    right = LOADERS[OURS]

    def twice(store: Any, part: int) -> Any:
        loader: Any = right(store, part)
        epoch = loader.epoch
        loader.epoch = lambda number: (batch + 1 for batch in epoch(number))
        return loader

    monkeypatch.setitem(LOADERS, OURS, twice)
    with pytest.raises(Exception, match="samples 133 missing"):
        run(tmp_path, "check")


@pytest.mark.usefixtures("small")
def test_add_writes_a_row_a_layout_and_draws_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(history, "why_not_judged", lambda *_: "")
    monkeypatch.setattr(history, "_why_unsure", lambda _: "")
    for commit in ("0123456789ab", "ba9876543210"):
        assert run(tmp_path, "add", "--commit", commit, "--rounds", "4", layout="A,E") == 0
    rows = read_history(tmp_path / "history.jsonl")
    assert [(row.commit, row.layout) for row in rows] == [
        (c, y) for c in ("0123456789ab", "ba9876543210") for y in "AE"
    ]
    assert all((row.cpu, row.cores) == processor() for row in rows)
    assert all(ratio.low <= ratio.median <= ratio.high for row in rows for ratio in row.of_cpu.values())
    picture = (tmp_path / "history.svg").read_text()
    for text in ("0123456", "ba98765", "A: 64 KiB samples", "E: as A"):
        assert text in picture


@pytest.mark.usefixtures("small")
def test_add_writes_nothing_that_is_not_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "add", "--commit", "0123456789ab", "--rounds", "3") == 1
    assert "A: no row was added: " in capsys.readouterr().out
    assert not (tmp_path / "history.jsonl").exists()


def test_quick_chooses_what_is_not_said() -> None:
    quick = throughput._parse(["--quick", "--layouts", "D", "--repeats", "2"])
    assert (quick.layouts, quick.repeats, quick.scale) == (["D"], 2, QUICK)
    assert set(quick.loaders) >= {OURS, "zarrfeed-workers", "zarr-chunkwise-0w", *CEILINGS}
    assert throughput._parse(["--quick"]).layouts == ["A", "D", "E", "G"]
    usual = throughput._parse([])
    assert (usual.layouts, usual.loaders) == (list(LAYOUTS), [*LOADERS, *CEILINGS])
    assert (usual.scale, usual.repeats, usual.min_seconds) == ("full", 3, 1.0)
    assert LAYOUTS["A"].scaled(QUICK).num_samples == 2053


def test_the_history_of_this_repository_can_be_read() -> None:
    rows = read_history(ROOT / "benchmarks" / "history.jsonl")
    assert rows
    for row in rows:
        assert row.layout in LAYOUTS
        for of in (row.of_cpu, row.of_wall):
            assert set(of) == {YARDSTICK, LIBRARY_CEILING}
            assert all(0 < ratio.low <= ratio.median <= ratio.high < 10 for ratio in of.values())
