"""benchmarks/suites/gpu.py on a CPU at its tiny scale, and what it makes of the times of a device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.report.gpu_page import is_allowed, page
from benchmarks.suites import gpu, gpu_feeds, gpu_steps
from benchmarks.suites.gpu_steps import feed_rate, run_steps

#: As short as it can be: a step a side.
QUICK = ["--device", "cpu", "--scale", "tiny", "--seconds", "0.001", "--warm", "0", "--rounds", "1", "--workers", "0"]
#: All layouts and all networks.
PAIRS = "A:resnet50,C:vit,E:resnet50,forecast:vit,patches:unet3d,images:resnet50"


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def options(tmp_path: Path, *more: str) -> list[str]:
    return [*QUICK, *more, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]


def test_all_layouts_train_on_a_cpu_and_are_called_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(options(tmp_path, "--pairs", PAIRS)) == 0, capsys.readouterr().out
    document = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert (document["failed"], document["left_out"]) == ([], [])
    parts = {(part["layout"], part["side"]): part for part in document["parts"]}
    assert list(parts) == [(pair.partition(":")[0], side) for side in gpu.SIDES for pair in PAIRS.split(",")]
    for name, part in parts.items():
        assert part["compared"] == 4, name
        for window in (*part["ceiling"], *part["windows"]):
            assert window["steps"] >= 1, name
            assert window["samples"] == 4 * window["steps"], name
            assert 0 <= window["idle_s"] <= window["wall_s"], name
        assert (part["feed_samples_per_s"] is None) == (name[1] == "plain"), name
    written = (tmp_path / "out" / "gpu.md").read_text()
    assert "A check that everything runs, and no result" in written
    assert "Both goals" not in written
    assert (tmp_path / "out" / "gpu.png").stat().st_size > 0


def test_parts_without_time_are_named(tmp_path: Path) -> None:
    assert gpu.main(options(tmp_path, "--pairs", "A:resnet50", "--limit", "0.000001")) == 0
    written = (tmp_path / "out" / "gpu.md").read_text()
    assert "A with resnet50, zarrfeed: no time was left" in written
    assert json.loads((tmp_path / "out" / "gpu.json").read_text())["parts"] == []


def test_without_a_gpu_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 0
    assert "No GPU" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_sample_that_differs_fails_its_part_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def off_by_one(count: int) -> Any:
        return lambda _, index: ((index + 1) % count).tolist()

    monkeypatch.setattr(gpu_feeds, "_modulo", off_by_one)
    more = ["--pairs", "A:resnet50,forecast:vit", "--sides", "zarrfeed"]
    assert gpu.main(options(tmp_path, *more)) == 1
    assert "is not what zarr-python reads" in capsys.readouterr().err
    document = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert [part["layout"] for part in document["parts"]] == ["forecast"]
    assert "A with resnet50, zarrfeed: AssertionError" in (tmp_path / "out" / "gpu.md").read_text()


class Device:
    """A device with a clock of its own: a step takes 8 ms, and begins when it is given or the one before has ended."""

    def __init__(self, late_ms: Sequence[float]) -> None:
        self.late_ms = iter(late_ms)
        self.host_ms = self.free_ms = 0.0
        self.waited: list[float] = []

    def batches(self) -> Iterator[torch.Tensor]:
        for late in self.late_ms:
            self.host_ms = max(self.host_ms, self.free_ms) + late if late else self.host_ms
            yield torch.zeros(2, 3)

    def step(self, _: object) -> None:
        self.free_ms = max(self.free_ms, self.host_ms) + 8

    def mark(self) -> Device.Mark:
        return Device.Mark(self)

    class Mark:
        def __init__(self, device: Device) -> None:
            self.device, self.at_ms = device, 0.0

        def record(self) -> None:
            self.at_ms = max(self.device.free_ms, self.device.host_ms)

        def synchronize(self) -> None:
            self.device.waited.append(self.at_ms)

        def elapsed_time(self, later: Device.Mark) -> float:
            return later.at_ms - self.at_ms


def test_a_device_is_idle_while_a_batch_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step does not count; of four others, one has to wait for 4 ms and another one for 12 ms."""
    device = Device([0, 0, 4, 0, 12])
    ticks = iter(range(100))
    monkeypatch.setattr(gpu_steps, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    # reads of the clock: the warm-up's end, its look, the window's end, and a look behind each step
    window = run_steps(device.batches(), device.step, device.mark, seconds=3.5)
    assert (window.steps, window.samples, window.batch_bytes) == (4, 8, 4 * 24)
    assert window.idle_s == pytest.approx(0.016)
    assert window.wall_s == pytest.approx(4 * 0.008 + 0.016)
    assert window.idle_share == pytest.approx(16 / 48)
    assert device.waited == [8, 16, 28, 56], "the host ran further ahead than two steps"


def test_what_comes_without_a_training_is_counted_behind_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(gpu_steps, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    device = Device([0] * 20)
    # a warm-up of two batches; then three batches of two samples in four ticks of the clock
    assert feed_rate(device.batches(), device.mark, seconds=2.5, warm_s=2.5) == pytest.approx(6 / 4)


def part(layout: str, of_ceiling: float, idle: float, fed: float) -> dict[str, Any]:
    window = {"steps": 1, "samples": 100, "batch_bytes": 10**9, "wall_s": 1.0, "idle_s": 0.0, "cpu_s": 0.5}
    window |= {"foreign_cores": 0.0}
    own = window | {"wall_s": 1 / of_ceiling, "idle_s": idle / of_ceiling}
    names = {"layout": layout, "model": "vit", "side": "zarrfeed", "feed": layout, "network": "of tokens"}
    return {
        **names,
        "compared": 16,
        "first_batch_s": 0.1,
        "feed_samples_per_s": fed,
        "ceiling": [window],
        "windows": [own],
    }


def test_goals_hold_only_where_the_host_is_fast_enough() -> None:
    parts = [part("good", 0.995, 0.002, 500), part("bad", 0.95, 0.04, 500), part("slow", 0.5, 0.5, 60)]
    assert [is_allowed(one) for one in parts] == [True, True, False]
    document = {
        "machine_line": "a machine",
        "device": {"name": "a device"},
        "is_check": False,
        "rounds": 1,
        "seconds": 1.0,
        "threads": None,
        "workers": 8,
        "parts": parts,
        "failed": [],
        "left_out": [],
    }
    written = page(document)
    rows = {line.split(" | ")[0].strip("| "): line for line in written.splitlines() if line.startswith("| ")}
    assert "**0.950**" in rows["bad"]
    assert "**4.00 %**" in rows["bad"]
    assert "**" not in rows["good"] + rows["slow"]
    assert "reached by 1 of the 2 pairs" in written
    assert "Not quiet" not in written
    parts[1]["ceiling"][0]["foreign_cores"] = 3.0
    assert "others kept up to 3.0 cores busy" in page(document)
    assert "Too slow is the host for slow with vit." in written
