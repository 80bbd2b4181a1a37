"""A loader's state as one item of a distributed checkpoint.

torch.distributed.checkpoint takes a nested dict apart, and loads only those keys that the state dict to load into has.
A loader that has not read yet has fewer keys than one in the middle of an epoch, so keys would be lost. Invariant: a
state is one string, which is loaded whole or not at all.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError

_KEY = "json"


class _HasState(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class LoaderState:
    """Put a loader, or a dataset that is iterated without one, into the state dict of a distributed checkpoint.

    The state is the same on every rank and is stored once. It loads on any number of ranks.

    Parameters
    ----------
    loader
        A `ZarrDataLoader` or a `ZarrIterableDataset`, or another object whose `state_dict()` JSON can hold.

    Examples
    --------
    >>> import tempfile, warnings
    >>> import numpy as np, torch.distributed.checkpoint as dcp, zarr, zarrfeed
    >>> from zarrfeed.checkpoint import LoaderState, ZarrfeedReader, ZarrfeedWriter
    >>> warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # this is one process
    >>> folder = tempfile.mkdtemp()
    >>> array = zarr.create_array(f"{folder}/train.zarr", data=np.arange(6), chunks=(2,))
    >>> def make_loader():
    ...     return zarrfeed.ZarrDataLoader(zarrfeed.ZarrIterableDataset(array, batch_size=2))
    >>> loader = make_loader()
    >>> batch = next(iter(loader))
    >>> _ = dcp.save({"loader": LoaderState(loader)}, storage_writer=ZarrfeedWriter(f"{folder}/step-1"))
    >>> loader = make_loader()
    >>> dcp.load({"loader": LoaderState(loader)}, storage_reader=ZarrfeedReader(f"{folder}/step-1"))
    >>> [batch.tolist() for batch in loader]
    [[2, 3], [4, 5]]
    """

    def __init__(self, loader: _HasState) -> None:
        if not (callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))):
            raise ConfigError(f"loader = {loader!r}, must have state_dict() and load_state_dict()")
        self._loader = loader

    def state_dict(self) -> dict[str, str]:
        """Return the loader's state as one string.

        Raises
        ------
        ConfigError
            If JSON cannot hold the state.
        """
        try:
            return {_KEY: json.dumps(self._loader.state_dict())}
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the state of {type(self._loader).__name__} is not what JSON can hold: {error}"
            ) from error

    def load_state_dict(self, state_dict: dict[str, str]) -> None:
        """Load the state that `state_dict` returned into the loader.

        Raises
        ------
        ConfigError
            If `state_dict` has no such state, or its state is not one of this loader.
        """
        try:
            state = parse_json(state_dict[_KEY])
        except (KeyError, TypeError, ValueError) as error:
            keys = sorted(state_dict)
            raise ConfigError(f"the state has the keys {keys}, must be what LoaderState saved") from error
        self._loader.load_state_dict(state)
