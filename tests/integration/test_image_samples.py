"""Encoded images as samples like any other: crops that are drawn, windows, and conversions of their pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.pictures import encoded, image_array, numbered_png, picture
from zarrfeed import CorruptChunkError, UnsupportedError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.plan.order.image_crops import ImageDraw
from zarrfeed.spec.fields.images import Crop, Images

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
]

N = 24
RANDOM: dict[str, Any] = {"size": 16, "crop": "random", "flip": 0.5}
OF_RANDOM = Images("RGB", (16, 16), Crop("random", (0.08, 1.0)), 0.5)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "a"
    image_array(path, [encoded(picture(i, 40 + i, 50), "jpeg") for i in range(N)], chunks=(5,))
    return path


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frames") / "a"
    image_array(path, [numbered_png(i) for i in range(N)], chunks=(5,))
    return path


def by_pillow(path: Path, sample: int, images: Images, *, epoch: int, seed: int) -> torch.Tensor:
    """Crop, resize and mirror an image by Pillow."""
    image: Image.Image = Image.open(io.BytesIO(stored(path)[sample])).convert("RGB")
    draw = ImageDraw(images, seed=seed, epoch=epoch, sample=sample)
    assert images.size is not None
    made = image.crop(draw.box(*image.size)).resize(images.size[::-1], Image.Resampling.BILINEAR)
    made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.mirrors else made
    return torch.from_numpy(np.array(made)).permute(2, 0, 1)


def stored(path: Path) -> list[bytes]:
    items: list[bytes] = ZarrDataset(zarrfeed.open(path))[list(range(N))]
    return items


def epochs(data: zarrfeed.Data, count: int = 1, workers: int = 0, **options: Any) -> list[dict[int, torch.Tensor]]:
    """Return the images of some epochs, by sample."""
    found = []
    with ZarrIterableDataset(data, return_index=True, **{"batch_size": 4, "shuffle": True, "seed": 3, **options}) as ds:
        loader = ZarrDataLoader(ds, num_workers=workers, timeout=80 if workers else 0)
        for _ in range(count):
            pairs = [(int(i), image) for batch, index in loader for i, image in zip(index, batch, strict=True)]
            found.append(dict(pairs))
    return found


# --- crops --------------------------------------------------------------------------------------------------------


def test_random_crops_are_those_of_pillow_for_any_ranks_workers_and_batches(photos: Path) -> None:
    data = zarrfeed.open(photos).decode("image", **RANDOM)
    first, second = epochs(data, 2)
    for epoch, found in enumerate((first, second)):
        for sample, image in found.items():
            expected = by_pillow(photos, sample, OF_RANDOM, epoch=epoch, seed=3)
            assert torch.equal(image, expected)
    assert sorted(first) == sorted(second) == list(range(N))
    assert not any(torch.equal(first[i], second[i]) for i in range(N))
    others = [epochs(data, rank=rank, world_size=2, even="off", batch_size=3, num_threads=1)[0] for rank in range(2)]
    others.append(epochs(data, workers=2, batch_size=5)[0])
    assert all(torch.equal(image, first[i]) for found in others for i, image in found.items())
    assert sorted([*others[0], *others[1]]) == sorted(others[2]) == list(range(N))
    assert all(not torch.equal(image, first[i]) for i, image in epochs(data, seed=4)[0].items())


def test_crops_go_on_after_a_state_and_on_other_ranks(photos: Path) -> None:
    data = zarrfeed.open(photos).decode("image", **RANDOM)
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "return_index": True}
    _, second = epochs(data, 2)
    with ZarrIterableDataset(data, batch_size=4, **options) as dataset:
        dataset.set_epoch(1)
        batches = iter(dataset)
        begun = [int(i) for _ in range(2) for i in next(batches)[1]]
        state = dataset.state_dict()
    rest: list[int] = []
    for rank in range(2):
        with ZarrIterableDataset(data, batch_size=4, rank=rank, world_size=2, even="off", **options) as dataset:
            dataset.load_state_dict(state)
            for images, index in dataset:
                assert all(torch.equal(image, second[int(i)]) for image, i in zip(images, index, strict=True))
                rest += index.tolist()
    assert sorted([*begun, *rest]) == list(range(N))


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_other_modes_are_cropped_by_pillow_to_the_bit(mode: Any) -> None:
    image = picture(1, 40, 50).convert(mode)
    array = image_array(MemoryStore(), [encoded(image)], chunks=(1,))
    (ours,) = ZarrDataset(zarrfeed.open(array).decode("image", mode=mode, size=(20, 30), crop="center"))[[0]]
    plain = image.crop((0, 3, 50, 36)).resize((30, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(ours.permute(1, 2, 0).squeeze(), np.asarray(plain))


def test_an_image_and_its_mask_are_cropped_alike() -> None:
    pictures = [picture(i, 40, 50).convert("L") for i in range(N)]
    same = [encoded(one) for one in pictures]
    data = zarrfeed.open({name: image_array(MemoryStore(), same, chunks=(4,)) for name in ("image", "mask")})
    with ZarrIterableDataset(data.decode("image", mode="L", **RANDOM), batch_size=6, shuffle=True) as dataset:
        assert all(torch.equal(batch["image"], batch["mask"]) for batch in dataset)


# --- windows ------------------------------------------------------------------------------------------------------


def sample_numbers(batch: torch.Tensor) -> Any:
    return (batch[..., 0, 0, 0].long() + 256 * batch[..., 1, 0, 0].long()).tolist()


@pytest.mark.parametrize("decode_first", [True, False])
@pytest.mark.parametrize(
    ("pad", "outside"),
    [(None, None), ("edge", lambda row, low, high: min(max(row, low), high)), (9, lambda *_: 9 + 256 * 9)],
)
def test_windows_of_images_are_the_rows_at_the_offsets(
    frames: Path, pad: Any, outside: Callable[..., int] | None, decode_first: bool
) -> None:
    offsets, ends = (-2, 0, 1), (10, N)
    data = zarrfeed.open(frames)
    steps: list[Callable[[zarrfeed.Data], zarrfeed.Data]] = [
        lambda one: one.decode("image", size=(3, 4)),
        lambda one: one.window(offsets, segment_ends=ends, pad=pad),
    ]
    if not decode_first and pad == 9:
        with pytest.raises(UnsupportedError, match="samples are lists of bytes; pad with 'edge'"):
            steps[1](data)
        return
    for step in steps if decode_first else steps[::-1]:
        data = step(data)
    found: dict[int, list[int]] = {}
    with ZarrIterableDataset(data, batch_size=5, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            assert batch.shape[1:] == (3, 3, 3, 4)
            found |= dict(zip(index.tolist(), sample_numbers(batch), strict=True))
        if decode_first:
            assert "rows at -2, +0, +1" in str(dataset.explain())
    expected = {}
    for sample in range(N):
        low, high = (0, ends[0] - 1) if sample < ends[0] else (ends[0], N - 1)
        rows = [sample + offset for offset in offsets]
        if outside is None and not all(low <= row <= high for row in rows):
            continue
        expected[sample] = [row if outside is None or low <= row <= high else outside(row, low, high) for row in rows]
    assert found == expected
    by_index = ZarrDataset(data)
    chosen = [0, len(expected) - 1, 3, 4, 3]
    assert sample_numbers(by_index[chosen]) == [list(expected.values())[i] for i in chosen]


def test_windows_of_lists_and_of_text_are_nested_lists(frames: Path) -> None:
    data = zarrfeed.open(frames)
    items = stored(frames)
    assert ZarrDataset(data.window((-1, 0)))[[0, 4]] == [[items[0], items[1]], [items[4], items[5]]]
    assert ZarrDataset(data.window({"samples": 1}))[[0, 4]] == [items[1], items[5]]
    images = ZarrDataset(data.decode("image").window((-1, 0)))[[4]]
    assert [sample_numbers(one) for one in images[0]] == [4, 5]


def test_frames_of_a_window_have_the_same_crop() -> None:
    same = encoded(picture(1, 40, 50))
    array = image_array(MemoryStore(), [same] * N, (N // 2, 2), chunks=(5, 1))
    data = zarrfeed.open(array).decode("image", **RANDOM).window((-1, 0))
    with ZarrIterableDataset(data, batch_size=4, shuffle=True) as dataset:
        images = torch.cat(list(dataset))
    assert images.shape == (N // 2 - 1, 2, 2, 3, 16, 16)
    assert bool((images == images[:, :1, :1]).all())
    assert len({one[0, 0].numpy().tobytes() for one in images}) == len(images)


def test_windows_over_several_stores_and_a_broken_image(tmp_path: Path) -> None:
    items = [numbered_png(i) for i in range(N)]
    items[13] = b"?"
    for store, rows in enumerate((slice(0, 10), slice(10, N))):
        image_array(tmp_path / f"{store}.zarr", items[rows], chunks=(3 + store,))
    data = zarrfeed.open([tmp_path / "0.zarr", tmp_path / "1.zarr"]).decode("image", size=(3, 4)).window((-1, 0))
    good = [i for i in range(1, N) if i not in (10, 13, 14)]
    orders = []
    options: dict[str, Any] = {"shuffle": True, "return_index": True, "faults": {"on_error": "skip"}}
    for batch_size, num_threads in ((4, None), (7, 1)):
        with ZarrIterableDataset(data, batch_size=batch_size, num_threads=num_threads, **options) as dataset:
            with pytest.warns(zarrfeed.ChunkSkippedWarning, match="sample 13"):
                batches = list(dataset)
            assert [chunk.key for chunk in dataset.skipped_chunks()] == ["0 sample 13"]
        for batch, index in batches:
            assert sample_numbers(batch) == [[i - 1, i] for i in index.tolist()]
        orders.append([i for _, index in batches for i in index.tolist()])
    assert set(orders[0]) <= set(good)
    assert orders[0] == orders[1]
    with pytest.raises(CorruptChunkError, match=r"1\.zarr chunk 0: sample 13 is no image"):
        ZarrDataset(data)[[12]]


# --- conversions --------------------------------------------------------------------------------------------------


def test_pixels_are_converted_as_torchvision_converts_them(photos: Path) -> None:
    crops = zarrfeed.open(photos).decode("image", size=16, crop="center")
    pixels = torch.stack([ZarrDataset(crops)[i] for i in range(N)])
    scaled = pixels.float() / 255
    expected = (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    data = crops.minmax(0, 255).normalize((MEAN, STD))
    assert [(one.shape, one.dtype) for one in data.fields] == [((3, 16, 16), "float32")]
    assert torch.equal(ZarrDataset(data)[list(range(N))], expected)
    half = crops.minmax(0, 255).cast(torch.bfloat16)
    assert torch.equal(ZarrDataset(half)[[3, 1]], scaled[[3, 1]].bfloat16())
    named = crops.normalize((np.array(MEAN) * 255, np.array(STD) * 255), axis="channel").cast("float64")
    assert torch.allclose(ZarrDataset(named)[[2]][0], expected[2].double(), atol=1e-5)
    with ZarrIterableDataset(data.window((-1, 0)), batch_size=5, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            assert torch.equal(batch, torch.stack([expected[index - 1], expected[index]], dim=1))


def test_each_camera_may_have_numbers_of_its_own() -> None:
    items = [numbered_png(i) for i in range(N)]
    array = image_array(MemoryStore(), items, (2, N // 2), chunks=(1, 5))
    mean = np.array([[10.0, 20, 30], [1, 2, 3]]).reshape(2, 3, 1, 1)
    data = zarrfeed.open(array, sample_axis=1).decode("image", size=(3, 4)).normalize((mean, np.full_like(mean, 2)))
    pixels = ZarrDataset(zarrfeed.open(array, sample_axis=1).decode("image", size=(3, 4)))[[5, 0]]
    assert torch.equal(ZarrDataset(data)[[5, 0]], (pixels.float() - torch.from_numpy(mean).float()) / 2)
