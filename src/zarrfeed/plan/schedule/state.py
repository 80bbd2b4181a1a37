"""`state_dict()`: the progress in an epoch, and the terms that its order depends on; JSON, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.order_state import OrderState, whole_number
from zarrfeed.plan.shares.affinity import Part
from zarrfeed.plan.shares.partition import EVEN_MODES, Consumer, Division
from zarrfeed.plan.shares.progress import Cut, Progress
from zarrfeed.plan.shares.runs import RunCut, RunDivision
from zarrfeed.spec.description.edition import FIRST_REACHES, Edition
from zarrfeed.spec.fields.field import Field

#: Version 1 has no "run": "used" has all used positions.
VERSION = 2
#: The version of states that name "combs", which earlier releases would overlook.
_WITH_COMBS = 3
#: The version of states that name "slab_rows", which earlier releases would overlook as well.
_WITH_SLABS = 4
#: The version of states that name "carries_rows": earlier releases would read the epoch in another order.
_WITH_CARRIED_ROWS = 5
#: The version of states that name "strip_reaches": earlier releases would read later epochs in another order.
_WITH_LONG_STRIPS = 6
_READABLE = (1, VERSION, _WITH_COMBS, _WITH_SLABS, _WITH_CARRIED_ROWS, _WITH_LONG_STRIPS)
_MOST_STRATA = 1 << 16
_GAP_ADVICE = (
    ". Windows of this dataset heed gaps of the time, those of earlier releases did not: window(..., gaps='ignore') "
    "goes on with a state of such a release"
)


@dataclass(frozen=True)
class WorkerShare:
    """The progress of one DataLoader worker in its share, for loaders that save every worker by itself."""

    consumer: Consumer
    batch_size: int
    batches: int


@dataclass(frozen=True)
class SavedRun:
    """A run that was saved before its end: its division of the positions left, and the batches of each rank."""

    division: Division | RunDivision
    batches: int

    @property
    def cut(self) -> Cut | RunCut:
        """The positions that the run used up."""
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
        """Return the run that `to_json` described; it found `found` positions.

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
class EpochState(OrderState):
    """The begin of a pass, or its progress: the settled terms of its epoch order, and the positions that are used up.

    Attributes
    ----------
    progress
        The positions of its epoch order that earlier runs used up.
    run
        The run that was saved. A pass with the same ranks, workers and batches continues its division; for another
        pass, what it used up joins `progress`. None: no batch has been delivered since `progress`.
    worker
        The used part of the worker's share beyond `progress` and `run`, in a DataLoader worker.
    edition
        The data that the epoch reads, where they change between epochs.
    nodes
        Nodes that samples are dealt to. `progress`, `run` and the numbers of the epoch order are those of each of them.
    """

    progress: Progress = field(default_factory=Progress)
    worker: WorkerShare | None = None
    run: SavedRun | None = None
    edition: Edition = field(default_factory=Edition)
    nodes: int = 1

    @property
    def used(self) -> int:
        """Number of positions of the epoch order that are used up."""
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
        own = self.own if self.own is not None and self.own.lasts else None
        return EpochState(epoch, edition=self.edition.lasting, own=own)

    def for_division(self, division: Division | RunDivision) -> EpochState:
        """Return the state for a pass that would share out by `division` what earlier runs left."""
        if self.run is None or division == self.run.division:
            return self
        return replace(self, progress=self.progress.then(self.run.cut), run=None)

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object; absent entries have their defaults."""
        json: dict[str, Any] = {"epoch": self.epoch, **self.edition.to_json()}
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
        if self.own is not None:
            json |= self.own.to_json()
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
    def from_json(cls, json: Mapping[str, Any], part: Part, edition: Edition | None = None) -> EpochState:
        """Return the state that `to_json` described, in an epoch order of a part; `edition` is its edition, if known.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        begin = cls(
            whole_number(json["epoch"], 2**63),
            edition=edition or Edition.from_json(json),
            own=part.whole.own_in(json),
        )
        if "lanes" not in json:
            return begin
        worker = None
        if "worker" in json:
            share = {name: whole_number(value) for name, value in json["worker"].items()}
            batch_size, batches = share.pop("batch_size"), share.pop("batches")
            worker = WorkerShare(Consumer(is_gathered=False, **share), batch_size, batches)
        length = part.epoch_length(begin, 1)
        progress = Progress.from_lists(json["used"], length, RunCut.from_json)
        return replace(
            begin,
            progress=progress,
            run=SavedRun.from_json(json["run"], length - progress.used) if "run" in json else None,
            lanes=whole_number(json["lanes"]),
            first_block=whole_number(json["first_block"]),
            worker=worker,
            short_last=bool(json.get("short_last", False)),
            mix=whole_number(json["mix"]) if "mix" in json else None,
            strip=whole_number(json.get("strip", 1)),
            nodes=whole_number(json.get("nodes", 1), least=1),
            combs=whole_number(json.get("combs", 0), _MOST_STRATA + 1),
        )


def make_state_dict(state: EpochState, part: Part, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the dict of `state_dict()`: the state, and the terms of its epoch order; the same on all nodes."""
    return {
        "version": _version(state),
        **state.to_json(),
        **part.whole.describe_state(state),
        "position": state.used,
        "order": part.whole.describe() | _describe_nodes(part) | ({} if state.mix is None else {"mix": state.mix}),
        "layout": describe_layout(fields),
    }


def _version(state: EpochState) -> int:
    """Return the lowest version whose readers understand all entries of a state."""
    if state.edition.strip_reaches:
        return _WITH_CARRIED_ROWS if state.edition.strip_reaches == FIRST_REACHES else _WITH_LONG_STRIPS
    return _WITH_SLABS if state.edition.slab_rows else _WITH_COMBS if state.combs else VERSION


def read_state_dict(state: object, part: Part, fields: Sequence[Field], *, any_mix: bool = False) -> EpochState:
    """Return the state that a dict from `make_state_dict` holds; with `any_mix`, its mix may differ from the order's.

    Raises
    ------
    ConfigError
        If it is no such dict, or belongs to another epoch order; the message names what differs.
    """
    if not isinstance(state, Mapping) or state.get("version") not in _READABLE:
        raise ConfigError(f"state: got {_shortened(state)}, must be what state_dict() returned (version {VERSION})")
    theirs = state.get("order")
    order = part.whole.describe_as(theirs) | _describe_nodes(part)
    differences = [
        f"{name} was {was!r}, is {ours!r}"
        for about, described in (("order", order), ("layout", describe_layout(fields)))
        for name, was, ours in _compare(state.get(about), described)
        if not (any_mix and about == "order" and name == "mix")
    ]
    if differences:
        advice = _GAP_ADVICE if _heeds_gaps(part, fields) else ""
        raise ConfigError(f"the state is of another dataset or order: {'; '.join(differences)}{advice}")
    try:
        made = EpochState.from_json(state, part)
        if made.used != state["position"]:
            raise ValueError(f"position = {state['position']!r}, but {made.used} positions are used")
        if made.lanes is not None:  # states of earlier versions have the mix in their description alone
            mix = whole_number(state["order"]["mix"])
            if not 1 <= mix <= part.fewest_blocks:
                raise ValueError(f"mix = {mix}, must be in [1, {part.fewest_blocks}]")
            made = replace(made, mix=mix)
            if made.nodes != part.num_nodes:
                raise ValueError(f"nodes = {made.nodes}, must be {part.num_nodes}")
        part.whole.check_state(made, shortest=part.shortest, fewest_blocks=part.fewest_blocks)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the state is damaged: {error!r}") from error
    part.whole.check_release(made, theirs)
    return made


def _heeds_gaps(part: Part, fields: Sequence[Field]) -> bool:
    """Return whether samples were left out, or windows are padded, at gaps of the time."""
    selection, pads = part.whole.selection, [f.window.pad for f in fields if f.window is not None]
    is_padded = any(pad is not None and pad.borders is not None and pad.borders.gaps for pad in pads)
    return is_padded or any(one.largest_gap is not None for one in (() if selection is None else selection.left_out))


def _describe_nodes(part: Part) -> dict[str, Any]:
    """Return the terms of the epoch orders of all nodes, beside the order of all samples."""
    return {} if part.num_nodes == 1 else {"affinity": f"{part.num_nodes} nodes"}


def describe_layout(fields: Sequence[Field]) -> dict[str, Any]:
    """Return shape and dtype of every field, and the offsets of its rows where samples are windows, as JSON."""
    return {
        f.name: [
            f.num_samples,
            *f.sample_shape,
            f.described_dtype,
            *([w.named] if (w := f.window) else []),
            *([w.pad.in_states] if w and w.pad else []),
            *([f"items {f.chosen_items}"] if f.chosen_items else []),
            *([f.row_map.in_states] if f.row_map is not None and f.row_map.in_states else []),
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
