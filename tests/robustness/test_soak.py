"""The soak in short: random configurations, every batch checked, nothing left; and that it would notice."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.faults.soak import levels
from tests.faults.soak.__main__ import Soak, main
from tests.faults.soak.acts import ACTS
from tests.faults.soak.case import Case, FieldOracle, WrongError
from tests.faults.soak.levels import Level, rise_bytes
from tests.support import warm
from tests.support.paths import ROOT

#: As other random tests: the same each time, unless asked.
SEED = os.environ.get("ZARRFEED_SOAK_SEED", "123271518")
MINUTES = float(os.environ.get("ZARRFEED_SOAK_MINUTES", "1"))
#: How many are made where no time is asked for; with --large it is MINUTES.
CONFIGURATIONS = 20


@pytest.mark.timeout(500 + 90 * MINUTES)
def test_random_configurations_deliver_nothing_wrong_and_leave_nothing(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    is_timed = pytestconfig.getoption("--large") or "ZARRFEED_SOAK_MINUTES" in os.environ
    length = f"--minutes={MINUTES}" if is_timed else f"--count={CONFIGURATIONS}"
    # a process of its own: the memory, threads and descriptors are its own
    command = [*warm.command(), "-m", "tests.faults.soak", length, f"--seed={SEED}"]
    command.append(f"--json={tmp_path / 'report.json'}")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=450 + 80 * MINUTES, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["wrong"] == []
    assert report["configurations"] >= (10 if is_timed else CONFIGURATIONS)
    assert report["counts"]["samples"] > 1000
    assert report["errors as specified"]


def level(seconds: float, mib: float, configurations: int = 0) -> Level:
    return Level(seconds, configurations, int(mib * 2**20), 8, 1, frozenset())


def test_memory_that_rises_is_noticed_through_noise_and_a_warm_up() -> None:
    noise = np.random.default_rng(1).normal(0, 3, 360)
    flat = [level(i, 300 + min(i, 60) + noise[i]) for i in range(360)]
    rise, allowed = rise_bytes(flat)
    assert rise < allowed == 16 * 2**20
    leaking = [level(i, 300 + min(i, 60) + noise[i] + i * 20 / 288) for i in range(360)]
    assert rise_bytes(leaking)[0] > allowed
    many = [level(i, 300, 20 * i) for i in range(361)]
    assert rise_bytes(many)[1] == 7200 * 4096
    assert rise_bytes(flat[:1])[0] == 0


def one_field(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]], **more: object) -> Case:
    oracle = FieldOracle(rows, **more)  # type: ignore[arg-type]
    return Case(rows, None, "samples", {"samples": oracle}, {}, np.arange(len(rows)), len(rows))


def test_a_batch_that_is_not_right_is_noticed() -> None:
    rows = np.arange(20, dtype="f4").reshape(10, 2)
    index = np.array([3, 1])
    case = one_field(rows)
    good = torch.from_numpy(rows[index])
    assert case.check_batch((good, torch.from_numpy(index)), index, return_index=True).tolist() == [3, 1]
    assert case.check_batch(good, index, return_index=False).tolist() == [3, 1]
    for bad in (good.flip(0), good + torch.tensor([[0, 0], [0, 1e-6]]), good[:1], good.double(), good[:, :1]):
        if torch.equal(bad, good):
            continue
        with pytest.raises(WrongError):
            case.check_batch(bad, index, return_index=False)
    with pytest.raises(WrongError, match="announced"):
        case.check_batch((good, torch.tensor([3, 2])), index, return_index=True)
    window = one_field(rows, offsets=(-1, 0))
    stacked = torch.from_numpy(rows[index[:, None] + [-1, 0]])
    window.check_batch(stacked, index, return_index=False)
    with pytest.raises(WrongError):
        window.check_batch(stacked.flip(1), index, return_index=False)


@pytest.mark.filterwarnings("ignore")
def test_what_goes_wrong_in_a_configuration_is_told_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(*_: object) -> None:
        raise WrongError("deliberate")

    monkeypatch.setattr("tests.faults.soak.__main__.ACTS", {act: 1})
    soak = Soak(5, tmp_path)
    soak.configure(17)
    assert len(soak.wrong) == 1
    assert "configuration 17 of seed 5, act" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_threads_and_descriptors_that_are_left_are_noticed(tmp_path: Path) -> None:
    soak = Soak(5, tmp_path)
    soak.level()
    # other tests of this process may have left threads
    assert not any("descriptors" in what or "temporary" in what for what in soak.wrong)
    # more than there were: threads that other tests left may close theirs meanwhile
    descriptors = [os.open(tmp_path, os.O_RDONLY) for _ in range(soak.levels[0].descriptors + 1)]
    soak.level()
    for descriptor in descriptors:
        os.close(descriptor)
    assert any("file descriptors" in what for what in soak.wrong)
    (tmp_path / "left").touch()
    soak.level()
    assert any("temporary files: ['left']" in what for what in soak.wrong)
    assert levels.left_in_shared_memory({-1}) == []


def test_every_act_is_described_and_a_configuration_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(act.__doc__ for act in ACTS)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--first" in capsys.readouterr().out
