"""torch.distributed.checkpoint, untyped: a strict type checker does not take its names for exported."""

from __future__ import annotations

from typing import Any

import torch.distributed.checkpoint

dcp: Any = torch.distributed.checkpoint
