"""Rows in host memory that several processes read: sent to DataLoader workers as a tensor in shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from zarrfeed.metadata.data import Data
from zarrfeed.spec.field import HostRows, ResidentField


class SharedRows(HostRows):
    """Rows whose memory is shared with the processes that they are sent to.

    Engines read at the address of the rows, and sending a tensor moves its memory to where processes share it. So a
    copy is sent, one for all processes; a tensor of the user's that lies in shared memory already is sent itself.
    """

    def __init__(self, rows: HostRows) -> None:
        super().__init__(rows.array, rows.owner)
        self._sent: torch.Tensor | None = None

    def __getstate__(self) -> torch.Tensor:
        if self._sent is None:
            owner = self.owner
            if isinstance(owner, torch.Tensor) and owner.is_shared():  # type: ignore[no-untyped-call]
                self._sent = owner
            else:
                self._sent = torch.from_numpy(self.array.copy())
        return self._sent

    def __setstate__(self, sent: torch.Tensor) -> None:
        num_rows = sent.shape[0]
        flat = sent.reshape(num_rows, -1).view(torch.uint8) if sent.numel() else sent.new_empty((num_rows, 0))
        self.array = np.asarray(flat.numpy()).view(np.uint8)
        self.owner = self._sent = sent


def with_shared_rows(data: Data) -> Data:
    """Return the same samples, those in memory with rows that are shared with the processes that they are sent to."""
    opened = data.resolved.opened
    shared = tuple(
        replace(field, rows=SharedRows(field.rows)) if isinstance(field, ResidentField) else field
        for field in opened.fields
    )
    return replace(data, resolved=replace(data.resolved, opened=replace(opened, fields=shared)))
