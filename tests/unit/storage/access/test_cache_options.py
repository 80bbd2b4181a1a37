"""Who shares a node cache: the group that is named, the line that tells of a change, and what another user made."""

from __future__ import annotations

import os
import pickle
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrfeed
import zarrfeed.objects
from tests.support.users import GROUP, OTHER, VICTIM, as_user, folder_of_all, two_users
from zarrfeed import ConfigError
from zarrfeed.base.native import core
from zarrfeed.storage.access.cache_options import CacheOptions, group_number, usual_limit
from zarrfeed.tools import cli
from zarrfeed.tools.cache.entries import check_cache, clear_cache, describe_cache

KEY = "c/0"


def called(cache: core.CacheDirectory) -> core.CachedArray:
    return core.CachedArray(cache, store="s3://bucket", prefix="", versions=core.ObjectVersions("v"))


def filled(path: Path) -> Path:
    """Make a cache with one entry; return the path of the entry's file."""
    directory = core.CacheDirectory(os.fsencode(path), 1 << 20)
    assert called(directory).admit(KEY, 0, None, np.arange(100, dtype=np.uint8)) == "admitted"
    directory.close()
    return next(file for file in (path / "entries").rglob("*") if file.is_file() and file.name != "store")


def open_to_others(path: Path, folder: int, file: int) -> None:
    for one in path.rglob("*"):
        one.chmod(folder if one.is_dir() else file)
    path.chmod(folder)


def modes(path: Path) -> set[str]:
    """Return the access rights of all folders and files of a cache, d700 for example."""
    found = [path, *path.rglob("*")]
    return {("d" if one.is_dir() else "f") + format(stat.S_IMODE(one.lstat().st_mode), "o") for one in found}


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("no such group", "cache_group = 'no such group': this machine has no such group"),
        ("", "cache_group = '', must be the name or the number of a group"),
        (True, "cache_group = True, must be the name or the number"),
        (1.5, "cache_group = 1.5, must be the name or the number"),
        (-1, "cache_group = -1: this machine has no such group"),
        (2**32 - 1, "this machine has no such group"),
        (2**70, "this machine has no such group"),
        ("a\0b", "this machine has no such group"),
    ],
)
def test_a_group_that_cannot_be_is_refused_before_anything_is_made(tmp_path: Path, group: Any, message: str) -> None:
    for limit in ("1MiB", None):
        with pytest.raises(ConfigError) as caught:
            zarrfeed.open(np.zeros(3), cache=tmp_path / "cache", cache_limit=limit, cache_group=group)
        assert message in str(caught.value)
        assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigError, match="cache_group = 'users' without cache"):
        zarrfeed.open(np.zeros(3), cache_group="users")


def test_all_that_opens_a_cache_takes_the_group(tmp_path: Path) -> None:
    group = os.getegid()
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "a").write_bytes(b"a")
    zarrfeed.open(np.zeros(3), cache=tmp_path / "a", cache_limit="1MiB", cache_group=group)
    zarrfeed.objects.open(tmp_path / "objects", cache=tmp_path / "b", cache_limit="1MiB", cache_group=group)
    options = CacheOptions.parse(tmp_path / "c", "1MiB", None, group)
    assert options is not None
    assert options == pickle.loads(pickle.dumps(options)), "workers open the cache with the same group"
    assert options.directory() is pickle.loads(pickle.dumps(options)).directory()
    for name in "abc":
        assert modes(tmp_path / name) == {"d2770", "f660"}
        with pytest.raises(ConfigError, match="give cache_group="):
            CacheOptions.parse(tmp_path / name, "1MiB")
        for command in ("info", "verify", "clear"):
            assert cli.main(["cache", command, str(tmp_path / name)]) == cli.EXIT_ERROR
            assert cli.main(["cache", command, str(tmp_path / name), "--cache-group", str(group)]) == 0


@pytest.mark.parametrize("limit", ["1MiB", None])
@pytest.mark.parametrize("group", [None, os.getegid()])
def test_a_cache_with_wider_access_is_closed_once_with_one_line(tmp_path: Path, limit: Any, group: Any) -> None:
    path = tmp_path / "cache"
    entry = filled(path)
    open_to_others(path, 0o755, 0o644)
    with pytest.warns(UserWarning, match="had mode 0755, and is now closed to all but") as told:
        options = CacheOptions.parse(path, limit, None, group)
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert options is not None
    assert modes(path) == ({"d700", "f600"} if group is None else {"d2770", "f660"})
    assert called(options.directory()).read(KEY, max_bytes=1000) == bytes(range(100))
    assert entry.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        core.CacheDirectory(os.fsencode(path), 1 << 20, group)
        CacheOptions.parse(path, limit, None, group)
        usual_limit(str(path), group)


def test_commands_follow_no_link_that_lies_among_the_entries(tmp_path: Path) -> None:
    path, home = tmp_path / "cache", tmp_path / "home"
    entry = filled(path)
    home.mkdir()
    for name in ("0" * 30, "thesis.tex", "store"):
        (home / name).write_bytes(entry.read_bytes())
    (path / "entries" / ("0" * 16)).symlink_to(tmp_path)
    (entry.parent.parent / "zz").symlink_to(home)
    (entry.parent / ("0" * 30)).symlink_to(home / "thesis.tex")
    assert describe_cache(path).stores == {"s3://bucket": (1, entry.stat().st_size)}
    checked = check_cache(path, lambda _: None)
    assert (checked.good, checked.damaged) == (1, [])
    entry.write_bytes(b"damaged")
    assert len(check_cache(path, lambda _: None).damaged) == 1
    assert clear_cache(path, ("s3://bucket", "")) == 0
    filled(path)
    assert clear_cache(path, ("s3://bucket", "")) > 0
    filled(path)
    assert clear_cache(path) > 0
    assert sorted(one.name for one in home.iterdir()) == ["0" * 30, "store", "thesis.tex"]
    assert list((path / "entries").iterdir()) == []


@two_users
def test_the_cache_of_another_user_is_refused_and_the_refusal_says_how_to_share_it() -> None:
    with folder_of_all() as folder:
        home, cache = folder / "home", folder / "cache"

        def make_home() -> None:
            home.mkdir(mode=0o700)
            for name in ("thesis.tex", "id_ed25519", "1-2-3"):
                (home / name).write_text("years of work")

        def attack() -> None:
            filled(cache)
            (cache / "tmp").rmdir()
            (cache / "tmp").symlink_to(home)
            cache.chmod(0o755)

        def suffer() -> None:
            limits: tuple[str | None, ...] = (None, "1GiB")
            for limit in limits:
                with pytest.raises(
                    ConfigError, match=rf"belongs to uid {OTHER}, .* runs as uid {VICTIM}.*cache_group="
                ):
                    zarrfeed.open(np.zeros(3), cache=cache, cache_limit=limit)
            for command in ("info", "verify", "clear"):
                assert cli.main(["cache", command, str(cache)]) == cli.EXIT_ERROR
            with pytest.raises(ConfigError, match=f"cache_group = {GROUP}: this process does not belong to that group"):
                group_number(GROUP)
            assert sorted(one.name for one in home.iterdir()) == ["1-2-3", "id_ed25519", "thesis.tex"]

        as_user(VICTIM, make_home)
        as_user(OTHER, attack)
        as_user(VICTIM, suffer)


@two_users
def test_a_process_that_becomes_another_user_opens_its_own_cache() -> None:
    with folder_of_all() as folder:
        options = CacheOptions.parse(folder / "cache", "1MiB")
        assert options is not None

        def become() -> None:
            mine = CacheOptions.parse(folder / "mine", "1MiB")
            assert mine is not None
            assert (folder / "mine").stat().st_uid == VICTIM
            directory = options.directory()  # root's folder, which nobody else can open
            assert directory.trouble() != ""
            assert not directory.is_writable()

        as_user(VICTIM, become)


@two_users
def test_members_of_a_group_share_what_each_of_them_adds() -> None:
    with folder_of_all() as folder:
        path = folder / "cache"

        def add(key: str) -> None:
            os.umask(0o077)
            options = CacheOptions.parse(path, "1MiB", None, GROUP)
            assert options is not None
            array = called(options.directory())
            assert array.admit(key, 0, None, np.arange(100, dtype=np.uint8)) == "admitted"
            assert all(array.read(key, max_bytes=1000) is not None for key in {key, "first"})

        as_user(VICTIM, lambda: add("first"), [GROUP])
        as_user(OTHER, lambda: add("second"), [GROUP])
        as_user(VICTIM, lambda: add("third"), [GROUP])
        assert modes(path) == {"d2770", "f660"}
        assert {one.stat().st_gid for one in path.rglob("*")} == {GROUP}

        def look() -> None:
            with pytest.raises(ConfigError, match="does not belong to that group"):
                CacheOptions.parse(path, "1MiB", None, GROUP)
            with pytest.raises(ConfigError, match="cache_group="):
                CacheOptions.parse(path, "1MiB")

        as_user(OTHER, look)


@two_users
def test_a_cache_below_a_folder_that_must_not_be_looked_into_is_not_used() -> None:
    with folder_of_all() as folder:
        (folder / "private").mkdir(mode=0o700)

        def use() -> None:
            made = CacheOptions.parse(folder / "private" / "cache")
            assert made is not None
            assert "Permission denied" in made.directory().trouble()

        as_user(VICTIM, use)
