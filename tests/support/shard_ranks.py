"""What rank processes do in the tests of distributed checkpoints; each function runs on every rank."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.support.dcp import dcp
from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.base.errors import StoreWriteError
from zarrfeed.checkpoint import LoaderState, ZarrfeedReader, ZarrfeedWriter
from zarrfeed.storage.checkpoint.checkpoint_sink import _LocalSink

#: Rows of the sharded tensor: no multiple of any world size of the tests.
ROWS, COLUMNS = 131, 64


def make_state(value: int) -> dict[str, Any]:
    """Return a state dict with a tensor that is sharded over the ranks, one that all ranks have, and an object."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS) + value
    return {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "replicated": torch.full((10,), value),
        "step": value,
    }


def value_of(state: dict[str, Any]) -> int:
    """Return the value that every element of a state dict tells, or raise."""
    value: int = state["step"]
    whole = torch.arange(ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS) + value
    for name in ("sharded", "columns"):
        found = state[name].full_tensor() if isinstance(state[name], DTensor) else state[name]
        assert torch.equal(found, whole), name
    assert torch.equal(state["replicated"], torch.full((10,), value))
    return value


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let torch warn of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save(location: str, value: int, *, is_async: bool = False, **options: Any) -> None:
    """Save on all ranks."""
    with quiet():
        writer = ZarrfeedWriter(location, **options)
        if is_async:
            state = make_state(value)
            done: Any = dcp.async_save(state, storage_writer=writer)
            state["sharded"].to_local().zero_()
            done.result(timeout=120)
        else:
            dcp.save(make_state(value), storage_writer=writer)


def load(location: str, **options: Any) -> int:
    """Load on all ranks; return the value that each element of the checkpoint tells."""
    with quiet():
        state = make_state(-1)
        dcp.load(state, storage_reader=ZarrfeedReader(location, **options))
        return value_of(state)


def load_alone(location: str, **options: Any) -> int:
    """Load in one process, whole tensors."""
    state: dict[str, Any] = {
        "sharded": torch.zeros(ROWS, COLUMNS, dtype=torch.float64),
        "columns": torch.zeros(ROWS, COLUMNS, dtype=torch.float64),
        "replicated": torch.zeros(10, dtype=torch.int64),
        "step": -1,
    }
    with quiet():
        dcp.load(state, storage_reader=ZarrfeedReader(location, **options), no_dist=True)
    return value_of(state)


def save_and_fail(location: str, value: int, rank: int, how: str) -> str:
    """Save, while one rank fails after it wrote a part of its object; return what the save raised here."""
    write, written = _LocalSink.write, 0

    def failing(self: _LocalSink, data: Any) -> None:
        nonlocal written
        written += 1
        if written > 2:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StoreWriteError(5, "this rank's disk is broken")
        write(self, data)

    if dist.get_rank() == rank:
        _LocalSink.write = failing  # type: ignore[method-assign]
    try:
        save(location, value)
    except BaseException as error:  # noqa: BLE001 (the test looks at it)
        return f"{type(error).__name__}: {error}"
    finally:
        _LocalSink.write = write  # type: ignore[method-assign]
    return ""


def load_while_it_is_replaced(location: str) -> str:
    """Load; after the first rank read the manifest, and before the second does, a save ends."""

    class Late(ZarrfeedReader):
        def read_metadata(self) -> Any:
            found = super().read_metadata() if dist.get_rank() == 0 else None
            dist.barrier()
            if dist.get_rank() == 0:
                dcp.save({"step": 2}, storage_writer=ZarrfeedWriter(location), no_dist=True)
            dist.barrier()
            return super().read_metadata() if found is None else found

    with quiet():
        state: dict[str, Any] = {"step": -1}
        try:
            dcp.load(state, storage_reader=Late(location))
        except BaseException as error:  # noqa: BLE001 (torch's is of no other class; the test looks at it)
            return str(error)
    return f"loaded {state['step']}"


def read_and_save(store: str, location: str, steps: int) -> list[list[int]]:
    """Read some batches, and save model and position; return the samples of each batch."""
    loader = make_loader(store)
    batches = []
    for _, (_, index) in zip(range(steps), loader, strict=False):
        batches.append(index.tolist())
    with quiet():
        state = make_state(steps) | {"loader": LoaderState(loader)}
        dcp.save(state, storage_writer=ZarrfeedWriter(location))
    return batches


def load_and_read(store: str, location: str) -> tuple[int, list[list[int]]]:
    """Load model and position, and read the rest of the epoch."""
    loader = make_loader(store)
    with quiet():
        state = make_state(-1) | {"loader": LoaderState(loader)}
        dcp.load(state, storage_reader=ZarrfeedReader(location))
    return value_of(state), [index.tolist() for _, index in loader]


def make_loader(store: str) -> ZarrDataLoader:
    """Return a loader whose global batches have 12 samples."""
    batch_size = 12 // dist.get_world_size()
    dataset = ZarrIterableDataset(store, batch_size=batch_size, shuffle=True, seed=3, return_index=True, num_threads=1)
    return ZarrDataLoader(dataset)
