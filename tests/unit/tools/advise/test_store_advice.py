"""`zarrfeed info --advise`: the cost of a store as it is and as advised, as a page and as JSON; nothing is timed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.paths import ROOT
from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.targets.codec_trial import CodecRate
from zarrfeed.packing.targets.layout_choice import choose_layouts
from zarrfeed.storage.chunks.chunk_encoder import Encoding
from zarrfeed.tools import cli
from zarrfeed.tools.advise import store_advice
from zarrfeed.tools.advise.store_advice import Reading, advise_store

#: What codecs that are not tried would do.
RATES = {"none": (1.0, 6e9), "lz4": (2.0, 5e9), "lz4hc": (2.1, 3e9), "zstd": (3.0, 1e9)}


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a rate that is made up for that of the store as it is."""
    monkeypatch.setattr(store_advice, "best_rate", lambda _: 1000.0)


def measure(rows: Any, encodings: Sequence[Encoding], *_: Any, **__: Any) -> list[CodecRate]:
    found = []
    for encoding in encodings:
        assert len(encoding.encode(np.ascontiguousarray(rows[:1]))) > 0
        ratio, per_s = RATES[encoding.compressor]
        found.append(CodecRate(encoding, ratio, 1e8, per_s, per_s))
    return found


class Chooser:
    """Chooses as always, from rates that are made up; keeps what it was given."""

    def __call__(self, arrays: Any, **options: Any) -> Any:
        self.arrays, self.options = arrays, options
        return choose_layouts(arrays, measure=measure, **options)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    group = zarr.create_group(tmp_path / "store.zarr")
    fields = np.arange(300 * 64 * 64, dtype="f4").reshape(300, 64, 64)
    group.create_array("field", data=fields, chunks=(7, 32, 64), compressors=None)
    label = group.create_array("label", data=np.arange(300, dtype="i2"), chunks=(50,))
    label.attrs["scale_factor"] = 0.5
    return tmp_path / "store.zarr"


def advise(path: Path, choose: Any = None, **options: Any) -> Any:
    data, stored = zarrfeed.open(path), zarrfeed.open(path, decode_cf=False)
    return advise_store("store.zarr", data, stored, choose=choose or Chooser(), **options)


def test_the_samples_that_are_tried_are_those_of_the_store_as_stored(store: Path) -> None:
    choose = Chooser()
    advice = advise(store, choose, reading=Reading(batch_size=10))
    field, label = choose.arrays
    first = field.rows[:, 0, 0] / (64 * 64)
    np.testing.assert_array_equal(
        field.rows, np.arange(300 * 64 * 64, dtype="f4").reshape(-1, 64, 64)[first.astype(int)]
    )
    assert label.rows.dtype == np.int16
    assert label.attributes == {"scale_factor": 0.5}
    assert choose.options["batch_size"] == advice.batch_size == 10
    assert choose.options["far"] is False


def test_costs_are_those_of_explain(store: Path) -> None:
    advice = advise(store, reading=Reading(batch_size=10))
    with zarrfeed.ZarrIterableDataset(store, batch_size=10, shuffle=True) as dataset:
        reads = sum(f.chunk_reads for f in dataset.explain().fields)
    assert advice.now.requests == reads
    assert advice.now.amplification >= 1
    assert advice.now.stored_per_delivered == pytest.approx(advice.now.amplification, rel=0.05)
    assert advice.better.amplification < advice.now.amplification * 2
    field, label = advice.layouts
    assert (field.chunk_rows, field.shard_rows, str(field.encoding)) == (4, 64, "none")
    assert field.num_samples == label.num_samples == 300
    assert advice.predicted["page_cache"] == pytest.approx(6e9, rel=0.1)
    assert advice.predicted["bucket"] == pytest.approx(1e9, rel=0.1)


def test_the_rate_of_the_disk_decides_on_the_codec(store: Path) -> None:
    slow = advise(store, disk_bytes_per_s=0.2e9)
    assert slow.layouts[0].encoding.compressor == "zstd"
    assert slow.predicted["disk"] == pytest.approx(0.6e9, rel=0.1)
    assert slow.now.bytes_per_s is not None
    # What was measured in the page cache is compared with what is predicted for it.
    assert slow.speedup == pytest.approx(slow.predicted["page_cache"] / slow.now.bytes_per_s)
    fast = advise(store, disk_bytes_per_s=50e9)
    assert str(fast.layouts[0].encoding) == "none"


def test_the_page_says_all_and_the_keys_of_the_json_are_documented(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(*arguments: Any, **options: Any) -> Any:
        return advise_store(*arguments, **options, choose=Chooser())

    monkeypatch.setattr(store_advice, "advise_store", quick)
    out = tmp_path / "advice.json"
    assert cli.main(["info", str(store), "--advise", "--disk-rate", "1GB", "--json", str(out)]) == 0
    page = capsys.readouterr().out
    for name in ("store", "now", "field", "label", "better", "predicted", "pack", "notes"):
        assert re.search(rf"^{name} ", page, flags=re.MULTILINE), name
    assert "zstd-3-bitshuffle" in page
    assert "  <-" in page
    report = json.loads(out.read_text())
    described = (ROOT / "docs" / "tasks" / "advise.md").read_text()

    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keys, value))
        return set(value) | set().union(*map(keys, value.values())) if isinstance(value, dict) else set()

    assert [key for key in sorted(keys(report)) if f"`{key}`" not in described] == []
    assert report["disk_gb_per_s"] == 1.0
    assert cli.main(["info", str(store), "--advise", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["arrays"][0]["name"] == "field"


def test_arrays_that_cannot_be_tried_are_named(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "store.zarr")
    group.create_array("x", data=np.zeros((20, 4), "f4"), chunks=(5, 4))
    text = group.create_array("text", shape=(20,), chunks=(5,), dtype=str)
    text[:] = np.array([f"sample {i}" for i in range(20)], dtype=object)
    advice = advise(tmp_path / "store.zarr")
    assert [one.name for one in advice.layouts] == ["x"]
    assert list(advice.left_out) == ["text"]
    assert "not tried" in str(advice)
    with pytest.raises(ConfigError, match=r"no array to choose a layout for \(samples: items of any length"):
        advise(tmp_path / "store.zarr" / "text")


def test_windows_ask_for_longer_chunks(store: Path) -> None:
    choose = Chooser()
    data, stored = zarrfeed.open(store), zarrfeed.open(store, decode_cf=False)
    advise_store("store.zarr", data.window(range(-5, 2)), stored, choose=choose)
    assert choose.options["window_rows"] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "x.json"], "--json is for --advise"),
        (["--disk-rate", "1GB"], "--disk-rate is for --advise"),
        (["--advise", "--patch", "0=2"], "--patch does not go with --advise"),
        (["--advise", "--ranks", "2"], "--ranks does not go with --advise"),
        (["--advise", "--disk-rate", "fast"], "disk_rate = 'fast'"),
        (["--advise", "--disk-rate", "0"], "disk_rate = '0'"),
        (["--advise", "--batch-size", "0"], "batch_size = 0"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(
    store: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["info", str(store), *options]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
