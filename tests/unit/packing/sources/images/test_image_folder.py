"""Files of images as samples: their numbers, labels and bytes, and what is refused. Pillow and os.walk are oracles."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.pictures import encoded, numbered_png, picture
from tests.support.users import as_nobody
from zarrfeed import ConfigError
from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.packing.sources.images.image_folder import ImageFolder
from zarrfeed.packing.sources.source import SourceCall, SourceOptions
from zarrfeed.spec.fields.images import Images

#: Below the root, in torchvision's order: by the paths of folders, then by the names of files.
CLASSED = ("Zebra/9.PNG", "cat/10.png", "cat/2.png", "cat/a/0.png", "cat/a-b/0.png", "cat/a/b/0.png", "dog house/é.png")
LABELS = [0, 1, 1, 1, 1, 1, 2]


def write(root: Path, files: tuple[str, ...] = CLASSED) -> Path:
    """Write images that show their numbers."""
    for number, name in enumerate(files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(numbered_png(number))
    return root


def opened(*paths: Path, **options: Any) -> ImageFolder:
    return ImageFolder([str(path) for path in paths], SourceOptions(**options))


def samples_of(source: ImageFolder) -> dict[str, Any]:
    names = [field.name for field in source.fields]
    return dict(zip(names, source.read(0, source.num_samples), strict=True))


def numbers_of(images: Any) -> list[int]:
    """Return which numbers encoded images show."""
    return [int(pixels_of(data, Images())[0, 0, 0]) for data in images]


def test_folders_are_classes_in_the_order_of_torchvision(tmp_path: Path) -> None:
    root = write(tmp_path)
    source = opened(root)
    walked = [
        os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118
        for one in sorted(p.name for p in root.iterdir())
        for folder, _, names in sorted(os.walk(root / one, followlinks=True))
        for name in sorted(names)
    ]
    assert walked == list(CLASSED)
    found = samples_of(source)
    assert [field.name for field in source.fields] == ["image", "label", "key"]
    assert [field.dims for field in source.fields] == [("sample",)] * 3
    assert found["key"].tolist() == walked
    assert found["label"].dtype == np.int64
    assert found["label"].tolist() == LABELS
    assert source.fields[1].attributes == {
        "flag_values": [0, 1, 2],
        "flag_meanings": "Zebra cat dog_house",
        "classes": ["Zebra", "cat", "dog house"],
    }
    assert list(found["image"]) == [(root / name).read_bytes() for name in CLASSED]
    assert numbers_of(found["image"]) == list(range(len(CLASSED)))
    assert source.block_samples == 1
    assert source.notes == ()


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ("0.jpg", "10.bmp", "2.WebP")))
    assert [field.name for field in source.fields] == ["image", "key"]
    assert samples_of(source)["key"].tolist() == ["0.jpg", "10.bmp", "2.WebP"]


def test_several_folders_have_one_list_of_classes_and_keys_below_their_parent(tmp_path: Path) -> None:
    files = ("train/a/0.png", "train/c/1.png", "val/b/2.png", "val/c/3.png")
    root = write(tmp_path, files)
    found = samples_of(opened(root / "val", root / "train"))
    assert found["key"].tolist() == ["val/b/2.png", "val/c/3.png", "train/a/0.png", "train/c/1.png"]
    assert found["label"].tolist() == [1, 2, 0, 2]
    assert numbers_of(found["image"]) == [2, 3, 0, 1]


def test_images_may_be_given_themselves(tmp_path: Path) -> None:
    root = write(tmp_path, ("a/0.png", "b/1.png"))
    found = samples_of(opened(root / "b" / "1.png", root / "a" / "0.png"))
    assert found["key"].tolist() == ["b/1.png", "a/0.png"]
    assert "label" not in found


@pytest.mark.parametrize("size", [(3, 4), (7, 5)])
def test_with_a_size_images_are_what_decode_makes_of_them(size: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    kinds = {"0.png": "RGBA", "1.jpg": "L", "2.jpg": "CMYK", "3.png": "P", "4.jpg": "RGB"}
    for number, (name, mode) in enumerate(kinds.items()):
        picture(number, 30, 40).convert(mode).save(tmp_path / "a" / name)
    source = opened(tmp_path, size=size)
    field = source.fields[0]
    assert field.dtype == np.uint8
    assert (field.shape, field.kind) == ((3, *size), "number")
    assert field.dims == ("sample", "channel", "y", "x")
    images = samples_of(source)["image"]
    assert images.shape == (5, 3, *size)
    for number, name in enumerate(kinds):
        wanted = pixels_of((tmp_path / "a" / name).read_bytes(), Images("RGB", size))
        np.testing.assert_array_equal(images[number], wanted)
    with Image.open(tmp_path / "a" / "0.png") as image:
        plain = image.convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(images[0], np.moveaxis(np.asarray(plain), -1, 0))


def test_samples_are_taken_in_any_order_by_several_threads(tmp_path: Path) -> None:
    names = tuple(f"{'ab'[i % 2]}/{i:03d}.png" for i in range(120))
    (tmp_path / "t.csv").write_text("file,number\n" + "".join(f"{name},{i}\n" for i, name in enumerate(names)))
    source = opened(write(tmp_path / "in", names), targets=str(tmp_path / "t.csv"), size=(3, 4))
    rng = np.random.default_rng(0)

    def take(_: int) -> None:
        chosen = rng.permutation(len(names))[:50]
        image, label, number, key = source.take(chosen)
        assert image[:, 0, 0, 0].tolist() == number.tolist() == [int(one[2:5]) for one in key]
        assert (label == number % 2).all()
        assert key.tolist() == [sorted(names)[i] for i in chosen]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(take, range(40)))


def test_a_table_beside_images_is_fields_and_is_not_counted_as_left_out(tmp_path: Path) -> None:
    root = write(tmp_path, ("0.png", "1.png", "2.png"))
    (root / "metadata.csv").write_text("file_name,age\n2.png,12\n0.png,10\n1.png,11\n")
    source = opened(root, targets=str(root / "metadata.csv"))
    assert [field.name for field in source.fields] == ["image", "age", "key"]
    assert samples_of(source)["age"].tolist() == [10, 11, 12]
    assert source.notes == ()


def test_variables_choose_fields(tmp_path: Path) -> None:
    root = write(tmp_path)
    source = opened(root, variables=("key", "label"))
    assert [values.tolist() for values in source.read(1, 3)] == [[1, 1], ["cat/10.png", "cat/2.png"]]
    with pytest.raises(ConfigError, match=r"'age' is not in .*, which has image, label, key"):
        opened(root, variables=("age",))


@pytest.mark.parametrize("name", ["label", "image", "key"])
def test_a_column_that_is_called_as_a_field_is_refused(name: str, tmp_path: Path) -> None:
    root = write(tmp_path / "in", ("a/0.png", "b/1.png"))
    (tmp_path / "t.csv").write_text(f"file,{name}\na/0.png,1\nb/1.png,1\n")
    with pytest.raises(ConfigError, match=f"t.csv: the images have a field '{name}': rename the column"):
        opened(root, targets=str(tmp_path / "t.csv"))


def test_hidden_files_and_others_are_left_out_and_counted(tmp_path: Path) -> None:
    root = write(tmp_path, ("a/0.png", "a/._0.png", ".cache/x/1.png", "a/.git/2.png"))
    for name in ("a/labels.txt", "a/Thumbs.db", "a/more.TXT", "README"):
        (root / name).write_text("no image")
    source = opened(root)
    assert samples_of(source)["key"].tolist() == ["a/0.png"]
    assert source.notes == ("4 files that are no images are left out (2 .txt, 1 no suffix, 1 .db)",)


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    root = write(tmp_path / "in", ("a/0.png", "b/1.png"))
    elsewhere = write(tmp_path / "elsewhere", ("2.png", "3.png"))
    (root / "c").symlink_to(elsewhere)
    (root / "a" / "link.png").symlink_to(elsewhere / "3.png")
    (root / "b" / "circle").symlink_to(root / "b")
    (root / "b" / "larger circle").symlink_to(root)
    found = samples_of(opened(root))
    assert found["key"].tolist() == ["a/0.png", "a/link.png", "b/1.png", "c/2.png", "c/3.png"]
    assert numbers_of(found["image"]) == [0, 1, 1, 0, 1]
    assert found["label"].tolist() == [0, 0, 1, 2, 2]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path, ("a/0.png",))
    (root / "a" / "gone.png").symlink_to(root / "nowhere.png")
    with pytest.raises(ConfigError, match=r"a/gone\.png: is a link to a file that is missing"):
        opened(root)
    (root / "a" / "gone.png").unlink()
    os.mkfifo(root / "a" / "pipe.png")
    with pytest.raises(ConfigError, match=r"a/pipe\.png: is no regular file"):
        opened(root)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("a/0.txt",), "no image is there, of the suffixes .avif"),
        (("a/0.png", "1.png"), r"images without a class lie beside folders of classes: '.*/1\.png'; move them away"),
        (("a/0.png", "b/note.txt"), "folders without an image: 'b'; move them away, as each folder stands for a class"),
        (("train/a/0.png", "val/b/1.png"), "its folders 'train', 'val' are no classes; pack one of them at a time"),
        (("train/a/0.png", "val/note.txt"), "its folders 'train', 'val' are no classes"),
        ((os.fsdecode(b"a/\xff.png"),), r"the file name a/.udcff\.png is not UTF-8: rename it"),
    ],
)
def test_folders_that_cannot_be_meant_are_refused(files: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(write(tmp_path, files))


def test_folders_with_the_names_of_splits_are_classes_if_images_lie_in_them(tmp_path: Path) -> None:
    assert samples_of(opened(write(tmp_path, ("test/0.png", "train/1.png"))))["label"].tolist() == [0, 1]


def test_empty_images_and_images_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path, ("a/0.png", "a/1.png"))
    with pytest.raises(ConfigError, match=r"images: got '0\.png', '1\.png' twice; give each folder once"):
        opened(root / "a", root / "a")
    (root / "a" / "1.png").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"images are empty files: '.*a/1\.png'; remove them"):
        opened(root)


@pytest.mark.parametrize("size", [(0, 4), (4,), (4.5, 4), "4x4", (1 << 17, 4)])
def test_sizes_that_cannot_be_are_refused(size: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"size = .*must be .height, width"):
        opened(write(tmp_path), size=size)


def test_a_broken_image_is_named_when_it_is_decoded_and_kept_when_it_is_not(tmp_path: Path) -> None:
    root = write(tmp_path, ("a/0.png", "a/1.jpg"))
    broken = encoded(picture(0, 40, 40), "jpeg")[:300]
    (root / "a" / "1.jpg").write_bytes(broken)
    assert samples_of(opened(root))["image"][1] == broken
    source = opened(root, size=(2, 2))
    assert len(source.read(0, 1)[0]) == 1
    with pytest.raises(CorruptChunkError, match=r"a/1\.jpg: cannot be decoded as an image"):
        source.read(0, 2)


def test_a_file_that_changes_or_goes_is_an_error_and_another_fingerprint(tmp_path: Path) -> None:
    root = write(tmp_path, ("a/0.png", "a/1.png"))
    source = opened(root)
    path = root / "a" / "1.png"
    before = path.stat()
    assert opened(root).fingerprint == source.fingerprint
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(StoreReadError, match=r"a/1\.png: has changed since the source was opened"):
        source.read(0, 2)
    assert opened(root).fingerprint != source.fingerprint
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert opened(root).fingerprint == source.fingerprint
    path.rename(root / "a" / "2.png")
    assert opened(root).fingerprint != source.fingerprint
    with pytest.raises(FileNotFoundError, match=r"a/1\.png"):
        source.take(np.array([1]))
    (root / "a" / "2.png").write_bytes(path.name.encode() * 100)
    assert opened(root).fingerprint != source.fingerprint
    assert len(source.fingerprint) < 200
    source.close()


def test_another_table_is_another_fingerprint(tmp_path: Path) -> None:
    root, table = write(tmp_path / "in", ("0.png",)), tmp_path / "t.csv"
    prints = {opened(root).fingerprint}
    for text in ("file,x\n0.png,1\n", "file,x\n0.png,10\n"):
        table.write_text(text)
        prints.add(opened(root, targets=str(table)).fingerprint)
    assert len(prints) == 3


def test_a_call_opens_it_again(tmp_path: Path) -> None:
    source = SourceCall("images", (str(write(tmp_path)),), SourceOptions(size=(2, 2))).open()
    assert isinstance(source, ImageFolder)
    assert (source.kind, source.num_samples, source.constants, source.attributes) == ("images", 7, (), {})


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that everyone may enter: pytest's own is for its user only."""
    folder = Path(tempfile.mkdtemp(prefix="zarrfeed-public-"))
    folder.chmod(0o755)
    yield folder
    (folder / "a").chmod(0o755)
    shutil.rmtree(folder)


def test_what_may_not_be_read_is_named(public: Path) -> None:
    root = write(public, ("a/0.png", "a/1.png"))
    source = opened(root)
    (root / "a" / "1.png").chmod(0)
    with as_nobody(), pytest.raises(PermissionError, match=r"a/1\.png"):
        source.read(0, 2)
    (root / "a").chmod(0)
    with as_nobody(), pytest.raises(PermissionError, match="/a'"):
        opened(root)
