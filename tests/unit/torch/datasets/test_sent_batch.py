"""`SentBatch`: a batch has the types that it has without workers, whatever torch does on the way."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data._utils.pin_memory import pin_memory

from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.torch.datasets.sent_batch import SentBatch

N = 40
Pair = namedtuple("Pair", "first second")


@pytest.fixture
def store(tmp_path: Path) -> str:
    zarr.create_array(tmp_path / "x", data=np.arange(4.0 * N).reshape(N, 4), chunks=(5, 4))
    return str(tmp_path / "x")


def large() -> np.ndarray[Any, Any]:
    return np.arange(1 << 14, dtype="f4").reshape(128, 128)


BATCHES: dict[str, Any] = {
    "a tensor": torch.arange(3),
    "a tuple": (torch.arange(3), torch.ones(2)),
    "a list": [torch.arange(3), "text"],
    "text": ["a", "b"],
    "arrays": (np.arange(3), {"n": np.float32(3), "s": np.array(["a", None], object)}),
    "large arrays": {"c": large(), "fortran": np.asfortranarray(large()), "big": large().astype(">f4")},
    "a view": large()[::2, ::-1],
    "times": np.arange(1 << 14).astype("M8[s]"),
    "a named tuple": Pair(np.arange(2), (1, None)),
    "an ordered dict": OrderedDict(a=large(), b=(torch.ones(1),)),
    "nested": ({"a": [(large(), torch.ones(2)), ()]}, None, 3.5, True),
}


def shown(value: Any) -> Any:
    """Return types and values, so that two batches can be compared."""
    if isinstance(value, dict):
        return type(value), {key: shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [shown(one) for one in value]
    if isinstance(value, np.ndarray | torch.Tensor):
        return type(value), str(value.dtype).replace(">f4", "float32"), tuple(value.shape), value.tolist()
    return type(value), value


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("pinned", [False, True])
def test_a_batch_arrives_as_it_was_sent(name: str, pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        copied.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    sent = pickle.loads(ForkingPickler.dumps(SentBatch(BATCHES[name])))
    pin_all: Any = pin_memory
    arrived = (pin_all(sent) if pinned else sent).received()
    assert shown(arrived) == shown(BATCHES[name])
    assert bool(copied) == (pinned and "tensor(" in str(BATCHES[name]))


def test_a_large_array_is_sent_in_shared_memory() -> None:
    array = large()
    assert len(ForkingPickler.dumps(SentBatch([array, array]))) < array.nbytes / 4
    read_only = large()
    read_only.flags.writeable = False
    assert shown(pickle.loads(ForkingPickler.dumps(SentBatch(read_only))).received()) == shown(read_only)


def to_numpy(x: torch.Tensor) -> Any:
    return x.numpy()


def to_both(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.numpy(), {"y": [y, np.float32(1)]}


@pytest.mark.parametrize(("arrays", "transform"), [(1, None), (2, None), (1, to_numpy), (2, to_both)])
def test_batches_have_the_same_types_with_any_number_of_workers(store: str, arrays: int, transform: Any) -> None:
    dataset = ZarrIterableDataset(*[store] * arrays, batch_size=8, transform=transform)
    expected = [shown(batch) for batch in dataset]
    for num_workers in (0, 1):
        for persistent in {False, num_workers > 0}:
            loader = ZarrDataLoader(
                dataset,
                num_workers=num_workers,
                multiprocessing_context="fork" if num_workers else None,
                persistent_workers=persistent,
            )
            for _ in range(1 + persistent):
                assert [shown(batch) for batch in loader] == expected, (num_workers, persistent)


def test_a_loader_that_a_library_makes_of_ours_hands_out_plain_batches(store: str) -> None:
    loader = ZarrDataLoader(ZarrIterableDataset(store, store, batch_size=8), num_workers=1)
    again = torch.utils.data.DataLoader(
        loader.dataset, batch_size=None, num_workers=1, collate_fn=loader.collate_fn, multiprocessing_context="fork"
    )
    assert {type(batch) for batch in again} == {tuple}
