"""Without torch: what works, what says that it needs torch, and that importing the package does not bring torch in."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import zarr

import zarrfeed
from tests.support.paths import SUPPORT
from tests.support.scripts import run_new_script, run_script
from zarrfeed.tools import cli

SCRIPT = SUPPORT / "without_torch.py"
PACKAGE = Path(zarrfeed.__file__).parent

#: A module that is None in sys.modules cannot be imported.
BLOCKED = "import sys; sys.modules['torch'] = None\n"


def test_metadata_plans_and_the_engine_work_without_torch() -> None:
    run = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = run_new_script(BLOCKED + run, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "arrays and a group read as zarr-python reads them" in done.stdout


def test_the_script_refuses_to_run_where_torch_is() -> None:
    run = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = run_script(run, timeout=120)
    assert done.returncode == 1
    assert "torch can be imported here" in done.stderr


def test_importing_the_package_imports_neither_torch_nor_zarr() -> None:
    code = "import sys, zarrfeed, zarrfeed.tools.cli\nprint({'torch', 'zarr', 'numpy'} & set(sys.modules))"
    done = run_new_script(code)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_importing_the_package_imports_its_lowest_layer_and_nothing_that_was_installed() -> None:
    code = """
        import sys
        before = set(sys.modules)
        import zarrfeed
        new = set(sys.modules) - before
        print(sorted({name.partition(".")[0] for name in new} - sys.stdlib_module_names))
        print(sorted(name for name in new if name.startswith("zarrfeed.") and not name.startswith("zarrfeed.base")))
    """
    done = run_new_script(code)
    assert (done.stdout, done.stderr) == ("['zarrfeed']\n['zarrfeed._core']\n", "")


def test_info_tells_the_same_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = zarr.create_group(tmp_path / "train.zarr")
    group.create_array("x", shape=(100, 4), chunks=(10, 4), dtype="f4")
    group.create_array("y", shape=(100,), chunks=(50,), dtype="i8")
    arguments = ["info", str(tmp_path / "train.zarr"), "--batch-size", "8", "--shuffle", "--ranks", "2"]
    assert cli.main(arguments) == 0
    done = run_new_script(BLOCKED + f"from zarrfeed.tools import cli\ncli.main({arguments!r})")
    assert (done.stdout, done.stderr) == (capsys.readouterr().out, "")
    assert "amplification" in done.stdout


def test_another_missing_module_is_not_taken_for_torch() -> None:
    code = """
        import sys
        sys.modules["zarr"] = None
        import zarrfeed
        try:
            zarrfeed.verify
        except ModuleNotFoundError as error:
            assert error.name == "zarr", error
        else:
            sys.exit("no error")
    """
    done = run_new_script(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_checkpoints_are_written_read_and_removed_without_torch(tmp_path: Path) -> None:
    code = f"""
        from zarrfeed import checkpoint
        for step in range(3):
            with checkpoint.writer("{tmp_path}/step-%d" % step) as file:
                file.write(b"weights")
        with checkpoint.reader(checkpoint.newest("{tmp_path}")) as file:
            assert file.read() == b"weights"
        assert len(checkpoint.retain("{tmp_path}", keep_last=1).removed) == 2
        for name in ("ZarrfeedReader", "ZarrfeedWriter"):
            try:
                getattr(checkpoint, name)
            except ImportError as error:
                assert str(error) == f"zarrfeed.checkpoint.{{name}} needs torch: pip install torch", error
            else:
                raise AssertionError(name)
    """
    done = run_new_script(BLOCKED + textwrap.dedent(code), timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_public_name_is_that_of_a_module() -> None:
    """Importing `zarrfeed.x` sets the attribute `x` of the package, whatever it was before."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert {"compat", "engine", "torch"} <= modules
    assert modules & set(zarrfeed.__all__) == set()


def test_every_public_name_is_found_and_listed() -> None:
    for name in zarrfeed.__all__:
        assert getattr(zarrfeed, name) is not None
    assert dir(zarrfeed) == sorted(zarrfeed.__all__)
    namespace: dict[str, object] = {}
    exec("from zarrfeed import *", namespace)
    assert set(zarrfeed.__all__) <= set(namespace)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'zarrfeed' has no attribute 'ZarrIterableDatset'"):
        zarrfeed.ZarrIterableDatset  # type: ignore[attr-defined]  # noqa: B018
