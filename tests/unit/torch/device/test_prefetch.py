"""`zarrfeed.device.prefetch`: batches in order, on a device whose copies end late, and nothing reused before that."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import zarrfeed.device
import zarrfeed.torch.device.prefetch
from tests.support.batch_types import Pair, Sample
from tests.support.late_device import LateDevice
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.device import DeviceLoader, prefetch
from zarrfeed.torch.batches.tensors import expect_sparse_tensors
from zarrfeed.torch.device.transfers import DeviceStreams, map_tensors

pytestmark = pytest.mark.timeout(60)


class Recycling:
    """A loader that writes the next batch to the memory of one that nobody has any more, as fast loaders do."""

    def __init__(self, batches: int, rows: int = 4) -> None:
        self._count, self._rows = batches, rows
        self.memory: list[Any] = []
        self._free: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self._count):
            if not self._free:
                self._free.append(len(self.memory))
                self.memory.append(np.empty(self._rows, "i8"))
            which = self._free.pop()
            self.memory[which][:] = number
            tensor = torch.from_numpy(self.memory[which])
            weakref.finalize(tensor, self._recycle, which)
            yield tensor
            del tensor

    def _recycle(self, which: int) -> None:
        self.memory[which][:] = -99
        self._free.append(which)


class HasState:
    """A loader that counts what it handed out."""

    def __init__(self, batches: int) -> None:
        self.batches, self.begin, self.next = batches, 0, 0
        self.epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.next, self.begin = self.begin, 0
        while self.next < self.batches:
            self.next += 1
            yield torch.tensor([self.next - 1])

    def __len__(self) -> int:
        return self.batches

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["next"]


def on(device: LateDevice, loader: Any, ahead: int = 1 << 20) -> DeviceLoader:
    return DeviceLoader(loader, torch.device("cuda"), ahead, device)  # type: ignore[arg-type]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "zarrfeed-prefetch"]


@pytest.mark.parametrize("lag", [0, 1, 3, 100])
def test_what_a_copy_reads_is_not_written_before_the_copy_ended(lag: int) -> None:
    device, loader = LateDevice(), Recycling(50)
    there = []
    for number, batch in enumerate(on(device, loader)):
        there.append(batch)
        device.run(min(device.given, max(0, number - lag)))
    device.run(device.given)
    assert [batch.tolist() for batch in there] == [[number] * 4 for number in range(50)]
    if lag <= 3:
        assert len(loader.memory) < 45  # what was copied was let go of, and recycled


def test_the_fakes_would_show_memory_that_is_recycled_too_early() -> None:
    device, loader = LateDevice(), Recycling(4)
    there = []
    for batch in loader:
        with device.copying():
            there.append(device.copy(batch))
        del batch
    device.run(device.given)
    assert [one.tolist() for one in there] != [[number] * 4 for number in range(4)]


def test_the_consumer_joins_each_batch_with_all_of_its_tensors_before_it_has_it() -> None:
    device = LateDevice()
    batches = [{"x": torch.full((2,), n), "y": [torch.full((3,), n), "text"]} for n in range(5)]
    for number, batch in enumerate(on(device, batches)):
        assert len(device.joined) == number + 1
        assert {id(batch["x"]), id(batch["y"][0])} == device.joined[-1]
        assert batch["y"][1] == "text"


@pytest.mark.parametrize(
    ("ahead", "most"), [(1, 1), (32 * 3, 3), (1 << 20, 16)], ids=["one at least", "by bytes", "by number"]
)
def test_it_is_ahead_by_so_many_bytes(ahead: int, most: int) -> None:
    taken = 0
    arrived = threading.Condition()

    def loader() -> Iterator[torch.Tensor]:
        nonlocal taken
        for number in range(40):
            with arrived:
                taken += 1
                arrived.notify_all()
            yield torch.full((4,), number)  # 32 bytes

    def is_taken(wanted: int) -> bool:
        return taken == wanted

    batches = iter(on(LateDevice(), loader(), ahead))
    for number in range(20):
        next(batches)
        wanted = min(40, number + 1 + most)
        with arrived:  # the thread goes as far as it may, and no farther
            assert arrived.wait_for(partial(is_taken, wanted), 10), taken
    assert len(list(batches)) == 20


def test_the_state_is_that_of_the_batch_that_was_handed_out() -> None:
    loader = HasState(30)
    copied = on(LateDevice(), loader)
    assert len(copied) == 30
    assert copied.state_dict() == {"next": 0}
    for number, batch in enumerate(copied):
        assert batch.shape == (1,)
        assert copied.state_dict() == {"next": number + 1}
        if number == 6:
            break
    assert loader.next > 7  # the thread was ahead
    state = copied.state_dict()
    copied.load_state_dict(state)
    device = LateDevice()
    rest = list(on(device, loader))
    device.run(device.given)
    assert [batch.item() for batch in rest] == list(range(7, 30))


def test_neither_a_look_at_another_pass_nor_the_next_epoch_moves_the_state_of_a_pass_under_way() -> None:
    copied = on(LateDevice(), HasState(30))
    batches = iter(copied)
    for _ in range(5):
        next(batches)
    for _ in copied:
        break
    assert copied.state_dict() == {"next": 5}
    copied.set_epoch(1)
    assert copied.state_dict() == {"next": 5}


def test_a_zarr_loader_goes_on_exactly_where_the_step_was() -> None:
    def make() -> ZarrDataLoader:
        return ZarrDataLoader(ZarrIterableDataset(np.arange(1000), batch_size=10, shuffle=True, seed=4))

    device, whole = LateDevice(), [batch.tolist() for batch in make()]
    copied, got = on(device, make()), []
    for batch in copied:
        got.append(batch)
        if len(got) == 13:
            state = copied.state_dict()
            break
    again = on(device, make())
    again.load_state_dict(state)
    got += list(again)
    device.run(device.given)
    assert [batch.tolist() for batch in got] == whole
    again.set_epoch(1)
    second = list(again)
    device.run(device.given)
    assert sorted(np.concatenate(second).tolist()) == list(range(1000))
    assert [batch.tolist() for batch in second] != whole


@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_of_the_loader_comes_after_the_batches_before_it(at: int) -> None:
    def loader() -> Iterator[torch.Tensor]:
        for number in range(at):
            yield torch.tensor(number)
        raise LookupError("chunk 7")

    got, device = list[torch.Tensor](), LateDevice()
    with pytest.raises(LookupError, match="chunk 7"):
        got.extend(on(device, loader()))
    device.run(device.given)
    assert [batch.item() for batch in got] == list(range(at))
    assert threads() == []


def test_breaking_off_ends_the_thread_and_the_loader() -> None:
    ended = []

    def loader() -> Iterator[torch.Tensor]:
        try:
            while True:
                yield torch.zeros(2)
        finally:
            ended.append(True)

    batches = iter(on(LateDevice(), loader()))
    next(batches)
    assert threads() == ["zarrfeed-prefetch"]
    batches.close()  # type: ignore[attr-defined]
    assert threads() == []
    assert ended == [True]


def test_copies_under_way_have_ended_when_a_pass_ends() -> None:
    device = LateDevice()
    batches = iter(on(device, [torch.full((2,), n) for n in range(9)]))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert device.done == device.given > 0


def test_the_thread_waits_for_the_copies_of_a_loader_that_does_not_let_go_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass ends without it, and the loader returns another batch later."""
    monkeypatch.setattr(zarrfeed.torch.device.prefetch, "_TIMEOUT_S", 0.05)
    is_inside, may_return = threading.Event(), threading.Event()

    def loader() -> Iterator[torch.Tensor]:
        yield torch.zeros(2)
        yield torch.ones(2)
        is_inside.set()
        assert may_return.wait(240)
        yield torch.ones(2)

    device = LateDevice()
    batches = iter(on(device, loader()))
    next(batches)
    assert is_inside.wait(240)
    thread = next(one for one in threading.enumerate() if one.name == "zarrfeed-prefetch")
    batches.close()  # type: ignore[attr-defined]
    assert thread.is_alive()
    assert device.done == 1, "the batch that was handed out"
    may_return.set()
    thread.join(240)
    assert not thread.is_alive()
    assert device.done == device.given == 3


def test_a_loader_without_batches_has_none() -> None:
    assert list(on(LateDevice(), [])) == []
    assert threads() == []


def test_batches_of_any_shape_are_rebuilt_of_copies() -> None:
    x = torch.arange(3)
    expect_sparse_tensors()
    csr = torch.eye(3).to_sparse_csr()
    batch = [{"a": (x, "text")}, Pair(x, 5), Sample(x, "b"), OrderedDict(c=x), csr, torch.eye(2).to_sparse(), None]
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    twice = (x * 2).tolist()
    assert doubled[0]["a"][0].tolist() == twice
    assert doubled[0]["a"][1] == "text"
    assert isinstance(doubled[1], Pair)
    assert (doubled[1].x.tolist(), doubled[1].name) == (twice, 5)
    assert isinstance(doubled[2], Sample)
    assert (doubled[2].x.tolist(), doubled[2].name) == (twice, "b")
    assert type(doubled[3]) is OrderedDict
    assert doubled[3]["c"].tolist() == twice
    assert doubled[4].crow_indices().tolist() == [0, 2, 4, 6]  # each part is copied
    assert doubled[5] is batch[5]
    assert doubled[6] is None
    assert x.tolist() == [0, 1, 2]


class Recorded:
    """An event, or a stream, that says what is asked of it."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def record(self, stream: str) -> None:
        self._said.append(("record", stream))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        self._said.append(("wait", type(event).__name__))


def api_that_says(said: list[Any]) -> SimpleNamespace:
    """Return a module of a device, such as torch.cuda, that says what it is asked."""

    @contextlib.contextmanager
    def stream(which: str) -> Iterator[None]:
        said.append(("enter", which))
        yield
        said.append(("exit", which))

    return SimpleNamespace(
        Stream=lambda _: "copies",
        stream=stream,
        current_stream=lambda _: Recorded(said),
        Event=lambda: Recorded(said),
        _is_in_bad_fork=lambda: False,
    )


def test_streams_of_a_device_are_asked_in_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(torch, "get_device_module", lambda _: api_that_says(said))

    def to(tensor: torch.Tensor, _device: Any, *, non_blocking: bool) -> torch.Tensor:
        said.append(non_blocking)
        return tensor

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        said.append("pin")
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: said.append(type(stream).__name__))
    loader = prefetch([(torch.zeros(2), torch.ones(1))], "cuda", ahead="1MiB")
    assert isinstance(loader._streams, DeviceStreams)
    assert len(list(loader)) == 1
    copied = ["pin", True, "pin", True, ("record", "copies")]
    assert said == [
        ("enter", "copies"),
        *copied,
        ("exit", "copies"),
        ("wait", "Recorded"),  # before the tensors are the consumer's
        "Recorded",
        "Recorded",
    ]


def test_on_a_cpu_batches_are_the_loaders_own() -> None:
    batches = [torch.zeros(2), {"x": torch.ones(1)}]
    loader = prefetch(batches, "cpu")
    for batch, same in zip(loader, batches, strict=True):
        assert batch is same
    assert threads() == []
    assert "DeviceLoader" in repr(loader)
    assert zarrfeed.device.prefetch is prefetch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, "cpu"), "loader: got a int, must be an iterable of batches"),
        (([], "nonsense"), "device = 'nonsense'"),
        (([], None), "device = None"),
        (([], "cpu", "many"), "ahead"),
    ],
)
def test_bad_arguments_are_told(arguments: tuple[Any, ...], message: str) -> None:
    options = {"ahead": arguments[2]} if len(arguments) > 2 else {}
    with pytest.raises(ConfigError, match=message):
        prefetch(*arguments[:2], **options)


def test_a_loader_without_state_or_length_says_so() -> None:
    loader = prefetch(iter([]), "cpu")
    with pytest.raises(ConfigError, match=r"has no state_dict\(\)"):
        loader.state_dict()
    with pytest.raises(TypeError, match="has no len"):
        len(loader)
