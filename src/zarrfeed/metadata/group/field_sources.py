"""The sources of fields, before they are read: leaves of mappings, arrays of groups, and names in messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError, printable
from zarrfeed.metadata.array.open import members_of_group
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.given_stores import is_mapper
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.access.local_files import check_members, local_path
from zarrfeed.storage.access.store_errors import reason_of
from zarrfeed.storage.files.inside_path import split_at_file
from zarrfeed.storage.files.manifests import open_virtual_dataset
from zarrfeed.storage.files.opened_files import open_mapped, path_of_opened
from zarrfeed.storage.files.table_store import TableStore


def leaves(source: Any) -> list[Any]:
    """Return the arrays of a mapping, or the source itself."""
    return list(source.values()) if isinstance(source, Mapping) and not is_mapper(source) else [source]


def in_files(source: Any, side: str = "samples") -> Any:
    """Return a source with paths or stores in place of what h5py, netCDF4 or NumPy opened, also in mappings and lists.

    Raises
    ------
    ConfigError
        If a file was closed, or something of xarray is among the sources.
    """
    path = path_of_opened(source)
    if path is not None:
        return path
    virtual = open_virtual_dataset(source)
    if virtual is not None:
        return virtual
    if type(source).__module__.partition(".")[0] == "xarray":
        raise ConfigError(
            f"{side}: got an xarray.{type(source).__name__}: zarrfeed.from_xarray reads the arrays behind it, such as "
            "zarrfeed.from_xarray(dataset, sample_dim='time')"
        )
    if isinstance(source, Mapping) and not is_mapper(source):
        return {name: in_files(one, side) for name, one in source.items()}
    if isinstance(source, list | tuple):
        return [in_files(one, side) for one in source]
    mapped = open_mapped(source)
    return source if mapped is None else zarr.open_array(store=mapped, mode="r")


def refuse_member(samples: Any, targets: Any) -> None:
    """Raise ConfigError if targets are the name of something in the samples: targets are a source of their own."""
    if not all(isinstance(one, str | Path) and not is_url(one) for one in (samples, targets)):
        return
    store, name = local_path(samples), str(targets)
    if not local_path(name).exists() and store.exists() and not Path(name).is_absolute():
        inside = f"{samples}/{name}"
        if (store / name).exists() or split_at_file(Path(inside))[1]:
            raise ConfigError(
                f"targets: {name!r} does not exist. Of {printable(samples)}, variables=[{name!r}] of zarrfeed.open "
                f"reads this array alone; {printable(inside)!r} is its path, also as targets"
            )


def arrays_in(side: str, group: zarr.Group, access: StoreAccess) -> dict[str, zarr.Array[Any]]:
    """Return the arrays in a group, by name. Raises as `members_in`."""
    return {name: one for name, one in members_in(side, group, access).items() if isinstance(one, zarr.Array)}


def members_in(side: str, group: zarr.Group, access: StoreAccess) -> dict[str, zarr.Array[Any] | zarr.Group]:
    """Return the arrays and the groups in a group, by name.

    Errors name the side of the batch, which may be "", and the member that is damaged.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If a member is damaged, or the group cannot be listed.
    """
    check_members(group)
    try:
        return members_of_group(group, access)
    except StoreReadError:
        raise
    except ZarrfeedError as error:
        raise type(error)(f"{side}: {error}" if side else str(error)) from error.__cause__
    except Exception as error:  # a store is anybody's code
        path = node_name(group)
        name = f"{side}: {path}" if side else path
        what = f"{name}: zarr-python cannot list the group: {reason_of(error)}{_remedy_of(group)}"
        raise ConfigError(what) from error


def _remedy_of(group: zarr.Group) -> str:
    """Return the remedy where a group cannot be listed: web servers list nothing that their clients understand."""
    if type(getattr(group.store, "store", None)).__name__ != "HTTPStore":
        return ""
    return (
        "; a web server lists no arrays: consolidate the metadata (zarr.consolidate_metadata), or name the arrays, "
        f'such as {{"x": "{printable(str(group.store_path))}/x"}}'
    )


def check_readable(side: str, group: zarr.Group, variables: Sequence[str] | None) -> None:
    """Refuse arrays of a file that cannot be read, if they are chosen, or if there is no other array in the group.

    Raises
    ------
    UnsupportedError
        If so; names the array and the reason.
    """
    store = group.store
    if not isinstance(store, TableStore):
        return
    chosen = [f"{group.path}/{name}".lstrip("/") for name in variables or ()]
    if variables is None and not any(True for _ in group.array_keys()):
        chosen = store.refused_in(group.path)
    with naming(side):
        for path in chosen:
            store.check_readable(path)


def checked_mapping(side: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of names to arrays, or refuse it."""
    if not source:
        raise ConfigError(f"{side}: is an empty mapping, must name at least one array")
    if {"version", "refs"} <= set(source):
        raise ConfigError(f"{side}: is a mapping of references: write it to a file, json.dump, and give its path")
    for key in source:
        if not isinstance(key, str):
            raise ConfigError(f"{side}: has the key {key!r}, a {type(key).__name__}; names must be str")
    return dict(source)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the field's name in front of the messages of our errors."""
    try:
        yield
    except StoreReadError as error:
        raise StoreReadError(error.errno, f"{name}: {error.strerror}") from error
    except ZarrfeedError as error:
        if str(error).startswith(name):
            raise
        raise type(error)(f"{name}: {error}") from error
