"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import zarrfeed
from tests.support import warm
from tests.support.cases import case
from tests.support.scripts import run_new_script
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.group.variables import sample_dim_advice
from zarrfeed.tools import cli, dry_run


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
        "import sys, zarrfeed.tools.cli; "
        "sys.exit(any(m in sys.modules for m in ('rich', 'matplotlib', 'h5py', 'zarrfeed.tools.demo')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0


def test_the_package_runs_as_a_module(store: Path) -> None:
    run = [sys.executable, "-m", "zarrfeed"]
    done = subprocess.run([*run, "--version"], check=False, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"zarrfeed {zarrfeed.__version__}\n", "")
    done = subprocess.run([*run, "info", store / "gone"], check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == cli.EXIT_ERROR
    assert done.stderr.startswith("zarrfeed: ")


def test_info_and_explain_are_one_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for command in ("info", "explain"):
        assert cli.main([command, str(store / "samples")]) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    assert "64 in the array" in pages[0]


def test_without_torch_a_command_says_what_to_install(store: Path) -> None:
    code = """
        import sys
        sys.modules["torch"] = None
        from zarrfeed.tools.cli import main
        store = sys.argv[1]
        refused = [main([*command.split(), store + "/samples"]) for command in ("info --advise", "stats", "bench")]
        print(refused, "are refused", flush=True)
        sys.exit(main(["verify", store, "--progress-file", "none"]))
    """
    done = run_new_script(code, str(store))
    assert done.stdout.startswith(f"{[cli.EXIT_ERROR] * 3} are refused\n")
    wanted = [f"zarrfeed: {command} needs torch: pip install torch" for command in ("info --advise", "stats", "bench")]
    assert (done.returncode, done.stderr.splitlines()) == (0, wanted)


def test_explain_prints_what_the_dataset_says(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, targets = str(store / "samples"), str(store / "targets")
    options = ["--batch-size", "16", "--shuffle", "--lanes", "4", "--mix", "2", "--memory-budget", "64MiB"]
    assert cli.main(["explain", samples, "--targets", targets, *options]) == 0
    with zarrfeed.ZarrIterableDataset(
        samples, targets, batch_size=16, shuffle=True, memory_budget="64MiB", mixing={"lanes": 4, "mix": 2}
    ) as dataset:
        assert capsys.readouterr().out == f"{dataset.data}\n\n{dataset.explain()}\n"


def test_explain_takes_a_sample_axis(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(store / "samples"), "--sample-axis", "1"]) == 0
    with zarrfeed.ZarrIterableDataset(zarrfeed.open(str(store / "samples"), sample_axis=1)) as dataset:
        assert capsys.readouterr().out == f"{dataset.data}\n\n{dataset.explain()}\n"


def test_a_store_that_is_not_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.zarr" in fails(["explain", str(tmp_path / "nothing.zarr")], capsys)


def test_explain_takes_a_group(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(store), "--batch-size", "4"]) == 0
    with zarrfeed.ZarrIterableDataset(str(store), batch_size=4) as dataset:
        page = capsys.readouterr().out
        assert page == f"{dataset.data}\n\n{dataset.explain()}\n"
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


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """Write a store as xarray does, with a static field beside those that have a time."""
    coordinates = {"time": range(9), "lat": range(3), "lon": range(4)}
    variables = {"lsm": ("lat", "lon"), "t2m": ("time", "lat", "lon"), "tp": ("time", "lat", "lon")}
    data = {name: (dims, np.zeros([len(coordinates[dim]) for dim in dims])) for name, dims in variables.items()}
    xr.Dataset(data, coordinates).to_zarr(tmp_path / "era5.zarr", zarr_format=2)
    return tmp_path / "era5.zarr"


def test_variables_that_disagree_in_length_are_told_with_the_option_to_give(
    weather: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(["explain", str(weather)], capsys)
    assert "samples['t2m'] has 9 samples" in message
    remedy = "give --sample-dim time to read the arrays that have this dimension (t2m, tp), or one of the dimensions"
    assert message.endswith(f"{remedy} 'lat', 'lon'\n")
    assert cli.main(["explain", str(weather), "--sample-dim", "time"]) == 0
    assert "samples['tp']" in capsys.readouterr().out
    with pytest.raises(zarrfeed.ConfigError, match=r"give sample_dim='time' to read .*\(t2m, tp\)"):
        zarrfeed.ZarrIterableDataset(weather)


def test_groups_in_a_group_are_entered_by_a_depth_or_by_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = zarr.create_group(tmp_path / "x.zarr")
    for name in ("s1/x", "s2/x"):
        root.create_array(name, data=np.arange(4))
    message = fails(["info", str(tmp_path / "x.zarr")], capsys)
    assert "groups in it, which --depth 1 enters, or --variables s1/x: s1, s2" in message
    assert cli.main(["info", str(tmp_path / "x.zarr"), "--depth", "1"]) == 0
    shown = capsys.readouterr().out
    assert "samples['s1/x']" in shown
    assert "samples['s2/x']" in shown
    assert cli.main(["info", str(tmp_path / "x.zarr"), "--variables", "s2/x"]) == 0
    assert "s1/x" not in capsys.readouterr().out


def test_a_dimension_that_does_not_exist_is_told_with_those_that_do(
    weather: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(["info", str(weather), "--sample-dim", "tiem"], capsys)
    assert "no data variable with the dimension 'tiem'" in message
    assert "t2m (time, lat, lon)" in message


def test_the_dimension_that_most_arrays_have_first_is_recommended() -> None:
    def items(key: str, **dimensions: int) -> Items:
        return Items("samples", key, "float32", tuple(dimensions.values()), 0, tuple(dimensions))

    arrays = [items("a", lat=900, lon=5), items("b", time=7, lat=900), items("c", time=7, level=3)]
    assert sample_dim_advice(arrays).startswith("; give sample_dim='time' to read")
    assert "(b, c), or one of the dimensions 'lat', 'lon', 'level'" in sample_dim_advice(arrays)
    assert "sample_dim='lat'" in sample_dim_advice(arrays[:2])  # of two the longest
    assert sample_dim_advice([Items("samples", "a", "int8", (3,), 0), Items("samples", "b", "int8", (4,), 0)]) == ""


def complete(line: str, tmp_path: Path) -> list[str]:
    """Return what bash's completion offers at the end of a line, as it asks argcomplete."""
    command = tmp_path / "bin" / "zarrfeed"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom zarrfeed.tools.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    words = line.split(" ")
    script = f"""
        eval "$({sys.executable} -m argcomplete.scripts.register_python_argcomplete zarrfeed)"
        COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        _python_argcomplete zarrfeed {shlex.quote(words[-1])} {shlex.quote(words[-2])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_paths(tmp_path: Path) -> None:
    (tmp_path / "era5.zarr").mkdir()
    assert complete("zarrfeed ver", tmp_path) == ["verify"]
    assert {"info", "explain", "bench", "verify", "demo"} <= set(complete("zarrfeed ", tmp_path))
    assert complete("zarrfeed info --sample", tmp_path) == ["--sample-axis", "--sample-dim"]
    assert complete("zarrfeed bench --block ", tmp_path) == ["auto", "slab", "chunk", "shard"]
    assert complete("zarrfeed info er", tmp_path) == ["era5.zarr/"]


def test_without_argcomplete_a_shell_that_asks_gets_an_error_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    with pytest.raises(SystemExit):
        cli.main([])
    assert capsys.readouterr().err.startswith("usage: ")


def test_without_arguments_it_shows_three_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (cli.EXIT_ERROR, "")
    examples = [line.split("  ")[1] for line in err.splitlines() if line.startswith("  zarrfeed ")]
    parsed = [cli._parser().parse_args(shlex.split(example)[1:]) for example in examples]
    assert [arguments.command for arguments in parsed] == ["info", "verify", "pack"]


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
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dry_run, "explain", interrupt)
    assert cli.main(["explain", str(store / "samples")]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_leaves_early_is_no_error(store: Path) -> None:
    code = f"import sys; from zarrfeed.tools.cli import main; sys.exit(main(['explain', {str(store / 'samples')!r}]))"
    with subprocess.Popen(
        [*warm.command(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything was written: the pipe is broken for sure
        assert process.stderr.read() == ""
        assert process.wait(timeout=240) == cli.EXIT_FAILED


def test_output_that_finds_no_room_is_an_error_of_one_line(store: Path) -> None:
    """Also what Python keeps in a buffer until it ends, which would end it with status 120 and words of its own."""
    found, absent = ["explain", str(store / "samples")], ["explain", str(store / "absent")]
    code = "import sys; from zarrfeed.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    for unbuffered in ("", "1"):
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        for arguments, shell, lines, status in (
            (found, '"$@" >/dev/full', ["zarrfeed: [Errno 28] No space left on device"], cli.EXIT_ERROR),
            (found, '"$@" >/dev/full 2>&1', [], cli.EXIT_ERROR),
            (absent, '"$@" 2>/dev/full', [], cli.EXIT_ERROR),
            (absent, '"$@" 2>&-', [], cli.EXIT_ERROR),
            (found, '"$@" >&-', [], 0),
        ):
            if unbuffered and "&-" in shell:
                continue  # Python buffers nothing where there is no file
            with case(unbuffered, shell):
                command = ["sh", "-c", f"exec {shell}", "sh", *warm.command(), "-c", code, *arguments]
                done = subprocess.run(
                    command, env=environment, check=False, capture_output=True, text=True, timeout=240
                )
                assert (done.returncode, done.stderr.splitlines()) == (status, lines)


def test_the_installed_command_runs(store: Path) -> None:
    command = Path(sys.executable).with_name("zarrfeed")
    if not command.exists():
        pytest.skip("the package is not installed next to this interpreter")
    done = subprocess.run(
        [command, "explain", store / "samples"], check=False, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "64 in the array" in done.stdout
