"""`StackSlice`: the channels of a field in a tensor that several fields share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StackSlice:
    """The slice of a field in a tensor of several fields, whose rows lie side by side.

    Attributes
    ----------
    name
        Name of the tensor.
    row_shape
        Shape of a row of the tensor: (channels, *shape that all of its fields share).
    row_bytes
        Bytes from one row of the tensor to the next.
    offset
        Distance in bytes from one row of the tensor to the next.
    first_channel, num_channels
        Distance in bytes from the begin of the tensor's row to that of this field's row.
    """

    name: str
    row_shape: tuple[int, ...]
    row_bytes: int
    offset: int
    first_channel: int
    num_channels: int

    def __str__(self) -> str:
        end = self.first_channel + self.num_channels
        which = f"channel {self.first_channel}" if self.num_channels == 1 else f"channels {self.first_channel}:{end}"
        return f"{which} of {self.row_shape[0]} of {self.name}"
