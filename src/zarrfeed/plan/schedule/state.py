"""`state_dict()`: how far an epoch is, and what its order depends on; JSON, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.mixture.mixed_order import MixedOrder, SourceLanes
from zarrfeed.plan.order.block_order import MOST_BLOCKS
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.patches.sweep import Sweep
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.shares.affinity import Part
from zarrfeed.plan.shares.partition import EVEN_MODES, Consumer, Division
from zarrfeed.plan.shares.progress import Cut, Progress, whole_number
from zarrfeed.plan.shares.runs import RunCut, RunDivision
from zarrfeed.spec.field import Field, described_dtype, window_of
from zarrfeed.spec.version import Version

#: Version 1 has no "run": what was used up is all in "used".
VERSION = 2
#: The version of states that name "combs", which earlier releases would overlook.
_WITH_COMBS = 3
_READABLE = (1, VERSION, _WITH_COMBS)
_MOST_STRATA = 1 << 16


@dataclass(frozen=True)
class WorkerShare:
    """How far one DataLoader worker came with its share, for loaders that save every worker by itself."""

    consumer: Consumer
    batch_size: int
    batches: int


@dataclass(frozen=True)
class SavedRun:
    """A run that was saved before its end: how it shared out what was left, and the batches that each rank has had."""

    division: Division | RunDivision
    batches: int

    @property
    def cut(self) -> Cut | RunCut:
        """What the run used up."""
        return self.division.cut(self.batches)

    def to_json(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        json = {**asdict(self.division), "batches": self.batches}
        json.pop("repeats_last", None)
        for name in ("long_nodes", "whole_batches"):
            if not json.get(name, True):
                del json[name]
        return json

    @classmethod
    def from_json(cls, json: Mapping[str, Any], found: int) -> SavedRun:
        """Return the run that `to_json` described, which found so many positions.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        if "block_rows" in json:
            cut = RunCut.from_json(json, found)
            return cls(cut.division, cut.batches)
        json = dict(json)
        batches, even, drop_last = whole_number(json.pop("batches")), json.pop("even"), json.pop("drop_last")
        if even not in EVEN_MODES:
            raise ValueError(f"even = {even!r}, must be one of {EVEN_MODES}")
        whole_batches = json.pop("whole_batches", False)
        for name, flag in (("drop_last", drop_last), ("whole_batches", whole_batches)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} = {flag!r}, must be a bool")
        length = whole_number(json.pop("length"), found + 1)
        counts: dict[str, Any] = {name: whole_number(value, least=1) for name, value in json.items()}
        flags = {"drop_last": drop_last, "whole_batches": whole_batches, "repeats_last": False}
        division = Division(length=length, even=even, **flags, **counts)
        run = cls(division, batches)
        if batches > run.division.batches(0):
            raise ValueError(f"{batches} batches were delivered, of {run.division.batches(0)}")
        return run


@dataclass(frozen=True)
class EpochState:
    """Where a pass begins, or stands.

    Attributes
    ----------
    epoch
        Its number.
    progress
        Which positions of its epoch order earlier runs used up.
    run
        The run that was saved. A pass with the same ranks, workers and batches continues its division; for another
        pass, what it used up joins `progress`. None: no batch has been delivered since `progress`.
    lanes, mix, strip, combs, first_block, short_last
        Of its epoch order. None: no position is used up, and the pass that begins here decides.
    worker
        In a DataLoader worker: how much of the worker's share is used up beyond `progress` and `run`.
    version
        What of a store that grows the epoch reads. None: the store does not grow, or the pass that begins here looks.
    offsets
        Of the windows of the epoch, by the names of arrays. None: those that the dataset was made with.
    sources
        Lanes, mix and strip of each source of a mixture, in place of those above; they hold for later epochs, too.
        None: the pass that begins here decides.
    unit
        Steps in a row that are of one source of a mixture, in later epochs, too.
    sweep
        Of patches: the columns in which they are read.
    nodes
        Nodes that samples are dealt to. `progress`, `run` and the numbers of the epoch order are those of each of them.
    """

    epoch: int
    progress: Progress = field(default_factory=Progress)
    lanes: int | None = None
    first_block: int = 0
    worker: WorkerShare | None = None
    mix: int | None = None
    run: SavedRun | None = None
    short_last: bool = False
    strip: int = 1
    version: Version | None = None
    nodes: int = 1
    combs: int = 0
    offsets: Mapping[str, Any] | None = None
    sources: tuple[SourceLanes, ...] | None = None
    unit: int = 1
    sweep: Sweep | None = None

    @property
    def used(self) -> int:
        """How many positions of the epoch order are used up."""
        return self.progress.used + (0 if self.run is None else self.run.cut.used)

    @property
    def batches(self) -> int:
        """Batches of the saved run that each rank has had."""
        return 0 if self.run is None else self.run.batches

    def following(self) -> EpochState:
        """Return the state in which the next epoch begins."""
        return self.at_epoch(self.epoch + 1)

    def at_epoch(self, epoch: int) -> EpochState:
        """Return the state in which another epoch begins: with what lasts longer than an epoch."""
        return EpochState(epoch, offsets=self.offsets, sources=self.sources, unit=self.unit)

    def for_division(self, division: Division | RunDivision) -> EpochState:
        """Return the same state for a pass that would share out by `division` what earlier runs left."""
        if self.run is None or division == self.run.division:
            return self
        return replace(self, progress=self.progress.then(self.run.cut), run=None)

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object; what is absent has its default."""
        json: dict[str, Any] = {"epoch": self.epoch}
        if self.version is not None:
            json["store"] = self.version.to_json()
        if self.offsets is not None:
            json["offsets"] = dict(self.offsets)
        if self.lanes is not None:
            json |= {"used": self.progress.to_lists(), "lanes": self.lanes, "first_block": self.first_block}
        if self.mix is not None:
            json["mix"] = self.mix
        if self.short_last:
            json["short_last"] = True
        if self.run is not None:
            json["run"] = self.run.to_json()
        if self.strip != 1:
            json["strip"] = self.strip
        if self.combs:
            json["combs"] = self.combs
        if self.nodes != 1:
            json["nodes"] = self.nodes
        if self.sources is not None:
            json["sources"] = [list(one) for one in self.sources]
        if self.unit != 1:
            json["unit"] = self.unit
        if self.sweep is not None:
            json["sweep"] = {name: value for name, value in asdict(self.sweep).items() if value is not None}
        if self.worker is not None:
            c = self.worker.consumer
            json["worker"] = {
                "rank": c.rank,
                "world_size": c.world_size,
                "worker": c.worker,
                "num_workers": c.num_workers,
                "batch_size": self.worker.batch_size,
                "batches": self.worker.batches,
            } | ({"node": c.node} if c.node else {})
        return json

    @classmethod
    def from_json(cls, json: Mapping[str, Any], length: int) -> EpochState:
        """Return the state that `to_json` described, of an epoch order of `length` positions.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        epoch = whole_number(json["epoch"], 2**63)
        version, offsets = version_in(json), json.get("offsets")
        if "lanes" not in json:
            unit = whole_number(json.get("unit", 1), least=1)
            return cls(epoch, version=version, offsets=offsets, sources=_sources_in(json), unit=unit)
        worker = None
        if "worker" in json:
            share = {name: whole_number(value) for name, value in json["worker"].items()}
            batch_size, batches = share.pop("batch_size"), share.pop("batches")
            worker = WorkerShare(Consumer(is_gathered=False, **share), batch_size, batches)
        progress = Progress.from_lists(json["used"], length, RunCut.from_json)
        return cls(
            epoch=epoch,
            progress=progress,
            run=SavedRun.from_json(json["run"], length - progress.used) if "run" in json else None,
            lanes=whole_number(json["lanes"]),
            first_block=whole_number(json["first_block"]),
            worker=worker,
            short_last=bool(json.get("short_last", False)),
            mix=whole_number(json["mix"]) if "mix" in json else None,
            strip=whole_number(json.get("strip", 1)),
            version=version,
            nodes=whole_number(json.get("nodes", 1), least=1),
            combs=whole_number(json.get("combs", 0), _MOST_STRATA + 1),
            offsets=offsets,
            sources=_sources_in(json),
            unit=whole_number(json.get("unit", 1), least=1),
            sweep=_sweep_in(json),
        )


def _sweep_in(json: Mapping[str, Any]) -> Sweep | None:
    if "sweep" not in json:
        return None
    of = dict(json["sweep"])
    lengths = [tuple(whole_number(one, least=1) for one in of.pop(name)) for name in ("width", "unit")]
    others = {name: whole_number(value) for name, value in of.items()}
    try:
        return Sweep(width=lengths[0], unit=lengths[1], **others)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _sources_in(json: Mapping[str, Any]) -> tuple[SourceLanes, ...] | None:
    if "sources" not in json:
        return None
    return tuple(SourceLanes(*(whole_number(value, least=1) for value in one)) for one in json["sources"])


def version_in(json: Mapping[str, Any]) -> Version | None:
    """Return the version of a growing store that a state in its JSON form names; None if it names none.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it cannot be one.
    """
    return Version.from_json(json["store"]) if "store" in json else None


def make_state_dict(state: EpochState, part: Part, fields: Sequence[Field]) -> dict[str, Any]:
    """Return what `state_dict()` gives: the state, and what its epoch order depends on; the same on all nodes."""
    return {
        "version": _WITH_COMBS if state.combs else VERSION,
        **state.to_json(),
        **_describe_mixture(state, part.whole),
        "position": state.used,
        "order": _describe(part) | ({} if state.mix is None else {"mix": state.mix}),
        "layout": describe_layout(fields),
    }


def _describe_mixture(state: EpochState, order: Order) -> dict[str, Any]:
    """Return for people, of a mixture, the next step and which pass over each source comes next; nothing reads it.

    Where batches have one source, steps follow from the batches of all ranks, which are settled when a pass begins.
    """
    if not isinstance(order, MixedOrder) or (order.is_per_batch and state.lanes is None):
        return {}
    order = order.with_unit(state.unit)
    step = order.begin_of(state.epoch) + state.used
    return {"mixture": {"step": step, "epochs": [end.next_pass for end in order.source_ends(step)]}}


def read_state_dict(state: object, part: Part, fields: Sequence[Field], *, any_mix: bool = False) -> EpochState:
    """Return the state that a dict from `make_state_dict` holds; with `any_mix`, its mix may differ from the order's.

    Raises
    ------
    ConfigError
        If it is no such dict, or belongs to another epoch order; the message names what differs.
    """
    if not isinstance(state, Mapping) or state.get("version") not in _READABLE:
        raise ConfigError(f"got {_shortened(state)}, must be what state_dict() returned (version {VERSION})")
    theirs = state.get("order")
    order = _with_listed_digest(_describe(part), theirs, part.whole)
    is_of_earlier = isinstance(part.whole, MixedOrder) and _names_no_version(theirs)
    if is_of_earlier:
        order["mixture"] = {name: value for name, value in order["mixture"].items() if name != "version"}
    differences = [
        f"{name} was {was!r}, is {ours!r}"
        for about, described in (("order", order), ("layout", describe_layout(fields)))
        for name, was, ours in _compare(state.get(about), described)
        if not (any_mix and about == "order" and name == "mix")
    ]
    if differences:
        raise ConfigError(f"the state is of another dataset or order: {'; '.join(differences)}")
    try:
        made = EpochState.from_json(state, longest_in(state, part))
        if made.used != state["position"]:
            raise ValueError(f"position = {state['position']!r}, but {made.used} positions are used")
        if made.lanes is not None:  # states of earlier versions have the mix in their description alone
            mix = whole_number(state["order"]["mix"])
            if not 1 <= mix <= part.fewest_blocks:
                raise ValueError(f"mix = {mix}, must be in [1, {part.fewest_blocks}]")
            made = replace(made, mix=mix)
            if made.nodes != part.num_nodes:
                raise ValueError(f"nodes = {made.nodes}, must be {part.num_nodes}")
        if made.lanes is not None and not 1 <= made.lanes <= shortest_in(part):
            raise ValueError(f"lanes = {made.lanes}, must be in [1, {shortest_in(part)}]")
        if made.combs and (type(part.whole) is not Order or made.strip != 1 or not part.whole.shuffle):
            raise ValueError(f"combs = {made.combs} of blocks that are not permuted one by one")
        if not 1 <= made.strip <= part.fewest_blocks:
            raise ValueError(f"strip = {made.strip}, must be in [1, {part.fewest_blocks}]")
        if isinstance(part.whole, MixedOrder) and (made.lanes is not None or made.sources is not None):
            part.whole.check_sources(made.sources or ())
        if isinstance(part.whole, SweptOrder) and made.lanes is not None:
            dimensions = part.whole.epochs.tiling.num_dimensions
            if made.sweep is None or len(made.sweep.width) != dimensions:
                raise ValueError(f"sweep = {made.sweep} of patches with {dimensions} dimensions")
        if made.first_block >= part.fewest_blocks:
            raise ValueError(f"first_block = {made.first_block}, must be below {part.fewest_blocks}")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the state is damaged: {error!r}") from error
    if is_of_earlier and not part.whole.permutes_rows and made.epoch and made.sources is None:
        raise ConfigError(
            f"the state is of the beginning of epoch {made.epoch} of a mixture without shuffling, and an earlier "
            "release saved it: the samples of an epoch depended on the number of ranks and workers then, and the state "
            "does not name that number. If it was one rank without workers, the order is the same now: call "
            f"set_epoch({made.epoch}), and do not load the state. Else load a state of the middle of an epoch, or "
            "begin anew"
        )
    return made


def _names_no_version(described: object) -> bool:
    """Whether a description of a mixture's order is one of an earlier release."""
    mixture = described.get("mixture") if isinstance(described, Mapping) else None
    return isinstance(mixture, Mapping) and "version" not in mixture


def _with_listed_digest(described: dict[str, Any], theirs: object, order: Order) -> dict[str, Any]:
    """Return a description with the digest that earlier releases made of its selection, if a state has that one."""
    digest = theirs.get("select") if isinstance(theirs, Mapping) else None
    selection, is_read = order.selection, described.get("select") in (None, digest)
    if is_read or digest is None or selection is None or len(selection.held) > MOST_BLOCKS:
        return described
    return {**described, "select": selection.listed_digest}


def _describe(part: Part) -> dict[str, Any]:
    """Return what the epoch orders of all nodes depend on."""
    described = describe_order(part.whole)
    return described if part.num_nodes == 1 else {**described, "affinity": f"{part.num_nodes} nodes"}


def longest_in(json: Mapping[str, Any], part: Part) -> int:
    """Return the positions of the epoch order of a state in its JSON form.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it cannot be one.
    """
    if isinstance(part.whole, SweptOrder):
        return part.whole.epochs.length(whole_number(json["epoch"], 2**63))
    if not isinstance(part.whole, MixedOrder):
        return part.longest
    return part.whole.with_unit(whole_number(json.get("unit", 1), 2**40, least=1)).length


def shortest_in(part: Part) -> int:
    """Return how many lanes each epoch order of a part can have, at most."""
    return part.whole.epochs.shortest if isinstance(part.whole, SweptOrder) else part.shortest


def describe_order(order: Order) -> dict[str, Any]:
    """Return what the epoch order depends on, except for epoch and lanes, as JSON."""
    if isinstance(order, SweptOrder):
        return {"patches": order.epochs.describe(), "shuffle": order.shuffle, "seed": order.seed, "mix": order.mix}
    selection = order.selection
    digest, whole = (None, False) if selection is None else (selection.digest, selection.whole_blocks)
    return {
        "num_samples": order.num_samples,
        "block_rows": order.block_rows,
        "blocks": digest if whole else None,
        "select": None if whole else digest,
        "shuffle": order.shuffle,
        "seed": order.seed,
        "mix": order.mix,
        "shuffle_rows": order.shuffle_rows,
        "row_seed": order.row_seed,
    } | ({"mixture": order.describe()} if isinstance(order, MixedOrder) else {})


def describe_layout(fields: Sequence[Field]) -> dict[str, Any]:
    """Return shape and dtype of every field, and the offsets of its rows where samples are windows, as JSON."""
    return {
        f.name: [
            f.num_samples,
            *f.sample_shape,
            described_dtype(f),
            *([w.named] if (w := window_of(f)) else []),
            *([str(w.pad)] if w and w.pad else []),
        ]
        for f in fields
        if f.name != "index"
    }


def _compare(theirs: object, ours: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    if not isinstance(theirs, Mapping):
        return [("the description", _shortened(theirs), "an object")]
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [(n, theirs.get(n), ours.get(n)) for n in names if theirs.get(n) != ours.get(n)]


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
