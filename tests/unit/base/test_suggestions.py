"""Misspelt names: refused, with the name that was probably meant."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from tests.support.flat import iterable_dataset
from zarrfeed import (
    ConfigError,
    UnknownOptionError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrfeedError,
    ZarrIterableDataset,
)
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.tools import cli

ROWS = np.arange(40.0, dtype="f4").reshape(20, 2)


def made(**options: Any) -> ZarrIterableDataset:
    return iterable_dataset(ROWS, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: made(shufle=True), "ZarrIterableDataset() has no argument 'shufle'; did you mean 'shuffle'?"),
        (lambda: made(batchsize=3), "ZarrIterableDataset() has no argument 'batchsize'; did you mean 'batch_size'?"),
        (lambda: made(Seed=3), "ZarrIterableDataset() has no argument 'Seed'; did you mean 'seed'?"),
        (
            lambda: made(prefetch_factor=3),
            "ZarrIterableDataset() has no argument 'prefetch_factor': it is an argument of ZarrDataLoader: "
            "ZarrDataLoader(dataset, num_workers=2)",
        ),
        (
            lambda: zarrfeed.open(ROWS).bucket_by_length(zzz=3),  # type: ignore[call-arg]
            "Data.bucket_by_length() has no argument 'zzz'; it takes batch_size, pool, lengths",
        ),
        (
            lambda: ZarrDataset(ROWS, return_idx=True),  # type: ignore[call-arg]
            "ZarrDataset() has no argument 'return_idx'; did you mean 'return_index'?",
        ),
        (
            lambda: ZarrDataset(ROWS, shuffle=True),  # type: ignore[call-arg]
            "ZarrDataset() has no argument 'shuffle': it is an argument of torch's DataLoader: "
            "DataLoader(ZarrDataset(data), batch_size=8, shuffle=True)",
        ),
        (
            lambda: ZarrDataLoader(made(batch_size=2), numworkers=1),  # type: ignore[call-arg]
            "ZarrDataLoader() has no argument 'numworkers'; did you mean 'num_workers'?",
        ),
        (
            lambda: ZarrDataLoader(made(batch_size=2), batch_size=1),  # type: ignore[call-arg]
            "ZarrDataLoader() has no argument 'batch_size'; it is an argument of Data.bucket_by_length, "
            "ZarrIterableDataset",
        ),
        (
            lambda: zarrfeed.open(ROWS).split([0.5, 0.5], sede=1),  # type: ignore[call-arg]
            "Data.split() has no argument 'sede'; did you mean 'seed'?",
        ),
    ],
)
def test_unknown_arguments_are_type_errors_that_name_the_one_that_was_meant(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == message
    assert type(error.value) is UnknownOptionError
    assert isinstance(error.value, ZarrfeedError)
    assert isinstance(error.value, ConfigError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zarrfeed.open(ROWS).window((0,), leads=(6, 12)), r"'leads': it is offsets: window\(\{'z'"),  # type: ignore[call-arg]
        (lambda: zarrfeed.open(ROWS).window(seq_len=8), r"'seq_len': it is offsets: window\(8\)"),  # type: ignore[call-arg]
        (lambda: zarrfeed.open(ROWS, engine="zarr"), "'engine': it is not needed"),  # type: ignore[call-arg]
        (lambda: zarrfeed.open(ROWS, batch_size=3), "'batch_size': it is an argument of ZarrIterableDataset"),  # type: ignore[call-arg]
        (lambda: zarrfeed.open(ROWS)[["u", "v"]], r"arrays are named by open\(variables=\['u', 'v'\]\)"),
        (lambda: zarrfeed.open(ROWS)["u"], r"arrays are named by open\(variables=\['u'\]\)"),
    ],
)
def test_arguments_of_other_libraries_are_answered_by_ours(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_errors_of_python_about_a_call_name_the_class_that_users_know() -> None:
    data = zarrfeed.open(ROWS)
    methods = {name: getattr(data, name) for name in dir(zarrfeed.Data) if not name.startswith("_")}
    for name, method in methods.items():
        if callable(method):
            with pytest.raises((TypeError, ConfigError), match=rf"^(Data\.{name}\(\) takes|{name}\b)"):
                method(*[object()] * 30)


def test_a_class_that_derives_from_ours_has_arguments_of_its_own() -> None:
    class Mine(ZarrIterableDataset):
        def __init__(self, samples: Any, *, shufle: bool) -> None:
            super().__init__(samples, shuffle=shufle, batch_size=4)

    assert Mine(ROWS, shufle=True).explain().shuffle
    with pytest.raises(UnknownOptionError, match="did you mean 'mix'"):
        Mine.__mro__[1](ROWS, mixx=2)


@pytest.mark.parametrize("kind", [ZarrIterableDataset, ZarrDataset, ZarrDataLoader])
def test_the_signature_is_as_it_is_written(kind: Any) -> None:
    """Frameworks make loaders anew from what `inspect.signature` says."""
    parameters = inspect.signature(kind).parameters
    assert "kwargs" not in parameters
    assert ("data" in parameters) is not (kind is ZarrDataLoader)
    assert kind.__init__.__qualname__ == f"{kind.__name__}.__init__"


def test_datasets_can_still_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(made(batch_size=3))).batch_size == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: made(on_error="skipp"), "on_error = 'skipp', must be one of 'raise', 'skip'; did you mean 'skip'?"),
        (lambda: made(missing="FILL"), "missing = 'FILL', must be one of 'fill', 'raise'; did you mean 'fill'?"),
        (
            lambda: made(even="dropp"),
            "even = 'dropp', must be one of 'drop', 'repeat', 'off'; did you mean 'drop'?",
        ),
        (
            lambda: made(block="chunks"),
            "block = 'chunks', must be one of 'auto', 'slab', 'chunk', 'shard'; did you mean 'chunk'?",
        ),
        (
            lambda: zarrfeed.open(ROWS).split([0.5, 0.5], by="chunks"),  # type: ignore[arg-type]
            "by = 'chunks', must be one of 'chunk', 'shard', 'sample', 'contiguous', 'hash'; did you mean 'chunk'?",
        ),
        (
            lambda: zarrfeed.verify("nowhere", missing="eror"),  # type: ignore[arg-type]
            "missing = 'eror', must be one of 'count', 'error'; did you mean 'error'?",
        ),
        (
            lambda: made(offsets=(0, 1), window_rows="al"),
            "rows = 'al', must be 'selected', 'all', or rows: a slice, indices, or a mask; did you mean 'all'?",
        ),
        (lambda: made(even=["drop"]), "even = ['drop'], must be one of 'drop', 'repeat', 'off'"),
    ],
)
def test_words_that_are_not_known_name_the_one_that_was_meant(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *[("bf16", "'bfloat16'"), ("BF16", "'bfloat16'"), ("half", "'float16'"), ("fp16", "'float16'")],
        *[("f16", "'float16'"), ("fp32", "'float32'"), ("F32", "'float32'"), ("single", "'float32'")],
        *[("double", "'float64'"), ("float", "'float32' or 'float64'"), ("long", "'int64' or 'int32'")],
        *[("flaot32", "'float32'"), ("bfloat_16", "'bfloat16'"), ("Float32", "'float32'"), ("i64", "'int64'")],
    ],
)
def test_dtypes_by_other_names_are_refused_with_ours(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(dtype=name)
    assert str(error.value).startswith(f"dtype of samples = '{name}', must be a dtype: one of bool, ")
    assert str(error.value).endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        *[("float16", torch.float16), ("bfloat16", torch.bfloat16), (torch.float64, torch.float64)],
        *[("f8", torch.float64), ("<f2", torch.float16), ("d", torch.float64), (np.float16, torch.float16)],
        (np.dtype(">f4"), torch.float32),
    ],
)
def test_dtypes_by_their_names_and_codes_are_taken(dtype: Any, expected: torch.dtype) -> None:
    with made(dtype=dtype, batch_size=20) as dataset:
        (batch,) = dataset
    assert batch.dtype == expected


def test_names_of_variables_and_dimensions_are_suggested(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    names = ("time", "latitude")
    group.create_array("temperature", data=np.zeros((6, 4), "f4"), dimension_names=names)
    for options, meant in (
        ({"variables": ["temprature"]}, "temperature"),
        ({"sample_dim": "tiem"}, "time"),
        ({"variables": ["temperature"], "sample_dim": "lattitude"}, "latitude"),
        ({"dtype": {"temperatures": "float16"}}, "temperature"),
        ({"offsets": {"temperatur": (0, 1)}}, "temperature"),
        ({"normalize": ([0.0] * 4, [1.0] * 4), "normalize_axis": "lat"}, None),
        ({"normalize": ([0.0] * 4, [1.0] * 4), "normalize_axis": "latitudes"}, "latitude"),
    ):
        with pytest.raises(ConfigError) as error:
            iterable_dataset(tmp_path / "g", **options)
        assert str(error.value).endswith(f"; did you mean '{meant}'?") == (meant is not None), str(error.value)


def test_nothing_is_suggested_where_nothing_is_similar() -> None:
    assert did_you_mean("zzz", ["seed", None, 3]) == ""
    assert did_you_mean(None, ["seed"]) == ""
    assert did_you_mean(3, ["3"]) == ""
    assert did_you_mean("SEED", ["seed"]) == "; did you mean 'seed'?"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["explian", "x"],
            "(choose from 'demo', 'info', 'explain', 'bench', 'verify', 'stats', 'index', 'pack', 'cache'); "
            "did you mean 'explain'?",
        ),
        (["explain", "x", "--shufle"], "unrecognized arguments: --shufle; did you mean '--shuffle'?"),
        (["explain", "x", "--batchsize=3"], "unrecognized arguments: --batchsize=3; did you mean '--batch-size'?"),
        (["bench", "x", "--block", "chunks"], "(choose from 'auto', 'slab', 'chunk', 'shard'); did you mean 'chunk'?"),
        (["verify", "x", "--missing", "eror"], "(choose from 'count', 'error'); did you mean 'error'?"),
        (["explain", "x", "--qqq"], "unrecognized arguments: --qqq"),
        (["bench", "x", "y"], "unrecognized arguments: y"),
    ],
)
def test_options_of_the_command_line_are_suggested(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == cli.EXIT_ERROR
    assert capsys.readouterr().err.rstrip("\n").replace('"', "'").endswith(message)
