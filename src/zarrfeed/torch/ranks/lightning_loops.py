"""Find on the call stack what a loop of Lightning's Trainer knows of a loader, and passes to nobody.

Before each epoch, a loop names the epoch to the loader's sampler. The loop is then on the call stack, and has two
things:

- **A state that was not handed over.** The Trainer loads states of loaders where it makes the loop's loaders. Whoever
  asks for `trainer.estimated_stepping_batches` in `configure_optimizers` makes it do so before the checkpoint is read.
  The loop then keeps the states, and begins a resumed epoch with its first batch.
- **overfit_batches.** The Trainer reads the same first batches in every epoch, so all epochs must have one order.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

from zarrfeed.torch.ranks.callers import outer_frames, self_of

#: Packages of the Trainer: `lightning`, and the older `pytorch-lightning`.
_LOOPS = ("lightning.pytorch.loops.", "pytorch_lightning.loops.")


class _Stateful(Protocol):
    sampler: Any

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def calling_loop() -> Any | None:
    """Return the Trainer's loop that is on the call stack; None without one."""
    for frame in outer_frames():
        if str(frame.f_globals.get("__name__")).startswith(_LOOPS):
            loop = self_of(frame)
            if hasattr(loop, "trainer"):
                return loop
    return None


def reads_same_batches(loop: Any) -> bool:
    """Return whether the Trainer reads the same batches in every epoch."""
    return bool(getattr(loop.trainer, "overfit_batches", 0))


def hand_over_state(loop: Any, sampler: object) -> bool:
    """Load the state that the loop keeps for a loader into it, and return whether there was one.

    Parameters
    ----------
    loop
        The loop that resumes an epoch.
    sampler
        The loader's sampler, by which the loader is found.
    """
    states = getattr(loop, "_combined_loader_states_to_load", None)
    loaders: list[_Stateful] = [
        loader
        for loader in getattr(getattr(loop, "_combined_loader", None), "flattened", ())
        if callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
    ]
    if not getattr(loop, "restarting", False) or not states or len(states) != len(loaders):
        return False
    if getattr(getattr(loop, "_data_fetcher", None), "fetched", 0):  # its iterator has begun another epoch
        return False
    for loader, state in zip(loaders, states, strict=True):
        if getattr(loader, "sampler", None) is sampler:
            loader.load_state_dict(state)
            return True
    return False


def batches_before(loop: Any) -> int:
    """Return the number of batches trained on in the epoch that a loop resumes; 0 if it begins an epoch."""
    if not getattr(loop, "restarting", False):
        return 0
    try:
        epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress.current
        return int(batches.ready) if epochs.started > epochs.processed else 0
    except AttributeError:  # a loop that trains on nothing
        return 0


def warn_of_lost_state(epoch: int, batches: int) -> None:
    """Warn that an epoch is resumed by a loader that was not told where it stood."""
    warnings.warn(
        f"Lightning resumes epoch {epoch} behind its first {batches} batches, but has no state of this loader, so the "
        "epoch is read from its beginning and these batches are trained on a second time. The checkpoint was saved "
        "with another loader or with other loaders beside it, or batches were fetched before it was read. If you have "
        "the state, call loader.load_state_dict(state) before trainer.fit()",
        stacklevel=1,  # of this line, so that it is shown once
    )
