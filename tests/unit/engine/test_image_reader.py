"""`Data.decode("image")`: encoded images in arrays of bytes become tensors, as Pillow decodes them."""

from __future__ import annotations

import asyncio
import io
import itertools
import pickle
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader
from zarr.abc.store import Store
from zarr.storage import MemoryStore, WrapperStore

import zarrfeed
from tests.support.examples import examples
from tests.support.oracle import chunk_files, no_thread_left
from tests.support.pictures import encoded, image_array, numbered_png, picture
from zarrfeed import (
    ChunkSkippedWarning,
    ClosedError,
    ConfigError,
    CorruptChunkError,
    UnsupportedError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrIterableDataset,
)
from zarrfeed.engine.image_reader import ImageReader

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]

N = 46


def plain(item: Any, size: tuple[int, int] | None, mode: str | None) -> torch.Tensor:
    """Decode one image by Pillow."""
    image: Image.Image = Image.open(io.BytesIO(item))
    image = image.convert(mode or (image.mode if image.mode in ("L", "RGB", "RGBA") else "RGB"))
    if size is not None:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.atleast_3d(np.asarray(image)).copy()).permute(2, 0, 1)


def plain_nested(items: Any, size: Any, mode: Any) -> Any:
    """Return what a sample is: a tensor, or nested lists of tensors of their own sizes."""
    if isinstance(items, bytes):
        return plain(items, size, mode)
    values = [plain_nested(one, size, mode) for one in items]
    return values if size is None else torch.stack(values)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return torch.equal(ours, theirs)
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def numbers(batch: torch.Tensor) -> list[int]:
    """Return the numbers that a batch of `numbered_png` holds."""
    assert bool((batch[:, 2] == 7).all())
    return (batch[:, 0, 0, 0].long() + 256 * batch[:, 1, 0, 0].long()).tolist()


def numbered(store: Any = None, count: int = N, **options: Any) -> zarr.Array[Any]:
    options = {"chunks": (5,), **options}
    return image_array(MemoryStore() if store is None else store, [numbered_png(i) for i in range(count)], **options)


def decoded(source: Any, size: tuple[int, int] | None = (3, 4), **options: Any) -> zarrfeed.Data:
    return zarrfeed.open(source).decode("image", size=size, **options)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an array of images, and how it is read."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=2)))
    kinds = st.tuples(st.sampled_from(["png", "jpeg"]), st.sampled_from(["L", "RGB"]), st.integers(1, 9))
    count = int(np.prod(shape))
    drawn = draw(st.lists(kinds, min_size=count, max_size=count))
    items = [encoded(picture(i, size, 12).convert(mode), kind) for i, (kind, mode, size) in enumerate(drawn)]
    zarr_format = draw(st.sampled_from([2, 3]))
    chunks = tuple(draw(st.integers(1, 4)) for _ in shape)
    options: dict[str, Any] = {"chunks": chunks, "zarr_format": zarr_format}
    if zarr_format == 3 and draw(st.booleans()):
        options["shards"] = tuple(2 * n for n in chunks)
    size = draw(st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)))
    return {
        "items": items,
        "shape": shape,
        "options": options,
        "size": size,
        "mode": draw(st.sampled_from(["RGB", "L", "RGBA", *([None] if size is None else [])])),
        "sample_axis": draw(st.integers(0, len(shape) - 1)),
        "read": {"shuffle": draw(st.booleans()), "batch_size": draw(st.sampled_from([None, 1, 4]))},
    }


@examples(50)
@given(case=cases())
def test_any_array_of_images_reads_as_pillow_reads_what_zarr_python_reads(case: dict[str, Any]) -> None:
    array = image_array(MemoryStore(), case["items"], case["shape"], **case["options"])
    stored = np.moveaxis(np.asarray(array[...]), case["sample_axis"], 0).tolist()
    expected = [plain_nested(items, case["size"], case["mode"]) for items in stored]
    data = zarrfeed.open(array, sample_axis=case["sample_axis"]).decode("image", size=case["size"], mode=case["mode"])
    seen: list[int] = []
    with ZarrIterableDataset(data, return_index=True, num_threads=2, **case["read"]) as dataset:
        announced = dataset.sample_order(0).tolist()
        for values, index in dataset:
            indices = [int(index)] if case["read"]["batch_size"] is None else index.tolist()
            values = [values] if case["read"]["batch_size"] is None else values
            assert same(values, [expected[i] for i in indices])
            assert isinstance(values, list) or values.is_contiguous()
            seen += indices
    assert seen == announced
    assert sorted(seen) == list(range(len(expected)))
    wanted = [0, len(expected) - 1, 0]
    with_index = ZarrDataset(data)
    assert same(with_index[wanted], [expected[i] for i in wanted])
    assert same(with_index[-1], expected[-1])
    assert len(with_index[[]]) == 0


def test_images_beside_tensors_and_text(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=2)
    numbered(group.store, name="camera", chunks=(4,))
    numbered(group.store, name="raw", chunks=(7,))
    group.create_array("state", shape=(N, 3), chunks=(20, 3), dtype="f4")[...] = np.arange(N * 3).reshape(N, 3)
    data = zarrfeed.open(tmp_path / "g").decode("image", field="camera", size=(30, 40))
    data = data.select(slice(2, 40)).window({"state": (-1, 0)})
    assert {f.name: (f.shape, f.dtype) for f in data.fields} == {
        "camera": ((3, 30, 40), "uint8"),
        "raw": ((), "bytes"),
        "state": ((2, 3), "float32"),
    }
    with ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True) as dataset:
        assert dataset.explain().primary == "samples['camera']"  # images make the blocks, not the small states
        seen: list[int] = []
        for batch, index in dataset:
            assert numbers(batch["camera"]) == index.tolist()
            assert batch["raw"] == [numbered_png(i) for i in index.tolist()]
            assert batch["state"][:, :, 0].tolist() == [[3 * i - 3, 3 * i] for i in index.tolist()]
            seen += index.tolist()
    assert sorted(seen) == list(range(3, 40))
    both = zarrfeed.open(tmp_path / "g").decode("image")
    assert [f.dtype for f in both.fields] == ["uint8 images", "uint8 images", "float32"]


# --- ranks, workers, states -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [(3, 4), None])
def test_ranks_and_workers_partition_the_samples(workers: int, size: Any) -> None:
    data = decoded(numbered(), size)
    seen: list[int] = []
    for rank in range(2):
        with ZarrIterableDataset(
            data, batch_size=4, shuffle=True, seed=5, rank=rank, world_size=2, even="off", num_threads=1
        ) as dataset:
            loader = ZarrDataLoader(dataset, num_workers=workers, timeout=80 if workers else 0)
            for batch in loader:
                seen += numbers(batch if size else torch.stack(batch))
    assert sorted(seen) == list(range(N))


def test_map_style_in_workers(tmp_path: Path) -> None:
    numbered(tmp_path / "a")
    dataset = ZarrDataset(decoded(tmp_path / "a"))
    assert numbers(dataset[[3, 1]]) == [3, 1]
    loader = DataLoader(dataset, batch_size=7, num_workers=2, multiprocessing_context="fork", timeout=80)
    assert [n for batch in loader for n in numbers(batch)] == list(range(N))


def test_an_epoch_goes_on_where_it_was_left_on_other_ranks() -> None:
    data = decoded(numbered())
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "even": "off"}
    with ZarrIterableDataset(data, batch_size=4, **options) as dataset:
        whole = [numbers(batch) for batch in dataset]
    with ZarrIterableDataset(data, batch_size=4, **options) as dataset:
        batches = iter(dataset)
        begun = [numbers(next(batches)) for _ in range(4)]
        state = dataset.state_dict()
    assert begun == whole[:4]
    with ZarrIterableDataset(data, batch_size=4, **options) as dataset:
        dataset.load_state_dict(state)
        assert [numbers(batch) for batch in dataset] == whole[4:]
    rest: list[int] = []
    for rank in range(3):
        with ZarrIterableDataset(data, batch_size=2, rank=rank, world_size=3, **options) as dataset:
            dataset.load_state_dict(state)
            rest += [n for batch in dataset for n in numbers(batch)]
    assert sorted(rest) == sorted(n for batch in whole[4:] for n in batch)
    with (
        ZarrIterableDataset(zarrfeed.open(numbered()), batch_size=4, **options) as dataset,
        pytest.raises(ConfigError, match=r"samples was \[46, 3, 3, 4, 'uint8'\], is \[46, 'bytes'\]"),
    ):
        dataset.load_state_dict(state)


def test_a_decoded_data_prints_pickles_and_compares(tmp_path: Path) -> None:
    numbered(tmp_path / "a")
    data = decoded(tmp_path / "a")
    assert repr(data).endswith("a').decode('image', size=(3, 4))")
    assert repr(decoded(tmp_path / "a", None, mode=None)).endswith(".decode('image', mode=None)")
    assert repr(decoded(tmp_path / "a", None, field=["samples"])).endswith(".decode('image', field=['samples'])")
    assert data == decoded(tmp_path / "a", [3, 4]) == pickle.loads(pickle.dumps(data))  # type: ignore[arg-type]
    assert data != decoded(tmp_path / "a", (4, 4))
    assert "(3, 3, 4) uint8" in repr(ZarrDataset(data))
    train, test = data.split((0.5, 0.5), by="sample")
    seen = [n for part in (train, test) for n in numbers(ZarrDataset(part)[list(range(len(part)))])]
    assert sorted(seen) == list(range(N))


def test_explain_names_library_threads_and_size() -> None:
    with ZarrIterableDataset(decoded(numbered()), batch_size=4, num_threads=2) as dataset:
        page = str(dataset.explain())
        assert "decoded: images, RGB, resized to 3 x 4 (bilinear); by " in page
        assert "Pillow " in page
        assert "2 threads for images alone, up to 3 batches ahead" in page
        assert dataset.explain().fields[0].images
        assert len(list(dataset)) == 12
        assert dataset.stats().images_decoded == N
        assert dataset.stats().image_s > 0
    assert "RGB, its own size" in str(ZarrIterableDataset(decoded(numbered(), None), batch_size=4).explain())


@pytest.mark.parametrize("size", [(3, 4), None])
@pytest.mark.filterwarnings("ignore::zarrfeed.ChunkSkippedWarning")
def test_images_of_many_stores(size: Any, tmp_path: Path) -> None:
    items = [numbered_png(i) for i in range(60)]
    items[41] = b"?"
    ends, chunks = [0, 7, 40, 43, 60], [3, 8, 3, 3]  # two layouts
    for store, (begin, end) in enumerate(itertools.pairwise(ends)):
        image_array(tmp_path / f"{store}.zarr", items[begin:end], chunks=(chunks[store],))
    paths = [tmp_path / f"{store}.zarr" for store in range(4)]
    whole = zarrfeed.open(paths).decode("image", size=size)
    joined = zarrfeed.concat([zarrfeed.open(path).decode("image", size=size) for path in paths])
    for data in (whole, joined):
        with ZarrIterableDataset(
            data, batch_size=6, shuffle=True, return_index=True, faults={"on_error": "skip"}
        ) as dataset:
            found: dict[int, None] = {}
            for batch, index in dataset:
                assert numbers(batch if size else torch.stack(batch)) == index.tolist()
                found |= dict.fromkeys(index.tolist())
            assert sorted(found) == [i for i in range(60) if i != 41]
            assert [chunk.key for chunk in dataset.skipped_chunks()] == ["0 sample 41"]
        with pytest.raises(CorruptChunkError, match=r"2\.zarr chunk 0: sample 41 is no image"):
            ZarrDataset(data)[[0, 41]]
    with pytest.raises(ConfigError, match="decode of samples: it was decoded before"):
        joined.decode("image")
    with pytest.raises(ConfigError, match="must have the same"):
        zarrfeed.concat([zarrfeed.open(paths[0]).decode("image", mode="L"), zarrfeed.open(paths[1]).decode("image")])


# --- ahead, and the end -----------------------------------------------------------------------------------------


class Gated(WrapperStore[Store]):
    """A store that remembers what was asked for, and answers chunks from `held` on when it is opened."""

    def __init__(self, store: Store, held: int = 1000) -> None:
        super().__init__(store)
        self.asked: list[str] = []
        self.held = held
        self.opened = threading.Event()

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if key.isdigit():
            self.asked.append(key)
            while int(key) >= self.held and not self.opened.is_set():
                await asyncio.sleep(0.001)
        return await super().get(key, prototype, byte_range)


@pytest.fixture
def gated() -> Iterator[tuple[zarr.Array[Any], Gated]]:
    memory = MemoryStore()
    numbered(memory, 40, chunks=(4,))
    array = zarr.open_array(Gated(memory.with_read_only(True)), mode="r")
    store = array.store
    assert isinstance(store, Gated)
    yield array, store
    store.opened.set()


def wait_for(store: Gated, count: int) -> None:
    for _ in range(5000):
        if len(store.asked) >= count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(store.asked)


def test_three_batches_are_read_ahead_and_no_more(gated: tuple[zarr.Array[Any], Gated]) -> None:
    array, store = gated
    with ZarrIterableDataset(decoded(array), batch_size=4) as dataset:
        batches = iter(dataset)
        assert numbers(next(batches)) == [0, 1, 2, 3]
        wait_for(store, 4)
        assert store.asked == ["0", "1", "2", "3"]
        assert numbers(next(batches)) == [4, 5, 6, 7]
        wait_for(store, 5)
        assert [n for batch in batches for n in numbers(batch)] == list(range(8, 40))
    assert store.asked == [str(i) for i in range(10)]


def test_batches_ahead_take_no_more_than_the_memory(gated: tuple[zarr.Array[Any], Gated]) -> None:
    array, store = gated
    data = decoded(array, None)  # 192 KiB each are planned for
    with ZarrIterableDataset(data, batch_size=4, memory_budget="2MiB") as dataset:
        assert dataset.explain().max_open_batches == 2
        assert "up to 1 batch ahead" in str(dataset.explain())
        batches = iter(dataset)
        next(batches)
        wait_for(store, 2)
        threading.Event().wait(0.05)
        assert len(store.asked) == 2


def test_images_that_are_larger_than_planned_are_not_decoded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    large = encoded(Image.new("RGB", (512, 512)))  # four times as large as images of unknown size are taken for
    readers: list[ImageReader] = []
    plainly = ImageReader.open

    def opened(reader: ImageReader, *arguments: Any) -> None:
        readers.append(reader)
        plainly(reader, *arguments)

    monkeypatch.setattr(ImageReader, "open", opened)
    with ZarrIterableDataset(decoded(image_array({}, [large] * 24, chunks=(2,)), None), batch_size=2) as dataset:
        ahead = [len(readers[-1]._ahead) for _ in itertools.chain(dataset, dataset)]
    assert readers[0] is readers[1]
    assert max(ahead[3:]) == 0  # three were asked for before the first one was seen, and in no later epoch


def test_leaving_early_ends_all_threads(gated: tuple[zarr.Array[Any], Gated]) -> None:
    array, store = gated
    store.held = 2
    with ZarrIterableDataset(decoded(array), batch_size=4) as dataset:
        next(iter(dataset))  # zarr-python's own threads run
    with no_thread_left():
        dataset = ZarrIterableDataset(decoded(array), batch_size=4)
        batches = iter(dataset)
        next(batches)
        next(batches)
        wait_for(store, 3)
        dataset.close()  # while a chunk of the next batch is under way


def test_closing_from_another_thread_ends_a_wait(
    gated: tuple[zarr.Array[Any], Gated], monkeypatch: pytest.MonkeyPatch
) -> None:
    array, store = gated
    store.held = 2
    dataset = ZarrIterableDataset(decoded(array), batch_size=4)
    batches = iter(dataset)
    next(batches)
    next(batches)
    waits = threading.Event()
    plainly = ImageReader._awaited

    def awaited(reader: ImageReader, index: Any) -> Any:
        waits.set()
        return plainly(reader, index)

    monkeypatch.setattr(ImageReader, "_awaited", awaited)

    def close_when_it_waits() -> None:
        waits.wait(240)
        dataset.close()

    closing = threading.Thread(target=close_when_it_waits)
    closing.start()
    with pytest.raises(ClosedError):
        next(batches)
    closing.join()


def test_a_dataset_that_is_dropped_ends_its_threads(gated: tuple[zarr.Array[Any], Gated]) -> None:
    array, _ = gated
    with ZarrIterableDataset(decoded(array), batch_size=4) as dataset:
        next(iter(dataset))
    with no_thread_left():
        dataset = ZarrIterableDataset(decoded(array), batch_size=4)
        batches = iter(dataset)
        next(batches)
        del dataset, batches


# --- what goes wrong --------------------------------------------------------------------------------------------


def broken(bad: dict[int, bytes], store: Any = None, **options: Any) -> zarr.Array[Any]:
    items = [bad.get(i, numbered_png(i)) for i in range(N)]
    return image_array(MemoryStore() if store is None else store, items, **{"chunks": (5,), **options})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no format that Pillow knows"),
        (b"no image", "no format that Pillow knows"),
        (numbered_png(13)[:45], "truncated|broken|Truncated"),
        (encoded(Image.fromarray(np.full((3, 4), 999, np.uint16))), "more than 8 bits"),
    ],
)
@pytest.mark.parametrize("size", [(3, 4), None])
def test_a_broken_image_is_an_error_with_store_chunk_and_sample(
    data: bytes, why: str, size: Any, tmp_path: Path
) -> None:
    broken({13: data}, tmp_path / "a")
    with ZarrIterableDataset(decoded(tmp_path / "a", size), batch_size=4) as dataset:
        batches = iter(dataset)
        for _ in range(3):
            next(batches)
        with pytest.raises(
            CorruptChunkError, match=rf"a chunk 2: sample 13 is no image that can be decoded: .*({why})"
        ):
            next(batches)
    with pytest.raises(CorruptChunkError, match="sample 13 is no image"):
        ZarrDataset(decoded(tmp_path / "a", size))[[0, 13]]
    with pytest.raises(CorruptChunkError, match="sample 13 is no image"):
        ZarrDataset(decoded(tmp_path / "a", size))[13]


def test_which_of_several_images_is_broken_is_said() -> None:
    items = [numbered_png(i) for i in range(12)]
    items[7] = b"?"
    array = image_array(MemoryStore(), items, (4, 3), chunks=(2, 1))
    with pytest.raises(CorruptChunkError, match=r"chunk 1\.1: sample 2 \[1\] is no image"):
        ZarrDataset(decoded(array))[[0, 1, 2]]


def read_with_skips(array: zarr.Array[Any], *, world_size: int = 1, batch_size: int = 4, **options: Any) -> Any:
    """Return for each position of the epoch order which sample stands there, and which chunks were skipped."""
    found: dict[int, int] = {}
    skipped: set[str] = set()
    for rank in range(world_size):
        with ZarrIterableDataset(
            decoded(array),
            batch_size=batch_size,
            shuffle=True,
            seed=1,
            rank=rank,
            world_size=world_size,
            even="off",
            return_index=True,
            faults={"on_error": "skip"},
            **options,
        ) as dataset:
            position = rank
            for batch, index in dataset:
                assert numbers(batch) == index.tolist()
                for number in numbers(batch):
                    found[position] = number
                    position += world_size
            skipped |= {chunk.key for chunk in dataset.skipped_chunks()}
    return [found[i] for i in range(N)], skipped


@pytest.mark.filterwarnings("ignore::zarrfeed.ChunkSkippedWarning")
def test_broken_images_are_replaced_alone_and_the_same_for_any_ranks(tmp_path: Path) -> None:
    array = broken({13: b"?", 14: b"??", 30: b""}, tmp_path / "a")
    order, _ = read_with_skips(numbered())
    one, skipped = read_with_skips(array)
    assert skipped == {"2 sample 13", "2 sample 14", "6 sample 30"}
    differ = [position for position in range(N) if one[position] != order[position]]
    assert sorted(order[position] for position in differ) == [13, 14, 30]  # their neighbours in the chunks stay
    assert not {13, 14, 30} & set(one)
    for world_size, batch_size in ((2, 4), (3, 1), (1, 7)):
        assert read_with_skips(array, world_size=world_size, batch_size=batch_size) == (one, skipped)
    chunk_files(tmp_path / "a")[1].write_bytes(b"broken")
    worse, skipped = read_with_skips(array)
    assert skipped == {"1", "2 sample 13", "2 sample 14", "6 sample 30"}
    assert not {5, 6, 7, 8, 9, 13, 14, 30} & set(worse)
    assert read_with_skips(array, world_size=2) == (worse, skipped)


def test_too_many_broken_images_are_an_error() -> None:
    array = broken({3: b"?", 20: b"?"})
    with (
        ZarrIterableDataset(decoded(array), batch_size=4, faults={"on_error": "skip", "max_errors": 1}) as dataset,
        pytest.warns(ChunkSkippedWarning, match="sample 3 is no image"),
        pytest.raises(CorruptChunkError, match=r"sample 20 .*max_errors = 1"),
    ):
        list(dataset)


@pytest.mark.filterwarnings("ignore::zarrfeed.ChunkSkippedWarning")
def test_images_of_one_sample_are_replaced_together(tmp_path: Path) -> None:
    numbered(tmp_path / "good")
    broken({9: b"?"}, tmp_path / "bad")
    data = zarrfeed.open({"good": tmp_path / "good", "bad": tmp_path / "bad", "x": np.arange(N)})
    with ZarrIterableDataset(
        data.decode("image", size=(3, 4)), batch_size=5, shuffle=True, faults={"on_error": "skip"}
    ) as dataset:
        for batch in dataset:
            assert numbers(batch["good"]) == numbers(batch["bad"]) == batch["x"].tolist()
            assert 9 not in batch["x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "video"}, "what = 'video', must be one of 'image'"),
        ({"size": 0}, r"size = 0, must be \(height, width\) or one number"),
        ({"crop": "random"}, "crop = 'random': give the size of the crops, such as size=224"),
        ({"size": 224, "crop": "middle"}, "crop = 'middle', must be one of 'random', 'center'"),
        ({"size": 224, "crop": "random", "scale": (0, 1)}, r"scale = \(0, 1\), must be \(least, greatest\)"),
        ({"size": 224, "crop": "random", "scale": 0.5}, "scale = 0.5, must be .least, greatest.*at most 1"),
        ({"size": 224, "crop": "random", "ratio": (2, 1)}, r"ratio = \(2, 1\), must be .least, greatest."),
        ({"size": 224, "crop": "center", "ratio": (1, 2)}, "ratio = .* is for crop='random'"),
        ({"size": (4, 4), "scale": 0.5}, "scale = 0.5 is for crops: give crop='random' or crop='center', too"),
        ({"size": (4, 4), "flip": 2}, "flip = 2, must be a probability"),
        ({"size": (224,)}, "must be .height, width."),
        ({"size": (0, 4)}, "must be .height, width."),
        ({"size": (4.0, 4)}, "must be .height, width."),
        ({"size": (True, 4)}, "must be .height, width."),
        ({"size": (4, 1 << 20)}, r"or one number, in \[1, 65536\]"),
        ({"mode": "rgb"}, "mode = 'rgb', must be None or one of 'RGB', 'L', 'RGBA'; did you mean 'RGB'"),
        ({"mode": None, "size": (4, 4)}, "images of one shape need one number of channels"),
        ({"field": "imag"}, "field names 'imag', must be one of .*; did you mean 'image'"),
        ({"field": []}, r"field = \[\], must be a name, or a list of names"),
        ({"field": ["a", "a"]}, "each once"),
        ({"field": 3}, "field = 3, must be a name"),
        ({"field": "x"}, r"decode of samples\['x'\]: it has items of int64, must be bytes of any length"),
        ({"field": "text"}, r"decode of samples\['text'\]: it has items of str, must be bytes"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    text = zarr.create_array(MemoryStore(), shape=(N,), chunks=(5,), dtype="str", zarr_format=2)
    data = zarrfeed.open({"image": numbered(), "x": np.arange(N), "text": text})
    with pytest.raises(ConfigError, match=message):
        data.decode(**{"what": "image", **options})


def test_what_cannot_be_decoded_or_done_with_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no array has bytes of any length .*samples of int64"):
        zarrfeed.open(np.arange(4)).decode("image")
    data = decoded(numbered())
    with pytest.raises(ConfigError, match="decode of samples: it was decoded before"):
        data.decode("image")
    with pytest.raises(UnsupportedError, match=r"offsets of samples: zarrfeed.lead draws rows of tensors"):
        data.window((zarrfeed.lead(1, 3),))
    with pytest.raises(UnsupportedError, match=r"samples are lists of images of their own sizes; pad with 'edge'"):
        decoded(numbered(), None).window((-1, 0), pad=0)
    with pytest.raises(ConfigError, match="pad of samples = nan: batches have uint8, which cannot hold it"):
        ZarrDataset(data.window((-1, 0), pad="nan"))
    with pytest.raises(ConfigError, match="cannot convert text or bytes"):
        zarrfeed.open(numbered()).cast("float32")
    with pytest.raises(ConfigError, match=r"images of their own sizes are not converted; give decode\(\) a size"):
        decoded(numbered(), None).cast("float32")
    drawn = decoded(numbered(), flip=0.5)
    with pytest.raises(ConfigError, match="are drawn anew in each epoch, and ZarrDataset has none"):
        ZarrDataset(drawn)


def test_the_order_of_an_epoch_is_not_listed_before_its_first_batch(tmp_path: Path) -> None:
    """That of 200 million images took 5 s and 1.5 GB."""
    n = 1_000_000
    stored = zarr.create_array(
        tmp_path / "x", shape=(n,), chunks=(1000,), shards=(250_000,), dtype=zarr.dtype.VariableLengthBytes()
    )
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "png")
    stored[:8] = np.array([picture.getvalue()] * 8, object)
    with zarrfeed.ZarrIterableDataset(zarrfeed.open(tmp_path / "x").decode("image"), batch_size=4) as dataset:
        tracemalloc.start()
        batch = next(iter(dataset))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert [tuple(one.shape) for one in batch] == [(3, 8, 8)] * 4
    assert peak < 4 * n, "a list of the order takes 8 bytes a sample"
