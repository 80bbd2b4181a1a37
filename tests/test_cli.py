"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import cli


@pytest.fixture
def store(tmp_path: Path) -> Path:
    group = zarr.create_group(store=tmp_path / "store.zarr")
    samples = group.create_array("samples", shape=(64, 3, 5), chunks=(8, 3, 5), dtype="f4")
    samples[...] = np.random.default_rng(0).random((64, 3, 5), dtype=np.float32)
    targets = group.create_array("targets", shape=(64,), chunks=(4,), dtype="i8")
    targets[...] = np.arange(64)
    return tmp_path / "store.zarr"


def fails(argv: list[str], capsys: pytest.CaptureFixture[str], status: int = cli.EXIT_ERROR) -> str:
    """Run, expect one line on stderr, nothing on stdout; return the line."""
    assert cli.main(argv) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("zarrfeed: ")
    assert err.count("\n") == 1
    return err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"zarrfeed {zarrfeed.__version__}\n"


def test_the_command_line_imports_nothing_of_the_demo() -> None:
    code = (
        "import sys, zarrfeed.cli; "
        "sys.exit(any(m in sys.modules for m in ('rich', 'matplotlib', 'h5py', 'zarrfeed.demo')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_explain_prints_what_the_dataset_says(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, targets = str(store / "samples"), str(store / "targets")
    options = ["--batch-size", "16", "--shuffle", "--lanes", "4", "--mix", "2", "--memory-budget", "64MiB"]
    assert cli.main(["explain", samples, "--targets", targets, *options]) == 0
    with zarrfeed.ZarrIterableDataset(
        samples, targets, batch_size=16, shuffle=True, lanes=4, mix=2, memory_budget="64MiB"
    ) as dataset:
        assert capsys.readouterr().out == f"{dataset.explain()}\n"


def test_explain_takes_a_sample_axis(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(store / "samples"), "--sample-axis", "1"]) == 0
    with zarrfeed.ZarrIterableDataset(str(store / "samples"), sample_axis=1) as dataset:
        assert capsys.readouterr().out == f"{dataset.explain()}\n"


def test_a_store_that_is_not_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.zarr" in fails(["explain", str(tmp_path / "nothing.zarr")], capsys)


def test_explain_takes_a_group(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(store), "--batch-size", "4"]) == 0
    with zarrfeed.ZarrIterableDataset(str(store), batch_size=4) as dataset:
        page = capsys.readouterr().out
        assert page == f"{dataset.explain()}\n"
    assert "samples['samples']" in page
    assert "samples['targets']" in page


def test_a_group_whose_arrays_do_not_fit_together_is_told_in_one_line(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = zarr.open_group(store)["targets"]
    assert isinstance(targets, zarr.Array)
    targets.resize((60,))
    message = fails(["explain", str(store)], capsys)
    assert "samples['targets'] has 60 samples" in message


@pytest.mark.parametrize(
    ("option", "value"), [("--batch-size", "0"), ("--lanes", "0"), ("--mix", "0"), ("--memory-budget", "1 furlong")]
)
def test_a_wrong_option_is_told_in_one_line(
    store: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    message = fails(["explain", str(store / "samples"), "--shuffle", option, value], capsys)
    assert option.removeprefix("--").replace("-", "_") in message
    assert value in message


@pytest.mark.parametrize("options", [["--epochs", "0"], ["--stream-mb", "-1"], ["--seed", "-1"], ["--epochs", "two"]])
def test_the_demo_refuses_numbers_that_make_no_sense(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", *options])
    assert stop.value.code == cli.EXIT_ERROR
    assert "must be an integer" in capsys.readouterr().err


def test_without_the_extra_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)  # what an import of a missing module finds
    monkeypatch.setitem(sys.modules, "rich", None)
    assert fails(["demo"], capsys) == 'zarrfeed: the demo needs rich, h5py: pip install "zarrfeed[demo]"\n'


def test_ctrl_c_ends_quietly(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: zarrfeed.ZarrIterableDataset) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zarrfeed.ZarrIterableDataset, "explain", interrupt)
    assert cli.main(["explain", str(store / "samples")]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_leaves_early_is_no_error(store: Path) -> None:
    code = f"import sys; from zarrfeed.cli import main; sys.exit(main(['explain', {str(store / 'samples')!r}]))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything was written: the pipe is broken for sure
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == cli.EXIT_FAILED


def test_the_installed_command_runs(store: Path) -> None:
    command = Path(sys.executable).with_name("zarrfeed")
    if not command.exists():
        pytest.skip("the package is not installed next to this interpreter")
    done = subprocess.run(
        [command, "explain", store / "samples"], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "64 in the array" in done.stdout
