"""Agree on the epoch that each pass over a dataset reads, in the training process and its DataLoader workers.

The agreement is a small JSON document in an anonymous file that is shared by the process that made the dataset and all
that inherit it, by fork or by being spawned with it. It holds

  owners  training process -> state in which its next pass begins. A process that is no DataLoader worker is an owner;
          a worker acts for the process that started it. Ranks that inherit one dataset are owners each, so that one
          rank's passes do not move another's epochs.
  asked   whether a process was told that it is the first to say something
  passes  name of a pass -> the state that it began in, and the workers that asked. All workers of a pass give it the
          same name, and nobody else does (`torch/passes/pass_names.py`). The first worker to ask settles the pass; the
          last one removes its name.

A state that a loader loaded, or an epoch that it was told, is not in the table but is claimed by that loader, in its
process, until its next pass begins. Any number of loaders may have a claim. For others the table holds the beginning of
the epoch that was claimed last, so that their passes are whole.

Every access holds a lock on the file, which the system releases if its holder is killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import context
from typing import Any, TypeAlias

from zarrfeed.base.system import process_name
from zarrfeed.torch.passes.shared_file import SharedFile
from zarrfeed.torch.ranks.distributed import in_worker

#: An `EpochState` in its JSON form; here only its "epoch" is looked at.
State: TypeAlias = dict[str, Any]

#: Keys of a state that hold for later epochs as well: slabs, offsets and weights until others are named, and orders of
#: sources.
LASTING = (
    *("offsets", "weights", "slab_rows", "carries_rows", "strip_reaches"),
    *("sources", "unit", "sweeps"),
)

#: Passes that are remembered although not all of their workers have asked. One that all have joined is forgotten at
#: once. Workers that were killed or interrupted never ask.
_MAX_PASSES = 1000

#: The loader that this thread speaks for; None: the dataset itself.
_speaker: ContextVar[object] = ContextVar("speaker", default=None)


@contextmanager
def speaking_for(loader: object) -> Iterator[None]:
    """Make the calls inside count for one loader: it claims the state that they name."""
    token = _speaker.set(loader)
    try:
        yield
    finally:
        _speaker.reset(token)


class EpochTable:
    """The shared document. Safe for threads and processes; pickling one outside of spawning a process copies it."""

    def __init__(self, begin: State) -> None:
        self._file = SharedFile()
        self._claims: list[tuple[weakref.ref[Any], State]] = []  # a loader and the state it claims, the last at the end
        document = {"creator": _owner(), "begin": begin, "owners": {}, "passes": {}}
        os.write(self._file.descriptor, json.dumps(document).encode())

    def next(self) -> State:
        """Return the state in which the next pass of this process begins: the one that was claimed last, if any is."""
        speaker = _speaker.get()
        if speaker is not None:
            return self.next_of(speaker)
        with self._document() as document:
            claims = self._live_claims()
            return claims[-1][1] if claims else self._next(document)

    def name_next(self, state: State, *, named: bool = True) -> None:
        """Name the state in which the next pass begins; `named` is True if a user named its epoch.

        A user who speaks for a loader of this process names the state of that loader's next pass, and leaves the whole
        epoch to others. One who speaks for nobody ends all claims.
        """
        with self._document() as document:
            speaker = _speaker.get()
            if not named:
                document["owners"][_owner()] = state
            elif speaker is None:
                document["owners"][_owner()], self._claims = state | {"named": True}, []
            else:
                self._take_claim(speaker)
                self._claims.append((weakref.ref(speaker), state))
                document["owners"][_owner()] = _whole(state) | {"claimed": True}

    def is_named(self, loader: object = None) -> bool:
        """Return whether a user named the state of a loader's next pass, or anybody's, and no pass has taken it."""
        with self._document() as document:
            state = self._next(document)
            claimed = state.get("claimed", False) if loader is None else self._claimed_by(loader) is not None
            return bool(claimed or state.get("named", False))

    def next_of(self, loader: object) -> State:
        """Return the state in which the next pass of a loader begins; None: the state that no loader has claimed."""
        with self._document() as document:
            return self._claimed_by(loader) or self._next(document)

    def moved_by_workers(self) -> bool:
        """Return whether it was workers that began the last pass, by themselves."""
        with self._document() as document:
            return bool(self._next(document).get("by_workers", False))

    def is_first(self) -> bool:
        """Return whether no process that shares the table has asked this before."""
        with self._document() as document:
            asked, document["asked"] = document.get("asked", False), True
        return not asked

    def begin(self, name: str | None = None, *, store: State | None = None, loader: object = None) -> State:
        """Begin a pass: return its state, and name the next epoch. Under `name`, workers can join it.

        `store` is the version of a growing store that the pass reads, where its state names none. `loader` begins the
        pass, in the state that it has claimed.
        """
        with self._document() as document:
            state = self._begin(document, claimed=self._take_claim(loader))
            if store is not None:
                state = {"store": store, **state}
            if name is not None:
                self._remember(document, name, {"state": state, "joined": []})
            return state

    def join(
        self, name: str, worker: int, num_workers: int | None = None, look: Callable[[], State] | None = None
    ) -> State:
        """Return the state of a pass that the workers of one DataLoader read together; the first to ask begins it.

        The first to ask calls `look` for the version of a growing store, if the state of the pass names none; the
        others wait for its answer. Once `num_workers` have asked, the name is free.

        A worker that asks a second time under one name belongs to another pass.
        """
        with self._document() as document:
            found = document["passes"].get(name)
            if found is None or worker in found["joined"]:
                state = self._next(document)
                if look is not None and "store" not in state:
                    state = {**state, "store": look()}  # before the epoch is taken: an error takes none
                self._begin(document, by_workers=True)
                found = {"state": state, "joined": []}
            found["joined"].append(worker)
            self._remember(document, name, found)
            if len(found["joined"]) == num_workers:
                del document["passes"][name]
            joined: State = found["state"]
            return joined

    def _claimed_by(self, loader: object) -> State | None:
        return next((state for claimant, state in self._live_claims() if claimant() is loader), None)

    def _take_claim(self, loader: object) -> State | None:
        """Remove the claim of a loader, and return its state; None if it has no claim."""
        claimed = self._claimed_by(loader)
        self._claims = [one for one in self._claims if one[0]() is not loader]
        return claimed

    def _live_claims(self) -> list[tuple[weakref.ref[Any], State]]:
        """Return the claims of loaders that still exist."""
        self._claims = [one for one in self._claims if one[0]() is not None]
        return self._claims

    def _next(self, document: dict[str, Any]) -> State:
        owners = document["owners"]
        inherited = owners.get(document["creator"], document["begin"])
        state: State = owners.get(_owner(), inherited)
        return state

    def _begin(self, document: dict[str, Any], *, claimed: State | None = None, by_workers: bool = False) -> State:
        upcoming = self._next(document)
        state = upcoming if claimed is None else claimed
        epoch = state["epoch"] + 1
        if claimed is not None:  # others may have begun later epochs since
            epoch = max(epoch, upcoming["epoch"])
        document["owners"][_owner()] = _whole(state) | {"epoch": epoch, "by_workers": by_workers}
        return state

    def _remember(self, document: dict[str, Any], name: str, joined: dict[str, Any]) -> None:
        passes = document["passes"]
        passes.pop(name, None)
        passes[name] = joined
        while len(passes) > _MAX_PASSES:
            del passes[next(iter(passes))]

    @contextmanager
    def _document(self) -> Iterator[dict[str, Any]]:
        """Read the document, and write it back if it was changed, under the lock."""
        with self._file.locked() as descriptor:
            text = os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
            # Text may follow the document: the rest of a longer one, left by a process that was killed here.
            document, _ = json.JSONDecoder().raw_decode(text)
            yield document
            changed = json.dumps(document)
            if changed != text:
                os.pwrite(descriptor, changed.encode(), 0)
                os.ftruncate(descriptor, len(changed))

    def __getstate__(self) -> dict[str, Any]:
        return {"begin": self.next()} if context.get_spawning_popen() is None else {"shared": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "shared" in state:
            self._file, self._claims = state["shared"], []
        else:
            self.__init__(state["begin"])  # type: ignore[misc]


def _whole(state: State) -> State:
    """Return the beginning of the epoch of a state, with the keys that hold for later epochs as well."""
    return {name: state[name] for name in ("epoch", *LASTING) if name in state}


def _owner() -> str:
    parent = multiprocessing.parent_process()
    pid = parent.pid if parent is not None and in_worker() else None
    return process_name(os.getpid() if pid is None else pid)
