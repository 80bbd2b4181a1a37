"""Rows in host memory that several processes read: sent to DataLoader workers as a tensor in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from zarrfeed.engine.reader import load_resident
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import HostRows, ResidentField, StoredField
from zarrfeed.spec.fields.static import UnreadRows

_DEFAULT_FAULTS = Faults()


class SharedRows(HostRows):
    """Rows whose memory is shared with the processes that they are sent to.

    Engines read at the address of the rows, and sending a tensor moves its memory to where processes share it. So a
    copy is sent, one for all processes; a tensor of the user's that lies in shared memory already is sent itself.
    """

    def __init__(self, rows: HostRows) -> None:
        super().__init__(rows.array, rows.owner, rows.source)
        self._sent: torch.Tensor | None = None

    def __getstate__(self) -> tuple[torch.Tensor, StoredField | None]:
        if self._sent is None:
            owner = self.owner
            if isinstance(owner, torch.Tensor) and owner.is_shared():  # type: ignore[no-untyped-call]
                self._sent = owner
            else:
                self._sent = torch.from_numpy(self.array.copy())
        return self._sent, self.source

    def __setstate__(self, state: tuple[torch.Tensor, StoredField | None]) -> None:
        sent, self.source = state
        num_rows = sent.shape[0]
        flat = sent.reshape(num_rows, -1).view(torch.uint8) if sent.numel() else sent.new_empty((num_rows, 0))
        self.array = np.asarray(flat.numpy()).view(np.uint8)
        self.owner = self._sent = sent


def with_shared_rows(data: Data, faults: Faults = _DEFAULT_FAULTS) -> Data:
    """Return the samples with their arrays in memory moved to shared memory, of which other processes make no copy.

    The values of static arrays that were stacked are read now.

    Raises
    ------
    CorruptChunkError, StoreReadError
        For a chunk of such an array that cannot be decoded or read: there is nothing to put in its place.
    """
    rows = {name: SharedRows(_read(held, faults)) for name, held in rows_of(data.resolved).items()}
    return replace(data, resolved=with_rows(data.resolved, rows)) if rows else data


def with_rows(resolved: ResolvedData, rows: Mapping[str, HostRows]) -> ResolvedData:
    """Return a description whose arrays in memory have these rows, by the name of the field."""
    return resolved.mapped(lambda one: _with_rows(one, rows)) if rows else resolved


def rows_of(resolved: ResolvedData) -> dict[str, HostRows]:
    """Return the rows of the arrays in memory, by the name of the field."""
    fields = [one.field for one in resolved.columns]
    return {f.name: f.rows for f in fields if isinstance(f, ResidentField)}


def _with_rows(column: Column, rows: Mapping[str, HostRows]) -> Column:
    f = column.field
    return column.with_field(replace(f, rows=rows[f.name])) if isinstance(f, ResidentField) else column


def _read(rows: HostRows, faults: Faults) -> HostRows:
    """Return rows in memory; those of a static array are read now, and become a single one."""
    if not isinstance(rows, UnreadRows):
        return rows
    loaded, _ = load_resident(rows.source, faults.without_skipping())
    return rows.row_of(loaded.rows)
