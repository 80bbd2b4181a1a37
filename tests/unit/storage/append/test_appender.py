"""`Appender` in one process: what was appended is there, in order and whole; what does not fit is refused."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.users import GROUP, OTHER, VICTIM, as_user, folder_of_all, tree, two_users
from zarrfeed import Appender, ClosedError, ConfigError, UnknownOptionError
from zarrfeed.base.file_lock import is_held
from zarrfeed.storage.append import appender as appender_module
from zarrfeed.storage.append.append_journal import Entries, Journal, side_directory


def rows(begin: int, end: int) -> Any:
    return np.arange(begin, end, dtype="i8")[:, None].repeat(3, 1)


def stored(path: Path, name: str = "") -> list[int]:
    """Return the samples, each of which must be whole."""
    values = np.asarray(zarr.open_array(path / name, mode="r")[:])
    assert (values == values[:, :1]).all()
    return [int(value) for value in values[:, 0]]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shard_rows", [None, 12])
@pytest.mark.parametrize("compressors", ["auto", None])
def test_batches_of_any_size_become_whole_chunks_in_order(
    tmp_path: Path, zarr_format: Any, shard_rows: int | None, compressors: Any
) -> None:
    if zarr_format == 2 and shard_rows:
        return
    path, unit = tmp_path / "a", shard_rows or 4
    random, end = np.random.default_rng(1), 0
    for session in range(4):  # each takes up the short chunk of the one before
        with Appender(
            path, chunk_rows=4, shard_rows=shard_rows, compressors=compressors, zarr_format=zarr_format
        ) as appender:
            for size in random.integers(0, 11, 9):
                appender.append(rows(end, end + size))
                end += int(size)
                visible = appender.flush()
                assert stored(path) == list(range(visible)), session
                assert end - visible < (unit if shard_rows is None else 2 * unit)
        if shard_rows is None:
            assert stored(path) == list(range(end))
        else:
            assert end - len(stored(path)) < unit, "what does not fill a shard waits"
    assert zarr.open_array(path, mode="r").metadata.zarr_format == zarr_format
    assert len(zarrfeed.open(path, refresh="epoch")) == len(stored(path))


def test_a_group_has_all_arrays_of_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with Appender(path, chunk_rows=4) as appender:
        for begin in (0, 7):
            appender.append({"x": rows(begin, begin + 7), "label": torch.arange(begin, begin + 7)})
    assert stored(path, "x") == list(range(14))
    assert (np.asarray(zarr.open_array(path / "label", mode="r")[:]) == np.arange(14)).all()
    dataset = zarrfeed.ZarrIterableDataset(zarrfeed.open(path, refresh="epoch"), batch_size=14)
    (batch,) = dataset
    assert torch.equal(batch["x"][:, 0], batch["label"])


def test_the_arrays_of_a_store_that_was_made_by_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "g"
    group = zarr.create_group(path, attributes={"a": 1})
    group.create_array("x", shape=(6, 3), chunks=(2, 2), dtype="i8", attributes={"unit": "K"})[:] = rows(0, 6)
    group.create_array("y", shape=(6,), chunks=(3,), dtype="f4", dimension_names=["time"])[:] = np.arange(6)
    with Appender(path) as appender:
        appender.append({"x": rows(6, 20), "y": np.arange(6, 20, dtype="f4")})
        assert appender.num_samples == 18, "6 is a multiple of both chunks' lengths"
    assert stored(path, "x") == list(range(20))
    x, y = [zarr.open_array(path / name, mode="r") for name in "xy"]
    metadata: Any = y.metadata
    assert (x.attrs["unit"], metadata.dimension_names, x.chunks) == ("K", ("time",), (2, 2))
    assert (np.asarray(y[:]) == np.arange(20)).all()
    assert zarr.open_group(path, mode="r").attrs["a"] == 1


def test_samples_of_nothing_but_the_fill_value_are_stored(tmp_path: Path) -> None:
    with Appender(tmp_path / "a", chunk_rows=2) as appender:
        appender.append(np.zeros((6, 3), "i8"))
    assert sorted(os.listdir(tmp_path / "a" / "c")) == ["0", "1", "2"]  # noqa: PTH208
    data = zarrfeed.open(tmp_path / "a", refresh="epoch", complete="chunks")
    assert len(list(zarrfeed.ZarrIterableDataset(data))) == 6


def test_batches_may_be_changed_after_flush(tmp_path: Path) -> None:
    batch = rows(0, 6)
    with Appender(tmp_path / "a", chunk_rows=4) as appender:
        appender.append(batch)
        assert appender.flush() == 4
        batch[:] = -1
    assert stored(tmp_path / "a") == list(range(6))


def test_an_error_while_writing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Appender(tmp_path / "a", chunk_rows=4) as appender:
        appender.append(rows(0, 4))
        write = Appender._write_rows

        def fail(self: Appender, unit: int, values: Any) -> None:
            write(self, unit, {name: one[:1] for name, one in values.items()})
            raise OSError(28, "no space left")

        monkeypatch.setattr(Appender, "_write_rows", fail)
        with pytest.raises(OSError, match="no space"):
            appender.append(rows(4, 10))
        monkeypatch.setattr(Appender, "_write_rows", write)
        assert stored(tmp_path / "a") == list(range(4))
        appender.append(rows(10, 14))
    assert stored(tmp_path / "a") == list(range(14))


def test_what_a_writer_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Appender(path, chunk_rows=4) as first:
        first.append(rows(0, 5))
    dead = Appender(path)
    with dead._journal.lock():
        entries = dead._entries()
        assert (dead._journal.claim(entries), entries.tail) == (1, 1)
        dead._journal.write(entries)
    with Appender(path) as other:
        other.append(rows(5, 9))
        assert stored(path) == [0, 1, 2, 3, 4], "unit 1 is another's, who lives; its first sample stays visible"
        dead._journal._alive.forget()  # type: ignore[union-attr]  # as the system does when a process is killed
        other.append(rows(9, 13))
        assert stored(path) == [0, 1, 2, 3, 4, 9, 10, 11, 5, 6, 7, 8]
    assert stored(path) == [0, 1, 2, 3, 4, 9, 10, 11, 5, 6, 7, 8, 12]


@pytest.mark.parametrize("units", [1, 2, 3])
def test_the_last_writer_closes_the_gaps_of_those_that_died(tmp_path: Path, units: int) -> None:
    path = tmp_path / "a"
    with Appender(path, chunk_rows=4) as first:
        first.append(rows(0, 6))
    dead = Appender(path)
    with Appender(path) as other:
        for unit in range(units):  # holes at 1, 3, 5: between them units of the other
            with dead._journal.lock():
                entries = dead._entries()
                entries.open[entries.end] = dead._journal.writer
                entries.end += 1
                dead._journal.write(entries)
            other.append(rows(6 + 4 * unit, 10 + 4 * unit))
        assert stored(path) == list(range(6))
        dead._journal._alive.forget()  # type: ignore[union-attr]
    assert sorted(stored(path)) == list(range(6 + 4 * units))
    assert stored(path)[:6] == list(range(6)), "what was visible did not move"


def test_a_store_that_was_deleted_or_replaced_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for _ in range(2):
        with Appender(path, chunk_rows=4) as appender:
            appender.append(rows(0, 10))
        assert stored(path) == list(range(10))
        shutil.rmtree(path)
    zarr.create_array(path, shape=(0, 3), chunks=(4, 3), dtype="i8")
    with Appender(path) as appender:
        appender.append(rows(0, 4))
        assert stored(path) == list(range(4)), "and not the length that the journal had"


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_is_declared_disposable_when_it_is_made_or_never(tmp_path: Path, zarr_format: Any) -> None:
    for disposable in (True, False):
        path = tmp_path / str(disposable)
        with Appender(path, chunk_rows=4, disposable=disposable, zarr_format=zarr_format) as appender:
            appender.append(rows(0, 4))
        marks: Any = zarr.open_array(path, mode="r").attrs["zarrfeed"]
        assert marks["disposable"] is disposable
    Appender(tmp_path / "True", disposable=True).close()
    Appender(tmp_path / "True").close()
    with pytest.raises(ConfigError, match="was not declared disposable"):
        Appender(tmp_path / "False", disposable=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_rows": 0}, "chunk_rows = 0, must be at least 1"),
        ({"chunk_rows": 2.5}, "chunk_rows = 2.5, must be"),
        ({"shard_rows": 4}, "must be a multiple of chunk_rows = None"),
        ({"chunk_rows": 4, "shard_rows": 6}, "must be a multiple of chunk_rows = 4"),
        ({"chunk_rows": 4, "shard_rows": 8, "zarr_format": 2}, "format 3"),
        ({"zarr_format": 4}, "zarr_format = 4"),
        ({"disposable": 1}, "disposable = 1"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Appender(tmp_path / "a", **options)
    assert not list(tmp_path.iterdir()), "nothing is made"


def test_paths_and_names_of_options_are_checked(tmp_path: Path) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: Appender("s3://bucket/a"), "must be the path of a directory"),
        (lambda: Appender(3), "path = 3"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(UnknownOptionError, match="did you mean 'chunk_rows'"):
        Appender(tmp_path / "a", chunk_row=4)  # type: ignore[call-arg]


def test_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    appender = Appender(tmp_path / "a", chunk_rows=4)
    for wrong, message in (
        (3, "must be numbers of samples"),
        (["a", None], "must be numbers of samples"),
        ({}, "is an empty mapping"),
        ({"x": [1], "y": [1, 2]}, r"lengths \{'x': 1, 'y': 2\}"),
        ({"x/y": [1]}, "has the key 'x/y'"),
        ({3: [1]}, "has the key 3"),
        (torch.zeros(2, dtype=torch.bfloat16), "cannot become a NumPy array"),
    ):
        with pytest.raises(ConfigError, match=message):
            appender.append(wrong)  # type: ignore[arg-type]
    appender.append({"x": rows(0, 4)})
    for wrong, message in (
        (rows(0, 4), "the store has 'x'"),
        ({"x": rows(0, 4), "y": [1] * 4}, "the store has 'x'"),
        ({"x": rows(0, 4)[:, :2]}, r"the store has \(3,\) and int64"),
        ({"x": rows(0, 4).astype("i4")}, "dtype int32"),
    ):
        with pytest.raises(ConfigError, match=message):
            appender.append(wrong)
    refused: list[tuple[Any, str]] = [
        ({"chunk_rows": 5}, "its chunks have 4"),
        ({"chunk_rows": 4, "shard_rows": 8}, "has 4"),
    ]
    for options, message in refused:
        with pytest.raises(ConfigError, match=message):
            Appender(tmp_path / "a", **options)
    appender.close()
    assert stored(tmp_path / "a", "x") == list(range(4))
    with pytest.raises(ClosedError, match="was closed"):
        appender.append({"x": rows(0, 4)})
    appender.close()


def test_the_first_batch_of_a_new_store_fits_what_it_makes(tmp_path: Path) -> None:
    numbers = np.arange(10)
    record = np.dtype([("a", ">i4"), ("b", ">f8")])
    for dtype in (">f4", ">u2", ">c16", ">M8[s]", record, "S3", ">U3"):
        values: Any = np.zeros(10, dtype) if dtype is record else numbers.astype(dtype)
        for zarr_format in (2, 3) if values.dtype.kind in "fucM" else (2,):  # of the others, v3 has no stable form
            path = tmp_path / f"{np.dtype(dtype).name}-{zarr_format}"
            for begin in (0, 5):  # the second one has the dtype of the store, in the other byte order
                with Appender(path, chunk_rows=4, zarr_format=zarr_format) as appender:
                    appender.append(values[begin : begin + 5])
            assert np.array_equal(np.asarray(zarr.open_array(path, mode="r")[:]), values), (dtype, zarr_format)


def test_a_batch_that_is_refused_leaves_no_store(tmp_path: Path) -> None:
    for name, batch in {
        "document": {"zarr.json": [1]},
        "backslash": {"a\\b": [1]},
        "nul": {"a\0b": [1]},
        "long": {"n" * 300: [1]},
        "no text": {"a\udcff": [1]},
    }.items():
        appender = Appender(tmp_path / name, chunk_rows=4)
        with pytest.raises(ConfigError, match=r"batch has the key .*cannot be the name of an array"):
            appender.append(batch)
        appender.close()
        assert not (tmp_path / name).exists(), name
        assert sorted(path.name for path in side_directory(tmp_path / name).iterdir()) == ["lock", "writers"], name


def test_a_close_that_failed_fails_again_until_all_is_written(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    appender = Appender(tmp_path / "a", chunk_rows=4)
    appender.append(rows(0, 10))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))  # as a full disk
        for _ in range(3):
            with pytest.raises(OSError, match="File too large"):
                appender.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    appender.append(rows(10, 11))  # it is still open
    appender.close()
    appender.close()
    assert stored(tmp_path / "a") == list(range(11))


@pytest.mark.parametrize("step", ["save_rows", "_write_rows", "_publish", "_delete_rests"])
def test_a_close_that_fails_anywhere_loses_nothing_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    appender = Appender(tmp_path / "a", chunk_rows=4)
    appender.append(rows(0, 6))
    owner = Appender if hasattr(Appender, step) else appender_module
    real = getattr(owner, step)

    def fail(*args: Any) -> None:
        real(*args)
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, fail)
        with pytest.raises(OSError, match="no space"):
            appender.close()
    appender.close()
    assert stored(tmp_path / "a") == list(range(6))


def test_an_appender_whose_store_or_journal_was_deleted_says_so_each_time(tmp_path: Path) -> None:
    for name in ("store", "journal"):
        path = tmp_path / name
        appender = Appender(path, chunk_rows=4)
        appender.append(rows(0, 6))
        if name == "store":
            shutil.rmtree(path)
        else:
            (side_directory(path) / "journal.json").unlink()
        for call in (lambda one=appender: one.append(rows(6, 10)), appender.close, appender.close):
            with pytest.raises(ConfigError, match=f"the {name}.* was deleted while this Appender was open"):
                call()
        assert path.exists() == (name == "journal"), "nothing is written to a store that is gone"
        del appender, call
        with Appender(path, chunk_rows=4) as another:
            another.append(rows(0, 4))


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "zeros", "another array"])
def test_a_rest_that_is_gone_or_damaged_locks_nobody_out(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a"
    one, two = Appender(path, chunk_rows=4), Appender(path, chunk_rows=4)
    one.append(rows(0, 6))
    one.close()  # its rest of 2 waits for the last writer
    (rest,) = side_directory(path).glob("rest-*.npz")
    content = rest.read_bytes()
    if damage == "gone":
        rest.unlink()
    elif damage == "another array":
        other: dict[str, Any] = {"rows/": np.zeros((2, 5))}
        np.savez(rest, **other)
    else:
        rest.write_bytes({"empty": b"", "cut": content[:-20], "zeros": bytes(len(content))}[damage])
    with pytest.warns(UserWarning, match=r"rest-.*is gone or damaged: these samples are lost"):
        two.append(rows(10, 16))
    two.close()
    with Appender(path) as three:
        three.append(rows(16, 18))
    assert stored(path) == [0, 1, 2, 3, *range(10, 18)]
    assert rest.exists() == (damage != "gone"), "what is left of it is not deleted"


def test_a_rest_is_deleted_when_the_journal_on_the_disk_names_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the writer that takes it into a unit, and by the last one, which writes what is left."""
    side, deleted = side_directory(tmp_path / "a"), list[str]()
    on_disk: list[str] = [""]  # the journal as of the last sync of its folder
    synced, unlinked = os.fsync, os.unlink

    def sync(descriptor: int) -> None:
        synced(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == side and (side / "journal.json").exists():
            on_disk[0] = (side / "journal.json").read_text()

    def unlink(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path).name.startswith("rest-"):
            assert Path(path).name not in on_disk[0]
            deleted.append(Path(path).name)
        unlinked(path, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "unlink", unlink)
    for last in (6, 1):  # which fills a unit, or leaves all rests to the end
        writers = [Appender(tmp_path / "a", chunk_rows=4) for _ in range(3)]
        for number, writer in enumerate(writers):
            writer.append(rows(0, last if number == 2 else 1))
            writer.close()
    assert len(deleted) >= 5


def test_a_shape_that_is_ahead_of_the_journal_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Appender(path, chunk_rows=4) as appender:
        appender.append(rows(0, 6))
    journal = side_directory(path) / "journal.json"
    old = journal.read_text()
    with Appender(path) as appender:
        appender.append(rows(6, 15))
    journal.write_text(old)  # as from a copy
    other = Appender(path)
    other.append(rows(15, 17))
    journal.write_text(old)
    for call in (lambda: Appender(path), lambda: other.append(rows(17, 20)), other.close):
        with pytest.raises(ConfigError, match="has 15 samples, and its writers know of 6: something else changed it"):
            call()
    other._journal._alive.forget()  # type: ignore[union-attr]  # the process ends there
    with Appender(path) as another:
        another.append(rows(20, 23))
    assert stored(path)[:15] == list(range(15)), "samples that readers saw stay what they were"


def test_a_writer_that_is_killed_while_it_closes_gaps_loses_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    one, two, dead = (Appender(path, chunk_rows=4) for _ in range(3))
    two.append(rows(0, 2))
    one.append(rows(2, 6))
    with dead._journal.lock():
        entries = one._entries()
        dead._journal.claim(entries)
        dead._journal.write(entries)
    one.append(rows(6, 10))  # a unit behind the one that is open
    dead._journal._alive.forget()  # type: ignore[union-attr]
    one.close()
    write, writes = Appender._write_rows, []

    def write_and_die(self: Appender, unit: int, values: Any) -> None:
        write(self, unit, values)
        writes.append(unit)
        if len(writes) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Appender, "_write_rows", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            two.close()
    two._journal._alive.forget()  # type: ignore[union-attr]  # the process ends there
    with Appender(path):
        pass
    assert sorted(stored(path)) == list(range(10))


def test_a_damaged_journal_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Appender(path, chunk_rows=4) as appender:
        appender.append(rows(0, 4))
    journal = side_directory(path) / "journal.json"
    for content in ("", "[]", json.dumps({"format": 9}), json.dumps({"format": 1, "end": 3})):
        journal.write_text(content)
        with pytest.raises(ConfigError, match="is no journal of this version"):
            Appender(path)


def test_a_unit_has_one_writer_and_samples_count_up_to_the_first_open_one(tmp_path: Path) -> None:
    first, second = Journal(tmp_path), Journal(tmp_path)
    entries = Entries("s", 10)
    assert [journal.claim(entries) for journal in (first, second)] == [0, 1]
    del entries.open[1]
    assert (entries.complete, entries.num_samples) == (0, 0)
    assert second.claim(entries) == 2
    del entries.open[0]
    assert (entries.complete, entries.num_samples) == (2, 20)
    assert first.others_live()
    assert is_held(tmp_path / "writers" / second.writer)
    second.leave()
    assert not first.others_live()
    assert first.claim(entries) == 2, "what the other left"


@pytest.mark.parametrize(
    "change",
    [
        {"rests": {"../other.npz": None}},
        {"rests": {"rest-0123456789abcdef.npz": "../../other.npz"}},
        {"rests": {"nothing.npz": None}},
        {"open": {"0": "../../other.npz"}},
        {"open": {"0": "/etc/passwd"}},
        {"open": {"7": "1-0123456789abcdef"}},
        {"open": {"-1": "1-0123456789abcdef"}},
        {"end": -5},
        {"end": 1.5},
        {"end": 2**62},
        {"tail": 99},
        {"tail": -1},
        {"unit_rows": 0},
        {"store": 3},
        {"more": 1},
    ],
)
def test_a_journal_that_no_writer_wrote_is_refused_and_touches_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    path, side = tmp_path / "s.zarr", tmp_path / "s.zarr.zarrfeed"
    with Appender(path, chunk_rows=4) as appender:
        appender.append(rows(0, 10))
    (tmp_path / "other.npz").write_bytes(b"precious")
    journal = side / "journal.json"
    journal.write_text(json.dumps(json.loads(journal.read_text()) | change))
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=r"journal\.json: is no journal of this version"):
        Appender(path, chunk_rows=4)
    assert {name: content for name, content in tree(tmp_path).items() if name in before} == before
    assert stored(path) == list(range(10))


@pytest.mark.parametrize("chunk_rows", [1, 4])
def test_a_journal_that_counts_units_which_nobody_wrote_is_refused(tmp_path: Path, chunk_rows: int) -> None:
    path = tmp_path / "s.zarr"
    with Appender(path, chunk_rows=chunk_rows) as appender:
        appender.append(rows(0, 10))
    journal = tmp_path / "s.zarr.zarrfeed" / "journal.json"
    written = json.loads(journal.read_text())
    complete = 10 // chunk_rows
    for end in (complete + 1, complete + 2, 100, 10**9):  # of short chunks, one unit more leaves the tail to be missed
        journal.write_text(json.dumps(written | {"end": end}))
        with pytest.raises(ConfigError, match=r"counts \d+ samples, the store has 10, and .* is not there"):
            Appender(path, chunk_rows=chunk_rows)
        assert stored(path) == list(range(10))
    journal.unlink()
    with Appender(path, chunk_rows=chunk_rows) as appender:
        appender.append(rows(10, 14))
    assert stored(path) == list(range(14))


def test_files_of_others_beside_a_store_are_neither_swept_nor_followed(tmp_path: Path) -> None:
    path, side, home = tmp_path / "s.zarr", tmp_path / "s.zarr.zarrfeed", tmp_path / "home"
    Appender(path, chunk_rows=4).close()
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    for name in ("thesis.tex", "1-2", "0-0123456789abcdef.txt"):
        (side / "writers" / name).write_text("not a writer's")
    (side / "writers" / "1-0123456789abcdef").symlink_to(home / "thesis.tex")
    (side / "lock").unlink()
    with Appender(path, chunk_rows=4) as appender:
        appender.append(rows(0, 10))
    assert stored(path) == list(range(10))
    assert (home / "thesis.tex").read_text() == "years of work"
    assert {"thesis.tex", "1-2", "0-0123456789abcdef.txt"} <= {one.name for one in (side / "writers").iterdir()}
    (side / "lock").unlink()
    (side / "lock").symlink_to(home / "made")
    with pytest.raises(OSError, match="symbolic links"):
        Appender(path, chunk_rows=4)
    assert not (home / "made").exists()
    for moved in (side / "writers", side):
        moved.rename(tmp_path / f"moved {moved.name}")
        moved.symlink_to(home)
        with pytest.raises(ConfigError, match="is a link, must be a folder that zarrfeed made"):
            Appender(path, chunk_rows=4)
        moved.unlink()
        (tmp_path / f"moved {moved.name}").rename(moved)
    assert tree(home) == {"thesis.tex": b"years of work"}


@two_users
def test_the_side_of_a_new_store_that_another_user_made_is_refused() -> None:
    with folder_of_all() as folder:
        path, side = folder / "s.zarr", folder / "s.zarr.zarrfeed"
        as_user(OTHER, lambda: Journal(side).leave())
        side.chmod(0o777)
        before = tree(folder)

        def append() -> None:
            with pytest.raises(ConfigError, match=rf"s\.zarr\.zarrfeed: belongs to uid {OTHER}"):
                Appender(path, chunk_rows=4)

        as_user(VICTIM, append)
        assert tree(folder) == before


@two_users
def test_two_users_of_a_group_append_to_one_store() -> None:
    with folder_of_all() as folder:
        team = folder / "team"
        team.mkdir()
        os.chown(team, VICTIM, GROUP)
        team.chmod(0o2775)

        def make_store(path: Path) -> None:
            os.umask(0o002)
            zarr.create_array(path, shape=(0, 3), chunks=(4, 3), dtype="i8")

        def append(begin: int, end: int, path: Path = team / "s.zarr") -> None:
            os.umask(0o002)
            with Appender(path, chunk_rows=4) as appender:
                appender.append(rows(begin, end))

        umask = os.umask(0o002)
        append(0, 10, folder / "first.zarr")  # imports what the users may not be able to read
        os.umask(umask)
        as_user(VICTIM, lambda: append(0, 10), [GROUP])
        as_user(OTHER, lambda: append(10, 25), [GROUP])
        as_user(VICTIM, lambda: append(25, 30), [GROUP])
        assert stored(team / "s.zarr") == list(range(30))
        as_user(VICTIM, lambda: make_store(team / "t.zarr"), [GROUP])  # not by an Appender
        as_user(OTHER, lambda: append(0, 10, team / "t.zarr"), [GROUP])
        as_user(VICTIM, lambda: append(10, 25, team / "t.zarr"), [GROUP])
        as_user(GROUP, lambda: append(25, 30, team / "t.zarr"), [GROUP])
        assert stored(team / "t.zarr") == list(range(30))
