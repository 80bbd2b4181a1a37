"""`zarrfeed bench`: what it reads, compares and says, on all kinds of stores; never how fast it is."""

from __future__ import annotations

import asyncio
import re
import zipfile
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset
from zarrfeed import Stats
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.system import usable_cores
from zarrfeed.report.advice import advise
from zarrfeed.tools import cli
from zarrfeed.tools.bench.plain import PlainLoader, _Reader
from zarrfeed.tools.bench.store_bench import PlainMode, StoreBench, plain_modes

N = 200
#: One worker process of plain zarr, in place of one for each core; and time for a whole pass on any machine.
QUICK = ["--seconds", "600", "--batch-size", "16", "--num-threads", "1"]
#: As many worker processes as cores.
ALL_CORES = ["--num-threads", str(usable_cores())]


@pytest.fixture(autouse=True, scope="module")
def _forkserver_of_tests() -> None:
    """Start the forkserver before a bench names what it imports: this process has one for all tests."""
    forkserver._forkserver.ensure_running()


@pytest.fixture(autouse=True)
def _one_pass_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn end with its first pass, however short that is."""
    monkeypatch.setattr("zarrfeed.tools.bench.store_bench._LEAST_S", 0.0)


def page(path: object, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["bench", str(path), *QUICK, *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for row in ("store", "checked", "measured", "first pass", "zarrfeed", "plain zarr", "ceiling", "limit", "change"):
        assert re.search(rf"^{row} ", out, flags=re.MULTILINE), row
    assert "both deliver the same, sum 0x" in out
    return out


def make_bench(path: Path, said: list[str], **options: Any) -> StoreBench:
    more: dict[str, Any] = {"num_threads": 1} | options
    return StoreBench(
        str(path), None, zarrfeed.open(path), batch_size=16, shuffle=True, seconds=600, say=said.append, **more
    )


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.zarr"
    zarr.create_array(path, data=np.arange(N * 12, dtype="f4").reshape(N, 12), chunks=(16, 5))
    return path


@pytest.mark.parametrize("shuffle", [[], ["--shuffle"]])
def test_an_array_is_measured_beside_plain_zarr_and_the_ceiling(
    samples: Path, capsys: pytest.CaptureFixture[str], shuffle: list[str]
) -> None:
    out = page(samples, capsys, *ALL_CORES, *shuffle)
    assert f"{N} samples, CRC-32" in out
    assert "all 13 blocks: 200 samples" in out
    assert re.search(r"ceiling .* zarrfeed reaches \d+\.\d\d of it", out)
    assert re.search(r"zarrfeed .* times plain zarr", out)


def test_a_group_with_targets(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = zarr.create_group(tmp_path / "group.zarr")
    group.create_array("t2m", data=np.ones((N, 3), "f4"), chunks=(10, 3), dimension_names=["time", "x"])
    group.create_array("big", data=np.ones((3, N), ">i4"), chunks=(3, 10), dimension_names=["x", "time"])
    group.create_array("lat", data=np.ones(3, "f4"), dimension_names=["x"])
    out = page(group.store_path, capsys, "--sample-dim", "time", "--targets", str(samples), "--shuffle")
    assert "samples['big']" in out
    assert "samples['lat']" not in out
    assert "samples['t2m']" not in page(tmp_path / "group.zarr", capsys, "--sample-dim", "time", "--variables", "big")


def test_packed_values_are_unpacked_by_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("scaled", "i2", {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": 7}),
        ("unsigned", "i1", {"_Unsigned": "true", "_FillValue": -1}),
        ("fill", "f4", {"_FillValue": 7.0}),
    ]
    for name, dtype, attributes in cases:
        data = np.random.default_rng(0).integers(-9, 9, (N, 40)).astype(dtype)
        zarr.create_array(tmp_path / name, data=data, chunks=(16, 40), attributes=attributes)
        page(tmp_path / name, capsys)


@pytest.mark.parametrize("values", [np.arange(N).astype("M8[s]"), np.array([b"%d" % i for i in range(N)], "S5")])
def test_items_that_become_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: np.ndarray[Any, Any]
) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(16,), zarr_format=2)
    page(tmp_path / "a.zarr", capsys, "--shuffle")


def test_text_and_codecs_that_zarr_python_decodes_have_no_ceiling(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = zarr.create_array(tmp_path / "text.zarr", shape=(N,), chunks=(16,), dtype=str)
    text[...] = np.array([f"caption {i}" for i in range(N)], dtype=object)
    assert "not measured: targets is text" in page(samples, capsys, "--targets", str(tmp_path / "text.zarr"))
    astype = numcodecs.AsType("<i4", "<i4")
    data = np.arange(N, dtype="i4")
    zarr.create_array(tmp_path / "astype.zarr", data=data, chunks=(16,), filters=[astype], zarr_format=2)
    assert "decoded by zarr-python (astype)" in page(tmp_path / "astype.zarr", capsys)


def test_shards_in_a_zip_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.arange(N * 4, dtype="f4").reshape(N, 4)
    store = zarr.storage.ZipStore(tmp_path / "a.zip", mode="w", compression=zipfile.ZIP_DEFLATED)
    zarr.create_array(store, data=data, chunks=(4, 4), shards=(32, 4))
    store.close()
    out = page(tmp_path / "a.zip", capsys, "--shuffle")
    assert "in shards (32, 4)" in out
    assert "not in a local directory" in out
    page(tmp_path / "a.zip", capsys, "--block", "shard")


def test_of_a_large_store_a_part_is_read(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zarrfeed.tools.bench.store_bench._PART_SAMPLES", 50)
    monkeypatch.setattr("zarrfeed.tools.bench.store_bench._CHECK_SAMPLES", 20)
    out = page(samples, capsys, "--shuffle")
    assert re.search(r"3 of 13 blocks, at random: (48|40) samples", out)
    assert re.search(r"checked     (16|8) samples", out)


def test_time_is_bounded_however_slow_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zarrfeed.storage.chunks.location import StoreSource

    data = np.arange(N * 5, dtype="f4")
    store = zarr.storage.ZipStore(tmp_path / "a.zip", mode="w", compression=zipfile.ZIP_DEFLATED)
    zarr.create_array(store, data=data, chunks=(5,))
    store.close()
    monkeypatch.setattr("zarrfeed.tools.bench.store_bench._CHECK_SAMPLES", 1)
    monkeypatch.setattr(
        "zarrfeed.tools.bench.store_bench.plain_modes", lambda threads: (PlainMode(0, threads),)
    )  # that can be slowed
    get, read = StoreSource.get, _Reader._read
    plain_reads: list[int] = []

    async def slow_get(self: StoreSource, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.5)
        return await get(self, *args, **options)

    async def slow_read(self: _Reader, *args: Any) -> None:
        plain_reads.append(1)
        await asyncio.sleep(0.05)
        await read(self, *args)

    monkeypatch.setattr(StoreSource, "get", slow_get)
    monkeypatch.setattr(_Reader, "_read", slow_read)
    out = page(tmp_path / "a.zip", capsys, "--seconds", "0.3")
    assert "32 of 200 blocks" in out
    assert len(plain_reads) < 4 * 32  # the passes are a trial and three rounds, and none was finished


@pytest.mark.parametrize("mode", [PlainMode(0, 3), PlainMode(usable_cores(), 1)], ids=["threads", "workers"])
def test_a_pass_of_plain_zarr_reads_each_block_once_in_any_mode(samples: Path, mode: PlainMode) -> None:
    bench = make_bench(samples, [])
    blocks = bench._blocks(bench._units)
    with closing(bench._plain(blocks, mode, return_index=True)) as loader:
        orders = []
        for seed in (1, 2):
            order: list[int] = []
            for values, index in loader.epoch(seed):  # the memory of a batch is soon used again
                assert torch.equal(torch.as_tensor(values), torch.as_tensor(index)[:, None] * 12.0 + torch.arange(12))
                order += torch.as_tensor(index).tolist()
            assert sorted(order) == list(range(N))
            orders.append(order)
        assert orders[0] != orders[1]
        read, seconds = loader.time(3, 60)
        assert (read, seconds > 0) == (N, True)
        assert loader.time(4, -1)[0] == 0  # past its deadline from the beginning
        assert loader.time(5, 60)[0] == N  # and none the worse for it


def test_plain_zarr_reads_as_many_blocks_at_once_as_zarrfeed_has_threads(tmp_path: Path) -> None:
    """Blocks as large as the buffer were read one at a time, however many threads there were."""
    zarr.create_array(tmp_path / "a.zarr", shape=(64, 1 << 20), chunks=(8, 1 << 20), dtype="f4")  # 32 MiB; all fill
    bench = make_bench(tmp_path / "a.zarr", [])
    blocks = bench._blocks(bench._units)
    for threads in (1, 4):
        with closing(bench._plain(blocks, PlainMode(0, threads))) as loader:
            assert loader.blocks_together >= threads
            assert loader.settings["blocks_in_flight"] == 2 * threads
    assert plain_modes(1) == (PlainMode(0, 1), PlainMode(1, 1))
    assert plain_modes(1000) == (PlainMode(0, 1000), PlainMode(usable_cores(), 1))


def test_different_data_fails(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch = PlainLoader.epoch

    def spoiled(self: PlainLoader, *args: Any, **options: Any) -> Any:
        for number, values in enumerate(epoch(self, *args, **options)):
            if number == 0:
                torch.as_tensor(values[0])[3, 2] += 1
            yield values

    monkeypatch.setattr(PlainLoader, "epoch", spoiled)
    assert cli.main(["bench", str(samples), *QUICK]) == cli.EXIT_FAILED
    out, err = capsys.readouterr()
    assert err == f"zarrfeed: zarrfeed and plain zarr deliver different data: 1 of {N} samples\n"
    assert "1 differ" in out


def test_errors_are_told_in_one_line(tmp_path: Path, samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", str(tmp_path / "nothing.zarr")]) == cli.EXIT_ERROR
    assert "nothing.zarr" in capsys.readouterr().err
    assert cli.main(["bench", str(samples), "--memory-budget", "1KB", "--shuffle"]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("zarrfeed: memory_budget = 1000 B, must be at least")
    with pytest.raises(SystemExit):
        cli.main(["bench", str(samples), "--seconds", "0"])
    assert "must be a number in (0, 86400]" in capsys.readouterr().err


def test_the_ceiling_reads_the_blocks_that_are_measured(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def measure(_: Any, *, blocks: list[int], **_options: Any) -> tuple[float, int, int]:
        asked.append(blocks)
        return 0.1, 0, 0

    monkeypatch.setattr("zarrfeed.tools.bench.store_bench._PART_SAMPLES", 50)
    monkeypatch.setattr("zarrfeed.tools.bench.store_bench.core.measure_ceiling", measure)
    bench = make_bench(samples, [])
    bench.run()
    assert asked == [sorted(begin // 16 for begin, _ in bench._blocks(bench._units))] * 3
    assert len(asked[0]) == 3


RUN: dict[str, Any] = {"batches": 100, "consumer_wait_s": 1.0}


@pytest.mark.parametrize(
    ("counters", "dataset", "more", "tip"),
    [
        (
            {"decode_s": 1.0},
            {"num_threads": 1},
            {"of_ceiling": 0.9},
            "codec: 90% of what bare loops on 1 threads decode; what helps is more cores, or a lighter",
        ),
        ({"decode_s": 1.0}, {"num_threads": 10**3}, {}, "decoding: raise num_threads"),
        ({"idle_memory_s": 1.0}, {}, {}, "memory: raise memory_budget (1.0 GiB now)"),
        ({"consumer_wait_s": 0.01, "consumer_busy_s": 1.0}, {}, {}, "loop: batches are ready"),
        ({"idle_storage_s": 1.0}, {}, {}, "store: a faster disk"),
        ({"idle_storage_s": 1.0, "requests": 10, "bytes_read": 9}, {}, {}, "chunks: a request brings 1 B on average"),
        ({"idle_storage_s": 1.0, "requests": 10}, {}, {}, "store: a store that is nearer"),
        ({"decode_s": 1.0}, {}, {"cold_ratio": 3.0}, "cache: later passes were 3.0 times as fast"),
        ({"decode_s": 1.0}, {"batch_size": 2}, {}, "batch size: batches of 96 B"),
        ({"decode_s": 1.0}, {"batch_size": 16, "lanes": 1}, {}, "mixing: a batch draws from"),
        ({"decode_s": 1.0}, {"lanes": 150}, {}, "chunks: those of samples are decoded"),
    ],
)
def test_advice_follows_from_what_was_measured(
    samples: Path, counters: dict[str, Any], dataset: dict[str, Any], more: dict[str, Any], tip: str
) -> None:
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "memory_budget": "1GiB"} | dataset
    explanation = iterable_dataset(str(samples), **options).explain()
    tips = advise(explanation, explanation, Stats(**RUN | counters), **more)
    assert any(one.startswith(tip) for one in tips), tips
    assert all("\n" not in one for one in tips)


def test_the_options_of_the_command_reach_the_dataset(samples: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match="num_threads"):
        make_bench(samples, said, num_threads=-1)
    assert said == []
