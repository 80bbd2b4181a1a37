"""The look beside the first batches of a pass: who looks, when its error arrives, and how it ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader
from zarr.storage import MemoryStore

import zarrfeed
from zarrfeed import StoreReadError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.metadata.stores.array_watch import ArrayWatch
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.torch.passes.looks import looks_here

COUNT = 64


def _write(path: Any, dtype: str = "f4", samples: int = COUNT) -> None:
    zarr.create_array(path, data=np.arange(samples).astype(dtype), chunks=(4,), overwrite=True)


def _numbers_of(batches: Any) -> list[float]:
    return sorted(torch.cat([torch.as_tensor(batch).reshape(-1) for batch in batches]).tolist())


def _looking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "zarrfeed-look"]


LOADERS: dict[str, Callable[[Any], Any]] = {
    "samples": lambda data: ZarrIterableDataset(data, shuffle=True),
    "batches": lambda data: ZarrIterableDataset(data, batch_size=8, shuffle=True),
    "one batch": lambda data: ZarrIterableDataset(data, batch_size=COUNT),
    "ZarrDataLoader": lambda data: ZarrDataLoader(ZarrIterableDataset(data, batch_size=8)),
    "DataLoader": lambda data: DataLoader(ZarrIterableDataset(data, batch_size=8), batch_size=None),
    "workers": lambda data: ZarrDataLoader(
        ZarrIterableDataset(data, batch_size=8, shuffle=True), num_workers=2, multiprocessing_context="fork"
    ),
    "persistent workers": lambda data: ZarrDataLoader(
        ZarrIterableDataset(data, batch_size=8), num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    ),
    "plain workers": lambda data: DataLoader(
        ZarrIterableDataset(data, batch_size=8), batch_size=None, num_workers=2, multiprocessing_context="fork"
    ),
    "by index": lambda data: DataLoader(ZarrDataset(data), batch_size=8),
    "by index, at once": lambda data: DataLoader(ZarrDataset(data), batch_size=COUNT),
    "by index, workers": lambda data: DataLoader(
        ZarrDataset(data), batch_size=8, num_workers=2, multiprocessing_context="fork"
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_second_epoch_decodes_another_array_by_the_description_of_the_first(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.zarr"
    _write(path)
    loader = LOADERS[name](zarrfeed.open(path))
    assert _numbers_of(loader) == list(range(COUNT))
    assert _numbers_of(loader) == list(range(COUNT))
    _write(path, "i4")
    with pytest.raises(StoreReadError, match="dtype is int32, was float32"):
        list(loader)
    assert not _looking()


def test_a_change_that_makes_chunks_undecodable_is_told_as_a_bad_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    for make in (lambda: ZarrIterableDataset(path, batch_size=8), lambda: ZarrDataset(path, cache=0)):
        _write(path)
        dataset = make()
        read = dataset.__iter__ if isinstance(dataset, ZarrIterableDataset) else lambda d=dataset: [d[np.arange(COUNT)]]
        list(read())
        zarr.create_array(path, data=np.arange(COUNT), chunks=(2,), compressors=None, overwrite=True)
        with pytest.raises(StoreReadError, match=r"chunk shape is \(2,\), was \(4,\)"):
            list(read())


def test_a_pass_ends_before_its_look_has(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    _write(path)
    may_look, dataset = threading.Event(), ZarrIterableDataset(path, batch_size=8)
    look = ArrayWatch.look

    def held_up(*args: Any) -> list[str]:
        assert may_look.wait(240)
        return look(*args)

    with mock.patch.object(ArrayWatch, "look", held_up):
        _write(path, "i4")
        running = iter(dataset)
        delivered = [next(running) for _ in range(COUNT // 8)]
        assert len(delivered) == COUNT // 8  # no batch waits for the look
        threading.Timer(0.2, may_look.set).start()
        with pytest.raises(StoreReadError, match="dtype is int32"):
            next(running)


def test_a_pass_that_is_left_leaves_its_look_behind() -> None:
    class Hanging(MemoryStore):
        hangs = False

        async def get(self, key: str, *args: Any, **options: Any) -> Any:
            if Hanging.hangs and key.endswith("zarr.json"):
                await asyncio.Event().wait()
            return await super().get(key, *args, **options)

    store = Hanging()
    _write(store)
    dataset = ZarrIterableDataset(zarrfeed.open(zarr.open_array(store, mode="r")), batch_size=8)
    Hanging.hangs = True
    for leave in ("break", "close", "error"):
        running = iter(dataset)
        next(running)
        assert len(_looking()) == 1
        begin = time.monotonic()
        if leave == "break":
            del running
        elif leave == "close":
            running.close()
        else:
            dataset.close()
            del running
        assert time.monotonic() - begin < 100
        assert not _looking(), leave


def test_the_first_batch_waits_for_a_look_at_many_arrays(tmp_path: Path) -> None:
    for name in "ab":
        _write(tmp_path / f"{name}.zarr")
    dataset = ZarrIterableDataset([tmp_path / "a.zarr", tmp_path / "b.zarr"], batch_size=8)
    waited = []
    for few in (1, 2):
        with (
            mock.patch("zarrfeed.torch.passes.looks._FEW_ARRAYS", few),
            mock.patch("zarrfeed.torch.passes.looks.Look.check", lambda _, timeout_s=0.0: waited.append(timeout_s)),
        ):
            running = iter(dataset)
            next(running)
            running.close()
    assert waited == [0.0, 0.1]


def test_a_look_that_cannot_be_made_ends_the_pass(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr")
    dataset = ZarrIterableDataset(tmp_path / "a.zarr", batch_size=8)
    with (
        mock.patch.object(ArrayWatch, "look", return_value=["a.zarr: no answer", "b.zarr: no answer"]),
        pytest.warns(UserWarning, match=r"a\.zarr: no answer; and 1 more: whether the array changed"),
    ):
        assert _numbers_of(dataset) == list(range(COUNT))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _numbers_of(dataset) == list(range(COUNT))


def test_a_pass_whose_look_never_ended_says_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr")
    dataset = ZarrIterableDataset(tmp_path / "a.zarr", batch_size=8)
    may_end = threading.Event()

    def held_up(*_: Any) -> list[str]:
        assert may_end.wait(240)
        return []

    with (
        mock.patch.object(ArrayWatch, "look", held_up),
        mock.patch("zarrfeed.torch.passes.looks._UNTIL_ANSWERED_S", 0.1),
        pytest.warns(UserWarning, match=r"did not answer within 0\.1 s after the last batch: whether"),
    ):
        assert _numbers_of(dataset) == list(range(COUNT))
    with (
        mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
        pytest.warns(UserWarning, match="can't start new thread"),
    ):
        assert _numbers_of(dataset) == list(range(COUNT))
    may_end.set()


def test_all_processes_of_a_machine_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    who = [(rank, worker) for rank in range(8) for worker in range(2) if looks_here(RankInfo(rank, 8, 4), worker)]
    assert who == [(0, 0), (4, 0)]
    monkeypatch.setenv("SLURM_LOCALID", "0")  # ranks are dealt to machines in turns
    assert looks_here(RankInfo(1, 8, 4), 0)
    assert not looks_here(RankInfo(1, 8, 4), 1)
    monkeypatch.delenv("SLURM_LOCALID")
    _write(tmp_path / "a.zarr")
    with mock.patch.object(ArrayWatch, "look", return_value=[]) as look:
        for rank in range(2):  # of two ranks on this machine
            list(ZarrIterableDataset(tmp_path / "a.zarr", batch_size=8, rank=rank, world_size=2))
    assert look.call_count in (1, 2)  # two, where the environment says that each rank has a machine of its own


def test_a_forked_child_waits_for_the_look_of_its_parent(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr")
    may_look = threading.Event()

    def held_up(*_: Any) -> list[str]:
        assert may_look.wait(240)
        return []

    with mock.patch.object(ArrayWatch, "look", held_up):
        running = iter(ZarrIterableDataset(tmp_path / "a.zarr", batch_size=8))
        next(running)
        pid = os.fork()
        if pid == 0:
            running.close()
            os._exit(7)
        end = time.monotonic() + 240
        while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        may_look.set()
        assert os.waitstatus_to_exitcode(found[1]) == 7
    list(running)


def test_a_store_that_was_opened_to_grow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    _write(path)
    dataset = ZarrIterableDataset(zarrfeed.open(path, refresh="epoch"), batch_size=8)
    assert len(_numbers_of(dataset)) == COUNT
    zarr.open_array(path, mode="r+").append(np.arange(8, dtype="f4"))
    assert len(_numbers_of(dataset)) == COUNT + 8
    _write(path, "i4", COUNT + 8)
    with pytest.raises(StoreReadError, match="dtype is int32, was float32"):
        list(dataset)
