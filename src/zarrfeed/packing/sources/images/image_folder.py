"""`ImageFolder`: files of images, in folders of classes as torchvision has them, with tables of further fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.packing.sources.files import fingerprint_of, read_file
from zarrfeed.packing.sources.images.encoded_images import EncodedImages
from zarrfeed.packing.sources.images.image_listing import list_images
from zarrfeed.packing.sources.images.image_tables import read_targets
from zarrfeed.packing.sources.source import (
    Int64,
    Rows,
    Source,
    SourceField,
    SourceOptions,
    chosen,
    objects_of,
)

_NOT_IN_CF_WORDS = re.compile(r"[^\w.+@-]")


class ImageFolder(Source):
    """Images below folders; a sample is a file.

    Its fields are `image`, `label` if folders are classes, the columns of `targets`, and `key`, which is the path below
    the folder (of several paths: below the folder that all of them lie in).

    Parameters
    ----------
    paths
        Paths of folders, or of images.
    options
        `size` decodes the images to uint8 of shape (3, height, width), as `Data.decode("image", size=)` does; else
        their bytes are kept. `targets` is a table as in `read_targets`.

    Raises
    ------
    ConfigError
        As in `list_images` and `read_targets`; if there is no such size or field, or Pillow is missing.
    OSError
        If a folder or the table cannot be read.

    Attributes
    ----------
    notes
        Sentences about files that were left out.
    """

    kind = "images"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        self._encoded = EncodedImages(options)
        tables = [] if options.targets is None else [options.targets]
        found = list_images(paths, tables)
        self._root, self._files, self._mtimes = found.root, found.files, found.mtimes
        self.num_samples = len(found.files)
        columns = [] if not found.classes else [_label(found.classes, found.labels)]
        for path in tables:
            keys = [one.key for one in found.files]
            columns += read_targets(path, keys, found.root)
        mean = found.files.total_bytes // self.num_samples
        mean_key = len(found.files.arrays()["blob"]) // self.num_samples
        key = SourceField("key", np.dtype(object), kind="text", dims=("sample",), mean_bytes=mean_key)
        fields = [self._encoded.field("image", mean), *(field for field, _ in columns), key]
        names = [one.name for one in fields]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{printable(tables[0])}: the images have a field {twice!r}: rename the column")
        wanted = chosen(names, options, found.root)
        self.fields = tuple(one for one in fields if one.name in wanted)
        self._columns = {field.name: values for field, values in columns}
        tables_as = [(path, *_state(path)) for path in tables]
        files = ((one.key, one.size, mtime) for one, mtime in zip(found.files, found.mtimes.tolist(), strict=True))
        self.fingerprint = fingerprint_of(self.kind, paths, (*tables_as, *files))
        by_suffix = ", ".join(f"{count} {suffix}" for suffix, count in found.left_out.most_common(5))
        left_out = f"{found.left_out.total()} files that are no images are left out ({by_suffix})"
        self.notes = (left_out,) if found.left_out else ()

    def take(self, samples: Int64) -> list[Rows]:
        """Return some samples, by their numbers.

        Raises
        ------
        OSError
            If a file cannot be read.
        StoreReadError
            If a file has changed since the source was opened.
        CorruptChunkError
            If an image cannot be decoded; the message names its file.
        """
        numbers = samples.tolist()
        made: list[Rows] = []
        for field in self.fields:
            if field.name == "image":
                paths = [self._root + self._files.key(i) for i in numbers]
                sizes, mtimes = self._files.sizes[samples].tolist(), self._mtimes[samples].tolist()
                encoded = [read_file(*one) for one in zip(paths, sizes, mtimes, strict=True)]
                made.append(self._encoded.rows(encoded, paths.__getitem__))
            elif field.name == "key":
                made.append(objects_of([self._files.key(i) for i in numbers]))
            else:
                made.append(self._columns[field.name][samples])
        return made


def _label(classes: Sequence[str], labels: Int64) -> tuple[SourceField, Rows]:
    """Return the field of class numbers; names with blanks have "_" for these in the words that CF asks for."""
    attributes = {
        "flag_values": list(range(len(classes))),
        "flag_meanings": " ".join(_NOT_IN_CF_WORDS.sub("_", name) for name in classes),
        "classes": list(classes),
    }
    return SourceField("label", labels.dtype, dims=("sample",), attributes=attributes), labels


def _state(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns
