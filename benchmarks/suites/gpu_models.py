"""Networks of the three kinds that `gpu.py` trains, in plain torch, and their training steps.

They are like the originals in layers, widths and arithmetic, and say nothing of accuracy. Labels are a constant, since
the speed of a step does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.data.conversion import MEAN, STD

#: A tensor of inputs, or (inputs, targets).
Batch: TypeAlias = Any

_CLASSES = 1000


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut; the output has 4 times the width."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *_convolved(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)),
            *_convolved(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of bottlenecks: with the defaults, the layers and widths of ResNet-50."""

    def __init__(self, channels: int, *, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_convolved(nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width))]
        layers.append(nn.MaxPool2d(3, 2, 1))
        inside = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(_Bottleneck(inside, width << stage, stride))
                inside = 4 * (width << stage)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inside, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits


class ViT(nn.Module):
    """A transformer over the patches of an image: with the defaults, the layers and widths of ViT-B.

    Each token becomes `out` numbers. Images are (batch, channels, height, width).
    """

    def __init__(
        self, channels: int, tokens: int, patch: int, out: int, *, width: int = 768, depth: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(self.body(tokens + self.positions))
        return out


class UNet3d(nn.Module):
    """A U-Net over volumes: two 3 x 3 x 3 convolutions a level, and half of the extent with twice the width below."""

    def __init__(self, channels: int, out: int, *, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in pairwise([channels, *widths]))
        self.widen = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(_twice(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(width, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for number, level in enumerate(self.down):
            x = level(functional.max_pool3d(x, 2) if number else x)
            skipped.append(x)
        skipped.pop()
        for widen, level in zip(reversed(self.widen), reversed(self.up), strict=True):
            x = level(torch.cat([skipped.pop(), widen(x)], 1))
        out: Tensor = self.head(x)
        return out


def _convolved(convolution: nn.Module, norm: nn.Module) -> tuple[nn.Module, ...]:
    return convolution, norm, nn.ReLU(inplace=True)


def _twice(channels: int, width: int) -> nn.Sequential:
    first = _convolved(nn.Conv3d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm3d(width))
    second = _convolved(nn.Conv3d(width, width, 3, 1, 1, bias=False), nn.BatchNorm3d(width))
    return nn.Sequential(*first, *second)


@dataclass(frozen=True)
class Kind:
    """A network that fits the inputs of a feed.

    Attributes
    ----------
    description
        For the page.
    model
        The network.
    loss
        Takes the network and a batch as it comes from a loader; returns the loss.
    memory_format
        Memory format of the network's weights; None: torch's default.
    """

    description: str
    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    memory_format: torch.memory_format | None = None


class Training:
    """A network on a device with an optimizer; `step` trains it on one batch, in bfloat16 where autocast has it."""

    def __init__(self, kind: Kind, device: torch.device) -> None:
        self._device, self._loss = device, kind.loss
        self._model = kind.model.to(device)
        if kind.memory_format is not None:
            # mypy knows no overload of it for modules with a memory format alone
            self._model = self._model.to(memory_format=kind.memory_format)  # type: ignore[call-overload]
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step(self, batch: Batch) -> Tensor:
        """Train on a batch that lies on the device; return the loss, for which nothing has waited."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = self._loss(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()


def _classify(prepare: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Batch], Tensor]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(prepare(batch))
        if logits.ndim == 3:  # of tokens
            logits = logits.mean(1)
        return functional.cross_entropy(
            logits.float(), torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        )

    return loss


def _forecast(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    tokens: Tensor = model(inputs.flatten(1, 2))
    patch = _patch_of(targets.shape[-2:])
    # (batch, channels * patch * patch, tokens), as `unfold` has it
    wanted = functional.unfold(targets.float(), patch, stride=patch)
    return functional.mse_loss(tokens.transpose(1, 2).float(), wanted)


def _denoise(model: nn.Module, batch: Batch) -> Tensor:
    voxels = (batch.unsqueeze(1).float() / 255).contiguous(memory_format=torch.channels_last_3d)
    return functional.mse_loss(model(voxels).float(), voxels)


def _fields(samples: Tensor) -> Tensor:
    return ((samples - MEAN) / STD).contiguous(memory_format=torch.channels_last)


def _pixels(images: Tensor) -> Tensor:
    return (images.float() / 255).contiguous(memory_format=torch.channels_last)


def _patch_of(extent: Sequence[int]) -> int:
    """Return the side of the patches that a transformer cuts an image into: 10 of a field of degrees, or 16, or 8."""
    return next(side for side in (16, 10, 8) if all(length % side == 0 for length in extent))


_TINY_RESNET: Mapping[str, Any] = {"width": 4, "blocks": (1, 1)}
_TINY_VIT: Mapping[str, Any] = {"width": 16, "depth": 1, "heads": 2}
_TINY_UNET: Mapping[str, Any] = {"width": 2, "levels": 2}


def _resnet(layout: str, shape: tuple[int, ...], scale: str) -> Kind:
    model = ResNet(shape[0], **(_TINY_RESNET if scale == "tiny" else {}))
    loss = _classify(_pixels if layout == "images" else _fields)
    return Kind("ResNet-50-like, channels_last", model, loss, torch.channels_last)


def _vit(layout: str, shape: tuple[int, ...], scale: str) -> Kind:
    channels, *extent = shape[-3:]
    patch = _patch_of(extent)
    tokens = (extent[0] // patch) * (extent[1] // patch)
    options = _TINY_VIT if scale == "tiny" else {}
    if layout == "forecast":  # two time steps in, one out
        model = ViT(shape[0] * channels, tokens, patch, channels * patch * patch, **options)
        return Kind(f"ViT-B-like, {tokens} tokens", model, _forecast)
    loss = _classify(_pixels if layout == "images" else _fields)
    return Kind(f"ViT-B-like, {tokens} tokens", ViT(channels, tokens, patch, _CLASSES, **options), loss)


def _unet(layout: str, shape: tuple[int, ...], scale: str) -> Kind:  # noqa: ARG001 (all have it)
    model = UNet3d(1, 1, **(_TINY_UNET if scale == "tiny" else {}))
    return Kind("3-d U-Net, channels_last_3d", model, _denoise, torch.channels_last_3d)


#: Name -> makes a network for a layout, the shape of its inputs, and a scale.
MODELS: Mapping[str, Callable[[str, tuple[int, ...], str], Kind]] = {"resnet50": _resnet, "vit": _vit, "unet3d": _unet}
