"""Observations of a configuration: for each aspect a text.

The texts are the same in every process and on every machine, as far as the configuration's own program is.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import json
import os
import pickle
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import torch
import torch.utils.data
import xarray as xr
import zarr

import zarrfeed as zf
from recording.boundary import Boundary
from recording.canonical import numbers_of, render, walk, without_addresses
from recording.stores import Maker
from recording.workers import play_worker
from zarrfeed import device, objects
from zarrfeed.compat import zarrdataset

#: Aspects in the order of a line of the record. A difference in one of `WORDS` is reported, and is no failure.
ASPECTS = (
    "program",
    "refused",
    "data",
    "order",
    "state",
    "batches",
    "resume",
    "numbers",
    "memory",
    "decodes",
    "page",
    "core",
    "words",
)
WORDS = ("words",)
_BATCHES, _LATER, _SAID = 20, 5, "said"
_MEMORY = ("memory", "max_open_batches", "plan_bytes")
_DECODES = ("chunk_reads", "reads_by_array", "amplification", "decodes", "sharing", "resumed", "shuffling")
#: Figures of some layouts, and what they are for others: then they are not taken down, so that older records stay.
_OF_SOME = {"slab_rows": "0", "reads_slabs": "False", "decoded_share": "1.0"}
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "SLURM_",
    "MASTER_",
    "JOB_COMPLETION",
    "TORCHELASTIC",
    "ACCELERATE",
)


#: Modules that are imported when they are first needed: once for all processes is cheaper.
_LATE = ("PIL.Image", "PIL.PngImagePlugin", "xarray.backends.zarr", "zarr.codecs.numcodecs", "rich.progress")


@dataclass
class Observation:
    """The observations of one configuration.

    Attributes
    ----------
    folder
        The folder of its stores, which no text has.
    texts
        Aspect -> lines.
    refusals
        (where, class, text) of each error.
    saved
        A state as it was saved, and the lines of the batches that come after it; None if none was saved.
    failed
        The traceback of an error that is no refusal: a fault of the tool, of the program, or of the package.
    """

    folder: Path
    texts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    refusals: list[tuple[str, str, str]] = field(default_factory=list)
    saved: tuple[str, list[str]] | None = None
    failed: str = ""

    def say(self, aspect: str, name: str, value: Any) -> None:
        """Add a line."""
        self.texts[aspect].append(self.clean(f"{name}: {value if isinstance(value, str) else render(value)}"))

    def clean(self, text: str) -> str:
        """Return a text without what differs from run to run: paths, and addresses in memory."""
        return without_addresses(text, self.folder)

    @contextmanager
    def refusing(self, where: str) -> Iterator[None]:
        """Take down an error of the package, and go on behind the block."""
        try:
            yield
        except (zf.ZarrfeedError, IndexError, TypeError, AttributeError) as error:
            if not isinstance(error, zf.ZarrfeedError | IndexError):
                self.failed = self.failed or traceback.format_exc()
            self.refusals.append((where, type(error).__name__, self.clean(str(error))))


@functools.cache
def prepared() -> Boundary:
    """Import everything, let this process see a machine of 4 cores, and record what goes to the engine from now on.

    The machine has 4 GiB, no accelerator and no launcher. Processes that are forked later have all this.
    """
    for module in (zf, objects, device):
        for name in module.__all__:
            getattr(module, name)
    for name in _LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in [name for name in os.environ if name.startswith(_LAUNCHERS)]:  # of Slurm's, the memory of a job, too
        del os.environ[name]
    real = os.sysconf
    fixed = {"SC_PHYS_PAGES": (4 << 30) // real("SC_PAGE_SIZE")}
    os.sysconf = lambda name: fixed[name] if name in fixed else real(name)
    os.sched_getaffinity = lambda _=0: {0, 1, 2, 3}  # type: ignore[misc]
    os.cpu_count = lambda: 4
    torch.cuda.is_available = lambda: False
    if hasattr(torch, "accelerator"):
        torch.accelerator.is_available = lambda: False
    torch.set_num_threads(1)
    boundary = Boundary()
    boundary.install()
    return boundary


def observe(program: str, folder: Path, saved: str | None = None) -> Observation:
    """Run a program in an empty folder, and look at what comes of it.

    Parameters
    ----------
    program
        The program of a configuration.
    folder
        Where its stores are made.
    saved
        A state that an earlier commit saved: the configuration then goes on from it.
    """
    seen = Observation(folder)
    boundary = prepared()
    boundary.forget()
    seen.say("program", "text", program)
    space: dict[str, Any] = {
        "zf": zf,
        "objects": objects,
        "np": np,
        "torch": torch,
        "xr": xr,
        "zarr": zarr,
        "pickle": pickle,
        "obstore": obstore,
        "device": device,
        "zarrdataset": zarrdataset,
        "make": Maker(folder),
        "env": lambda **names: os.environ.update({name: str(value) for name, value in names.items()}),
    }
    with (
        redirect_stdout(io.StringIO()),  # which is no terminal, wherever the tool runs
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        try:
            with seen.refusing("program"):
                exec(program, space)
                look = _look_at_samples if "asked" in space else _look_at_stream
                _look_at_data(seen, space["data"])
                look(seen, space, saved)
        except Exception:  # noqa: BLE001 - of whatever class: it is told to the person who runs the tool
            seen.failed = traceback.format_exc()
    for text in sorted({f"{one.category.__name__}: {one.message}" for one in caught}):
        seen.say("words", "warning", text)
    seen.texts["core"].append(seen.clean(boundary.text()))
    for where, kind, text in seen.refusals:
        seen.say("refused", where, kind)
        seen.say(_SAID, where, text)
    return seen


def _look_at_data(seen: Observation, data: Any) -> None:
    """Look at a description."""
    seen.say("data", "len", len(data))
    seen.say("words", "repr", repr(data))
    if not isinstance(data, zf.Data):
        return
    for info in data.fields:
        seen.say("data", "field", [info.name, info.shape, str(info.dtype)])
    seen.say("data", "channels", data.channels)
    seen.say("data", "categories", data.categories)
    seen.say("data", "stores", len(data.stores))
    indices = np.array([0, len(data) // 2, len(data) - 1])
    for name in ("locate", "source_of"):
        with suppress(zf.ZarrfeedError, IndexError):
            seen.say("data", name, getattr(data, name)(indices))


def _look_at_stream(seen: Observation, space: dict[str, Any], saved: str | None) -> None:
    """Look at a dataset that delivers its samples as a stream, and at what goes on from its states."""
    make, load = space["dataset"], space.get("loader", lambda dataset: dataset)
    stops: tuple[int, ...] = space.get("stops", ())
    states: dict[str, dict[str, Any]] = {}
    with make() as dataset:
        _explain(seen, "explain", dataset)
        _look_at_orders(seen, space, dataset)
        seen.say("words", "repr", repr(dataset))
        with seen.refusing("len"):
            seen.say("data", "batches", len(dataset))
        loader = load(dataset)
        states["begin"] = loader.state_dict()
        with seen.refusing("batches"):
            for number, batch in enumerate(_few(loader, _BATCHES + 1), 1):
                seen.say("batches", str(number), batch)
                if number in stops:
                    states[f"batch {number}"] = loader.state_dict()
        states["end"] = loader.state_dict()
        if "between" in space:
            with seen.refusing("between"):
                space["between"](dataset)
                _explain(seen, "explain again", dataset)
        with seen.refusing("next epoch"):
            if "jump" in space:
                loader.set_epoch(space["jump"])
            for number, batch in enumerate(_few(loader, _LATER), 1):
                seen.say("batches", f"next {number}", batch)
            states["next"] = loader.state_dict()
        seen.say("batches", "skipped", sorted((one.field, one.key, one.epoch) for one in dataset.skipped_chunks()))
    for name, state in states.items():
        seen.say("state", name, json.dumps(state, sort_keys=True))
    for name, state in states.items():
        _resume(seen, space, name, state)
    _look_at_workers(seen, space)
    if "results" in space:
        with seen.refusing("results"), make() as dataset:
            seen.say("batches", "results", space["results"](dataset))
    chosen = next((name for name in states if name.startswith("batch")), "begin")
    state = states[chosen] if saved is None else json.loads(saved)
    seen.saved = json.dumps(states[chosen], sort_keys=True), _go_on(seen, space, make, "saved", state)


def _look_at_orders(seen: Observation, space: dict[str, Any], dataset: Any) -> None:
    """Look at the orders of epochs on this rank, and of one epoch on all ranks."""
    for epoch in (0, 1, 7):
        with seen.refusing(f"order of epoch {epoch}"):
            seen.say("order", f"epoch {epoch}", dataset.sample_order(epoch))
    if space["dataset"].__defaults__:
        for rank in range(6):
            try:
                other = space["dataset"](rank)
            except zf.ZarrfeedError:
                break
            with seen.refusing(f"order of rank {rank}"), other:
                seen.say("order", f"rank {rank}", other.sample_order(2))


def _resume(seen: Observation, space: dict[str, Any], name: str, state: dict[str, Any]) -> None:
    """Go on from a state, on the same setup and on the other one that the program has."""
    for setup in ("dataset", "resumed"):
        if setup not in space:
            continue
        lines = _go_on(seen, space, space[setup], f"{setup} from {name}", state, explains=name.startswith("batch"))
        seen.texts["resume"] += [f"{setup} from {name}: {line}" for line in lines]


def _go_on(
    seen: Observation, space: dict[str, Any], make: Callable[[], Any], where: str, state: Any, *, explains: bool = False
) -> list[str]:
    """Load a state, and return the lines of what comes then."""
    lines: list[str] = []
    load = space.get("loader", lambda dataset: dataset)
    with seen.refusing(where), make() as dataset:
        loader = load(dataset)
        loader.load_state_dict(state)
        lines.append(json.dumps(loader.state_dict(), sort_keys=True))
        if explains:
            _explain(seen, f"explain {where}", dataset)
        lines += [seen.clean(render(batch)) for batch in _few(loader, _LATER)]
        lines.append(json.dumps(loader.state_dict(), sort_keys=True))
    if where.startswith("resumed from batch") and len(lines) > 1:  # and back: what several setups used up
        back = _go_on(seen, space, space["dataset"], f"back, {where}", json.loads(lines[-1]))
        lines += [f"back: {line}" for line in back]
    return lines


def _look_at_workers(seen: Observation, space: dict[str, Any]) -> None:
    """Play the workers of a DataLoader, one after another."""
    for worker in range(space.get("workers", 0)):
        with seen.refusing(f"worker {worker}"), space["dataset"]() as dataset:
            for number, batch in enumerate(play_worker(dataset, worker, space["workers"], _LATER), 1):
                seen.say("batches", f"worker {worker} {number}", batch)


def _look_at_samples(seen: Observation, space: dict[str, Any], _: str | None) -> None:
    """Look at a dataset that delivers samples by index."""
    dataset = space["dataset"]()
    n = len(dataset)
    seen.say("data", "samples", n)
    seen.say("words", "repr", repr(dataset))
    for one in (0, -1, n // 2, n):
        with seen.refusing(f"sample {one - n if one == n else one}"):
            seen.say("batches", f"sample {one}", dataset[one])
    for shares in space["asked"]:
        indices = [int(share * n) for share in shares]
        with seen.refusing("samples"):
            seen.say("batches", f"samples {indices}", dataset[indices])
    if "loader" in space:
        with seen.refusing("loader"):
            for number, batch in enumerate(_few(space["loader"](dataset), _BATCHES), 1):
                seen.say("batches", f"loader {number}", batch)


def _few(batches: Any, most: int) -> Iterator[Any]:
    """Return the first batches, and leave the pass."""
    iterator = iter(batches)
    yield from itertools.islice(iterator, most)
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _explain(seen: Observation, name: str, dataset: Any) -> None:
    """Take down the figures of an explanation, and its words."""
    with seen.refusing(name):
        explanation = dataset.explain()
        for key, figure in walk(explanation, clean=seen.clean):
            parts = set(key.replace("[", ".").split("."))
            if any(figure == _OF_SOME.get(part) for part in parts):
                continue
            kind = "memory" if parts & set(_MEMORY) or key.startswith(_MEMORY) else "numbers"
            kind = "decodes" if parts & set(_DECODES) else kind
            seen.say(kind, f"{name} {key}", figure)
        for attribute in ("num_threads", "memory_bytes"):
            if hasattr(explanation, attribute):
                seen.say("memory", f"{name} {attribute}", getattr(explanation, attribute))
        page = seen.clean(str(explanation))
        seen.say("page", name, numbers_of(page))
        seen.say("words", name, page)
