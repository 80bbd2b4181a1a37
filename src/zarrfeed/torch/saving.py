"""torch.save to the writer of a checkpoint, with the error of the store where one occurs."""

from __future__ import annotations

from typing import IO, Any, cast

import torch

from zarrfeed.base.errors import StoreWriteError
from zarrfeed.storage.checkpoint_writer import CheckpointWriter


def save_object(value: Any, file: CheckpointWriter) -> None:
    """Write an object with torch.save.

    Raises
    ------
    StoreWriteError
        If the store fails. torch.save by itself then raises a RuntimeError, which speaks of positions in a ZIP file.
    """
    try:
        torch.save(value, cast(IO[bytes], file))
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, StoreWriteError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None
