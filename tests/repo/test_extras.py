"""Each extra that users have installs into a fresh environment, brings what it is for, and breaks nothing there.

In the usual run pip installs one of them, and the requirements of the others are looked up in what is installed here.
With --large pip installs each.
metadata of zarrfeed and of all that it requires, as it does for a user. A stand-in without files or
requirements takes the place of torch, which has hundreds of megabytes and is not what an extra brings.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name

from tests.support.cases import case
from tests.support.examples import slow
from tests.support.paths import ROOT
from tests.support.scripts import run

EXTRAS: set[str] = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])

#: What an extra of users brings is there to be imported under these names.
MODULES = {
    "cli": ["argcomplete", "rich"],
    "demo": ["argcomplete", "h5py", "iris_sample_data", "rich"],
    "hdf5": ["h5py"],
    "images": ["PIL", "simplejpeg"],
    "pack": ["h5netcdf", "h5py", "pyarrow", "xarray"],
    "plot": ["matplotlib"],
    "remote": ["obstore"],
    "tiff": ["tifffile"],
    "virtual": ["obstore", "pyarrow"],
}
#: The extra that is installed in the usual run.
_USUAL = "cli"


def requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    """Yield what an installed distribution requires with some of its extras."""
    for requirement in map(Requirement, distribution(name).requires or []):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in ("", *extras)):
            yield requirement


def find_all(name: str, extras: set[str], found: dict[str, set[str]]) -> None:
    """Add a distribution, and all that it requires, to what was found: name -> its extras."""
    name = canonicalize_name(name)
    if name in found and extras <= found[name]:
        return
    found[name] = found.get(name, set()) | extras
    if name != "torch":
        for requirement in requirements(name, found[name]):
            find_all(requirement.name, requirement.extras, found)


def pack(name: str, folder: Path) -> None:
    """Make a wheel of an installed distribution; pip makes its programs anew, of their entry points."""
    installed = distribution(name)
    files = [file for file in installed.files or [] if ".." not in file.parts and "__pycache__" not in file.parts]
    (info,) = {file.parts[0] for file in files if file.parts[0].endswith(".dist-info")}
    if name == "torch":
        files = [file for file in files if str(file) == f"{info}/WHEEL"]
    tags = {line.removeprefix("Tag: ") for line in (installed.read_text("WHEEL") or "").split("\n")}
    tag = next(str(one) for one in sys_tags() if str(one) in tags)
    path = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for file in files:
            if file.name not in ("RECORD", "direct_url.json", "INSTALLER", "REQUESTED"):
                wheel.write(str(file.locate()), str(file))
        if name == "torch":
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {installed.version}\n")
        names = "".join(f"{one},,\n" for one in [*wheel.namelist(), f"{info}/RECORD"])
        wheel.writestr(f"{info}/RECORD", names)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Make wheels of zarrfeed and of all that it and the extras that are installed require."""
    folder = tmp_path_factory.mktemp("wheels")
    found: dict[str, set[str]] = {}
    find_all("zarrfeed", set(MODULES) if pytestconfig.getoption("--large") else {_USUAL}, found)
    for name in found:
        pack(name, folder)
    return folder


#: The script that `pip --python` starts, for two commands: the environment's interpreter, with the pip of this one.
_PIP = """
import runpy, sys

pip, what, *options = sys.argv[1:]
for command in (["install", *options, what], ["check"]):
    sys.argv[:] = [pip, "--isolated", "--disable-pip-version-check", *command]
    try:
        runpy.run_path(pip, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""


def install(wheels: Path, what: str, venv: Path) -> Path:
    """Install from the folder alone into a fresh environment, and return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    pip = Path(str(distribution("pip").locate_file("pip/__pip-runner__.py")))
    said = run(python, "-c", _PIP, pip, what, "--no-index", "--find-links", wheels, "--no-compile", "--pre")
    assert "No broken requirements" in said
    return python


def present(python: Path, modules: list[str]) -> list[str]:
    """Return which of some modules an environment can import, by importing them."""
    script = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == name, error
    else:
        print(name)
"""
    return run(python, "-I", "-c", script, *modules).split()


@pytest.mark.parametrize("extra", [extra if extra == _USUAL else slow(extra) for extra in sorted(MODULES)])
def test_an_extra_brings_what_is_imported(extra: str, wheels: Path, tmp_path: Path) -> None:
    python = install(wheels, f"zarrfeed[{extra}]", tmp_path)
    assert present(python, ["zarrfeed", *MODULES[extra]]) == ["zarrfeed", *MODULES[extra]]
    assert run(python.with_name("zarrfeed"), "--version").strip()


def test_an_extra_requires_what_is_imported() -> None:
    """The requirements of zarrfeed, and theirs in turn, name the distributions of the modules, and no more do so."""
    distributions = packages_distributions()
    for extra, modules in MODULES.items():
        with case(extra):
            found: dict[str, set[str]] = {}
            find_all("zarrfeed", {extra}, found)
            others = {name for names in MODULES.values() for name in names} - set(modules)
            brought = {
                name for name in (*modules, *others) if {*map(canonicalize_name, distributions[name])} & set(found)
            }
            assert brought >= set(modules)
            assert extra in ("demo", "pack", "plot", "virtual") or brought == set(modules)


def test_without_an_extra_nothing_of_extras_comes_along(wheels: Path, tmp_path: Path) -> None:
    """Else the test above would pass whatever an extra names."""
    python = install(wheels, "zarrfeed", tmp_path)
    others = sorted({name for names in MODULES.values() for name in names})
    assert present(python, ["zarrfeed", *others]) == ["zarrfeed"]


def test_every_extra_of_users_is_tried() -> None:
    assert EXTRAS - set(MODULES) == {"bench", "docs", "lint", "release", "test"}
