"""Ranks of tests that believe to run on several machines, as a launcher would tell them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import torch.distributed

T = TypeVar("T")


def on_nodes(local: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a function on a rank, as if each machine had `local` ranks."""
    said = {"LOCAL_WORLD_SIZE": str(local), "LOCAL_RANK": str(torch.distributed.get_rank() % local)}
    with mock.patch.dict(os.environ, said):
        return function(*args, **kwargs)
