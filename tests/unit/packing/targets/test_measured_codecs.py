"""Which arrays are measured for `codec="auto"`, and as chunks of which length."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zarrfeed.packing.sources.source import SourceCall
from zarrfeed.packing.targets import measured_codecs
from zarrfeed.packing.targets.pack_layout import RequestedLayout, plan_layout


@pytest.mark.parametrize("wanted", [{"label": "auto"}, {"": "auto"}, {"image": "auto"}])
def test_arrays_are_measured_in_chunks_of_the_largest_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    np.savez(tmp_path / "x.npz", image=np.zeros((256, 64, 64), "f4"), label=np.arange(256))
    source = SourceCall("npy", (str(tmp_path / "x.npz"),)).open()
    requested = RequestedLayout(codecs=wanted)
    image, label = sorted(plan_layout(source.fields, 256, requested, {}), key=lambda layout: layout.name)
    assert label.is_gathered
    assert not image.is_gathered
    seen: dict[str, Any] = {}

    def choose(arrays: Any, **options: Any) -> list[SimpleNamespace]:
        seen.update(options)
        return [SimpleNamespace(name=one.name, encoding="zstd-3-shuffle") for one in arrays]

    monkeypatch.setattr(measured_codecs, "choose_layouts", choose)
    measured = measured_codecs.measure_codecs(source, requested)
    names = ["image", "label"] if "" in wanted else list(wanted)
    assert measured == dict.fromkeys(names, "zstd-3-shuffle")
    assert seen["chunk_rows"] == image.chunk_rows
