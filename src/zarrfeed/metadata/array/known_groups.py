"""Groups whose arrays are not fields of one sample: recognised by their attributes, and refused with the path to give.

Invariant: these functions read metadata only, and never fail because attributes are not as their specification says.
A group of no known kind costs no request. Every path in a message is one that a dataset takes.

Plates, wells and collections of OME-Zarr name many images, which `zarrfeed.open` reads as many stores.

Source: OME-Zarr 0.4 and 0.5 (`multiscales`, `plate`, `well`, `labels`, `bioformats2raw.layout`), SpatialData
(`spatialdata_attrs`), AnnData's on-disk format (`encoding-type`), and the replay buffers of robot learning (`data/`,
`meta/episode_ends`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore, ZipStore

from zarrfeed.base.errors import ConfigError, UnsupportedError, ZarrfeedError, printable
from zarrfeed.metadata.array.anndata_columns import NULLABLE
from zarrfeed.metadata.array.values import read_values
from zarrfeed.storage.access.checked_nodes import checked
from zarrfeed.storage.access.group_members import members_of
from zarrfeed.storage.access.key_urls import url_of
from zarrfeed.storage.access.local_files import check_members, check_metadata_files
from zarrfeed.storage.access.urls import UrlStore
from zarrfeed.storage.files.table_store import TableStore

#: Paths that a message names, at most; and characters of a path, or of another name, in attributes.
_MOST_PATHS, _MOST_CHARS = 6, 200
#: Groups between an OME-Zarr plate, or the like, and the arrays of its first image.
_MOST_LEVELS = 4

#: The attribute of packed stores that says what was packed, and what in it has the path of the ends of segments.
PACK_MANIFEST = "zarrfeed_pack"
PACK_SEGMENTS = "segment_ends"
#: The group of a replay buffer that describes its episodes.
EPISODES = "meta"


#: Wells of a plate whose metadata are read at once.
_WELLS_AT_ONCE = 16


class ManyImagesError(ConfigError):
    """A group of OME-Zarr that names many images was given where one array or group is read.

    Attributes
    ----------
    images
        The images, in the order of the metadata: paths, URLs, or groups of stores that have neither.
    """

    def __init__(self, message: str, images: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.images = images


def refusal(group: zarr.Group) -> ZarrfeedError | None:
    """Return the error for a group whose attributes say that its arrays are not fields of one sample; else None."""
    return _of_anndata(group, dict(group.attrs))


def without_arrays(group: zarr.Group) -> ZarrfeedError:
    """Return the error for a group that has no arrays but, maybe, groups."""
    groups = [key for key, member in _members(group) if isinstance(member, zarr.Group)]
    text = f"{_name(group)}: is a group without arrays"
    if groups:
        arrays = [f"{key}/{name}" for key in groups[:_MOST_PATHS] for name in _names_in(group, key, zarr.Array)]
        named = str(arrays[:1]) if arrays else "[...]"
        text += f"; groups in it, which depth=1 enters, or variables={named}: {', '.join(groups)}"
        sparse = [key for key in groups[:_MOST_PATHS] if encoding_of(member_of(group, key)) == "csr_matrix"]
        if sparse:
            text += f"; {member_path(group, sparse[0])} is a sparse matrix, whose rows are samples"
        of_alike = [key for key in ("", *groups[:_MOST_PATHS]) if _has_groups_alike(group, key)]
        if of_alike:
            pattern = member_path(group, f"{of_alike[0]}/*".lstrip("/"))
            which = f"the groups in {of_alike[0]}" if of_alike[0] else "them"
            text += f"; the pattern {pattern} opens {which} one after another, as one data set"
        root = _root(group)
        text += "" if root is None else f"; zarrfeed info --tree {shlex.quote(root)} draws all that lies there"
    return (_of_parents(group) if groups else None) or ConfigError(text)


def _has_groups_alike(group: zarr.Group, key: str) -> bool:
    """Return whether a group, or the group in it with a key, has groups whose members have the same names."""
    inside = member_of(group, key) if key else group
    groups = [one for _, one in _members(inside)] if isinstance(inside, zarr.Group) else []
    if len(groups) < 2 or not all(isinstance(one, zarr.Group) for one in groups):
        return False
    first, last = ({name for name, _ in _members(one)} for one in (groups[0], groups[-1]))  # type: ignore[arg-type]
    return bool(first) and first == last


def _names_in(group: zarr.Group, key: str, kind: type) -> list[str]:
    """Return the names of the arrays, or of the groups, in a group of the group."""
    inside = member_of(group, key)
    members = _members(inside) if isinstance(inside, zarr.Group) else []
    return [name for name, one in members if isinstance(one, kind)]


def not_an_array(name: str, group: zarr.Group) -> ZarrfeedError:
    """Return the error for a group that was given in place of an array."""
    known = _of_image(group) or refusal(group)
    if known is not None:
        return known
    try:
        arrays = ", ".join(sorted(group.array_keys()))
    except Exception as error:  # noqa: BLE001 (a damaged member: of any class, as in open_node)
        arrays = f"cannot be listed ({error!r})"
    if not arrays:
        known, arrays = _of_parents(group), "none"
        if known is not None:
            return known
    return ConfigError(f"{printable(name)}: is a group, must be an array; arrays in it: {arrays}")


def member_path(group: zarr.Group, member: str) -> str:
    """Return the path or URL of a member of a group, or an expression where it has none: what a user can open."""
    root = _root(group)
    if root is not None:
        return repr(_path_in(group, root, member))
    store, path = group.store, f"{group.path}/{member}".lstrip("/")
    if isinstance(store, ZipStore):
        return f"zarr.open_group(zarr.storage.ZipStore({printable(store.path)!r}, mode='r'), mode='r')[{path!r}]"
    return f"group[{member!r}]"


def _path_in(group: zarr.Group, root: str, member: str) -> str:
    return url_of(root, member) if isinstance(group.store, UrlStore) else f"{root}/{member}"


def _root(group: zarr.Group) -> str | None:
    store = group.store
    if isinstance(store, LocalStore):
        return printable(str(Path(store.root) / group.path))
    if isinstance(store, TableStore) and store.file is not None:
        return printable(f"{store.file}/{group.path}".rstrip("/"))
    return url_of(str(store), group.path).rstrip("/") if isinstance(store, UrlStore) else None


def _name(group: zarr.Group) -> str:
    return _root(group) or printable(str(group.store_path))


def _of_image(group: zarr.Group) -> ZarrfeedError | None:
    """Return the error for an image of OME-Zarr."""
    ome = attributes_of_ome(dict(group.attrs))
    paths = level_paths(dict(group.attrs))
    if not any(map(is_path, paths)):
        return None
    # The first one shown is the first one there is, also if it cannot be shown.
    levels = ", ".join(member_path(group, str(path)) if is_path(path) else "..." for path in paths[:_MOST_PATHS])
    axes = ", ".join(_axes(ome))
    along = f"; sample_axis says which of its axes ({axes}) has the samples" if axes else ""
    return ConfigError(
        f"{_name(group)}: is an OME-Zarr image, whose arrays are one image at several resolutions and not fields "
        f"of one sample; give one of multiscales[0].datasets, the first is the full resolution: {levels}{along}"
    )


def many_images(group: zarr.Group) -> ManyImagesError | None:
    """Return the images that a plate, a well or a collection of OME-Zarr names; None for any other group.

    Raises
    ------
    ConfigError
        If a plate names a well that is not there.
    """
    ome = attributes_of_ome(dict(group.attrs))
    plate, well = ome.get("plate"), ome.get("well")
    if isinstance(plate, dict):
        kind, paths = "plate", _images_of_wells(group, list(_paths(plate.get("wells"))))
    elif isinstance(well, dict):
        kind, paths = "well", list(_paths(well.get("images")))
    elif "bioformats2raw.layout" in ome:
        kind, paths = "collection", sorted((key for key, _ in _members(group) if key.isdecimal()), key=int)
    else:
        return None
    if not paths:
        return None
    root = _root(group)
    images = tuple(group[path] if root is None else _path_in(group, root, path) for path in paths)
    return ManyImagesError(
        f"{_name(group)}: is an OME-Zarr {kind} of {len(images)} images, which are many stores; give these, as a list "
        f"or a pattern, with targets for each{_examples(group, paths[:1])}",
        images,
    )


def _images_of_wells(group: zarr.Group, wells: list[str]) -> list[str]:
    """Return the paths of the images of all wells of a plate."""
    with ThreadPoolExecutor(_WELLS_AT_ONCE) as pool:
        found = list(pool.map(lambda path: member_of(group, path), wells))
    named = [None if member is None else attributes_of_ome(dict(member.attrs)).get("well") for member in found]
    missing = [path for path, well in zip(wells, named, strict=True) if not isinstance(well, dict)]
    if missing and len(missing) < len(wells):
        raise ConfigError(f"{_name(group)}: names the well {missing[0]}, which is not there; give a pattern of wells")
    return [
        f"{path}/{image}"
        for path, well in zip(wells, named, strict=True)
        for image in _paths(well.get("images") if isinstance(well, dict) else None)
    ]


def _of_parents(group: zarr.Group) -> ZarrfeedError | None:
    """Return the error for a group that has only groups: images of OME-Zarr, or elements of SpatialData."""
    attributes = dict(group.attrs)
    if "spatialdata_attrs" in attributes:
        elements = [f"{kind}/{key}" for kind in ("images", "labels") for key in _names_in(group, kind, zarr.Group)]
        elements += [f"tables/{key}/X" for key in _names_in(group, "tables", zarr.Group)]
        return ConfigError(
            f"{_name(group)}: is SpatialData, whose elements are not fields of one sample; give one"
            f"{_examples(group, elements)}; or zarrfeed.open(image, labels, sample_dim='y'), and .patch of it"
        )
    ome = attributes_of_ome(attributes)
    for key, kind in (
        ("plate", "plate of wells"),
        ("well", "well of images"),
        ("labels", "group of label images"),
        ("bioformats2raw.layout", "collection of images"),
    ):
        if key in ome:
            path = _first_level(group, _MOST_LEVELS)
            example = f", such as {member_path(group, path)}" if path else ""
            return ConfigError(
                f"{_name(group)}: is an OME-Zarr {kind}; give one array: a resolution of one image{example}"
            )
    return None


def level_paths(attributes: dict[str, Any]) -> list[object]:
    """Return the path of each level of an image of OME-Zarr, the full resolution first; none if it is no image.

    The index in the list is the number of the level, so every entry of `multiscales[0].datasets` is there as it is
    written, also one that is no path.
    """
    image = next(iter(_list(attributes_of_ome(attributes).get("multiscales"))), None)
    datasets = _list(image.get("datasets") if isinstance(image, dict) else None)
    return [one.get("path") if isinstance(one, dict) else None for one in datasets]


def attributes_of_ome(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of OME-Zarr: of version 0.5 below `ome`, of versions before at the top."""
    ome = attributes.get("ome")
    return ome if isinstance(ome, dict) else attributes


def _axes(ome: dict[str, Any]) -> list[str]:
    """Return the names of the first axes; "?" stands for an axis without one."""
    axes = [axis.get("name") if isinstance(axis, dict) else axis for axis in _list(ome["multiscales"][0].get("axes"))]
    return [name if isinstance(name, str) and len(name) <= _MOST_CHARS else "?" for name in axes[:_MOST_PATHS]]


def _first_level(group: zarr.Group, depth: int) -> str:
    """Return the path of the full resolution of an image in a plate, a well or the like; "" if not found."""
    ome = attributes_of_ome(dict(group.attrs))
    levels = level_paths(dict(group.attrs))
    if levels:
        return str(levels[0]) if is_path(levels[0]) else ""
    plate, well = ome.get("plate"), ome.get("well")
    inside = [
        *_paths(plate.get("wells") if isinstance(plate, dict) else None),
        *_paths(well.get("images") if isinstance(well, dict) else None),
        *filter(is_path, _list(ome.get("labels"))),
        *(["0"] if "bioformats2raw.layout" in ome else []),
    ]
    member = member_of(group, inside[0]) if inside and depth else None
    found = _first_level(member, depth - 1) if isinstance(member, zarr.Group) else ""
    return f"{inside[0]}/{found}" if found else ""


def _of_anndata(group: zarr.Group, attributes: dict[str, Any]) -> ZarrfeedError | None:
    """Return the error for AnnData, or for one of its elements that has several arrays."""
    kind = attributes.get("encoding-type")
    if kind == "anndata":
        return _of_anndata_root(group)
    name = f"{_name(group)}: is a {kind} of AnnData (encoding-type)"
    if kind == "csr_matrix":
        return ConfigError(f"{name}, a sparse matrix: give it by itself, as {member_path(group, '').rstrip('/')}")
    if kind == "csc_matrix":
        return UnsupportedError(
            f"{name}, a sparse matrix that is stored column by column; its rows are no runs of values, so convert it "
            "to csr_matrix (in scipy: X.tocsr())"
        )
    if kind == "dataframe":
        columns = [key for key, member in _members(group) if isinstance(member, zarr.Array)]
        codes = [f"{key}/codes" for key, member in _members(group) if encoding_of(member) == "categorical"]
        return ConfigError(
            f"{name}; give a column as an array{_examples(group, columns + codes)}, or name some: variables="
        )
    if kind == "categorical":
        return ConfigError(f"{name}; give its integers: {member_path(group, 'codes')}, indices to its categories")
    if kind in NULLABLE:
        return ConfigError(f"{name}; give {member_path(group, 'values')}: these mean nothing where `mask` is true")
    return None


def _of_anndata_root(group: zarr.Group) -> ZarrfeedError:
    given: list[str] = []
    by_column: list[str] = []
    matrices = [("X", member_of(group, "X"))]
    for folder in ("layers", "obsm"):
        inside = member_of(group, folder)
        if isinstance(inside, zarr.Group):
            matrices += [(f"{folder}/{key}", member) for key, member in _members(inside)]
    for path, member in matrices:
        if (isinstance(member, zarr.Array) and member.shape) or encoding_of(member) == "csr_matrix":
            given.append(path)
        elif encoding_of(member) == "csc_matrix":
            by_column.append(path)
    name = f"{_name(group)}: is AnnData (encoding-type), whose elements are not fields of one sample"
    example = [*given[:1], "obs/cell_type"]
    give = f"give a matrix{_examples(group, given)}" if given else "it has no matrix to give"
    several = f", or name elements: variables={example}" if given else ""
    unread = f"; matrices stored by column (csc_matrix) are not read: {', '.join(by_column[:_MOST_PATHS])}"
    return ConfigError(f"{name}; {give}{several}{unread * bool(by_column)}")


def episodes_of(group: zarr.Group) -> tuple[zarr.Group, zarr.Array[Any]] | None:
    """Return the data of a replay buffer, and the array with the ends of its episodes; None for any other group."""
    data, ends = member_of(group, "data"), member_of(group, f"{EPISODES}/episode_ends")
    if not isinstance(data, zarr.Group) or not isinstance(ends, zarr.Array):
        return None
    return data, ends


def segments_of(node: object) -> npt.NDArray[Any] | None:
    """Return the ends of the segments that a packed store names, such as recordings; None for any other object.

    Raises
    ------
    ConfigError
        If it names them, and they are not there.
    """
    manifest = dict(node.attrs).get(PACK_MANIFEST) if isinstance(node, zarr.Array | zarr.Group) else None
    named = manifest.get(PACK_SEGMENTS) if isinstance(manifest, dict) else None
    if named is None:
        return None
    where = printable(str(getattr(node, "store_path", node)))
    if isinstance(named, list):
        if not all(type(end) is int and 0 < end < 1 << 63 for end in named):
            raise ConfigError(f"{where}: {PACK_SEGMENTS} = {str(named)[:_MOST_CHARS]}, must be numbers of samples")
        return np.asarray(named, dtype=np.int64)
    ends = member_of(node, str(named)) if isinstance(node, zarr.Group) else None
    if not isinstance(ends, zarr.Array):
        raise ConfigError(f"{where}: names {named!r} as the ends of its segments, and lacks that array")
    return read_values(ends)


def _examples(group: zarr.Group, members: list[str]) -> str:
    shown = ", ".join(member_path(group, member) for member in members[:_MOST_PATHS])
    return f", such as {shown}" if shown else ""


def member_of(group: zarr.Group, path: str) -> zarr.Array[Any] | zarr.Group | None:
    """Return the node at a path in a group; None if there is none that can be read."""
    try:
        if isinstance(group.store, LocalStore):
            check_metadata_files(Path(group.store.root) / group.path / path.lstrip("/"))
        return checked(group[path])
    except Exception:  # noqa: BLE001 (not there, damaged, or no path at all: of any class)
        return None


def _members(group: zarr.Group) -> list[tuple[str, zarr.Array[Any] | zarr.Group]]:
    try:
        check_members(group)
        return list(islice(members_of(group).items(), 1000))
    except Exception:  # noqa: BLE001 (a damaged member)
        return []


def encoding_of(member: zarr.Array[Any] | zarr.Group | None) -> object:
    """Return AnnData's name of the kind of an element; None if it does not say."""
    return None if member is None else dict(member.attrs).get("encoding-type")


def _paths(value: object) -> Iterator[str]:
    """Yield paths in a list of objects of JSON that a message may name; an entry without one is passed over."""
    for one in _list(value):
        path = one.get("path") if isinstance(one, dict) else None
        if is_path(path):
            yield str(path)


def is_path(path: object) -> bool:
    """Return whether it is a path below a group, and short enough for a message."""
    return isinstance(path, str) and 0 < len(path) <= _MOST_CHARS and not {"", "..", "."} & set(path.split("/"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
