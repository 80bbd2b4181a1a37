"""What is released: the sdist holds what builds it and no more, and the metadata say what is true."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.paths import ROOT
from tests.support.scripts import run

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
BUILT_FROM = ("CMakeLists.txt", "pyproject.toml", "cpp/bindings/exports.map", "src/zarrfeed/_core.pyi")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist of the tree, and unpack it."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})")
    (path,) = folder.glob("zarrfeed-*.tar.gz")
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    (unpacked,) = (one for one in folder.iterdir() if one.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def metadata(sdist: Path) -> Message:
    return message_from_string((sdist / "PKG-INFO").read_text())


# --- the sdist ------------------------------------------------------------------------------------------------


def test_the_sdist_holds_sources_and_nothing_else(sdist: Path) -> None:
    files = {path.relative_to(sdist) for path in sdist.rglob("*") if path.is_file()}
    top = {path.parts[0] for path in files}
    assert top == {
        "CHANGELOG.md", "CMakeLists.txt", "LICENSE", "LICENSE-THIRD-PARTY.md", "PKG-INFO", "README.md", "cpp",
        "pyproject.toml", "src",
    }  # fmt: skip
    assert {path.suffix for path in files if path.parts[0] == "cpp"} == {".cc", ".h", ".map"}
    assert {path.suffix for path in files if path.parts[0] == "src"} == {".py", ".pyi", ".typed"}
    assert not {"tests", "fuzz"} & {path.parts[1] for path in files if path.parts[0] == "cpp"}


def test_the_sdist_holds_every_source_of_the_package(sdist: Path) -> None:
    for folder in (
        "src",
        *(f"cpp/{one.name}" for one in (ROOT / "cpp").iterdir() if one.name not in ("tests", "fuzz")),
    ):
        here = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cc", ".h")}
        there = {path.relative_to(sdist) for path in (sdist / folder).rglob("*") if path.suffix in (".py", ".cc", ".h")}
        assert here == there, folder
    assert all((sdist / name).is_file() for name in BUILT_FROM)


def test_an_sdist_keeps_its_version_where_there_is_no_git(sdist: Path, metadata: Message) -> None:
    script = "import sys, scikit_build_core.build as b; print(b.prepare_metadata_for_build_wheel(sys.argv[1]))"
    said = run(sys.executable, "-c", script, sdist.parent / "metadata", cwd=sdist)
    assert said.splitlines()[-1] == f"zarrfeed-{metadata['Version']}.dist-info"


@pytest.mark.parametrize(
    ("tags", "commits", "expected"),
    [([], 1, r"0\.2\.0\.dev1\+g\w+"), (["v0.3.0"], 0, r"0\.3\.0"), (["v0.3.0"], 2, r"0\.3\.1\.dev2\+g\w+")],
)
def test_tags_say_the_version(tags: list[str], commits: int, expected: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    run(*git, "init", "--quiet", cwd=tmp_path)
    run(*git, "add", ".", cwd=tmp_path)
    if tags:
        run(*git, "commit", "--quiet", "--message", "first", cwd=tmp_path)
        run(*git, "tag", *tags, cwd=tmp_path)
    for number in range(commits):
        run(*git, "commit", "--quiet", "--allow-empty", "--message", str(number), cwd=tmp_path)
    said = run(sys.executable, "-m", "setuptools_scm", cwd=tmp_path).strip()
    assert re.fullmatch(expected, said)


# --- the metadata ---------------------------------------------------------------------------------------------


def test_the_metadata_have_what_an_index_shows(metadata: Message) -> None:
    assert Version(metadata["Version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("License-File", [])) == {"LICENSE", "LICENSE-THIRD-PARTY.md"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith("https://github.com/zarrfeed/zarrfeed") for url in urls.values())
    for url in urls.values():  # those that name a file of the repository
        if found := re.search(r"/blob/main/(.+)$", url):
            assert (ROOT / found[1]).is_file()
    assert metadata["Requires-Python"] == f">={min(promised_pythons())}"


def promised_pythons() -> list[str]:
    found = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    return sorted(found, key=Version)


def test_the_tests_run_with_versions_that_the_metadata_promise() -> None:
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        installed = Version(importlib.metadata.version(requirement.name))
        assert requirement.specifier.contains(installed.public, prereleases=True), text
        assert any(one.operator == ">=" for one in requirement.specifier), f"{text} has no oldest version"


# --- the workflow ---------------------------------------------------------------------------------------------


def commands(job: str) -> str:
    return "\n".join(step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step)


def test_a_release_is_published_by_a_tag_and_without_a_secret() -> None:
    publish = WORKFLOW["jobs"]["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["permissions"] == {"id-token": "write"}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_wheels_are_built_from_the_sdist_judged_and_tried_before_they_are_published() -> None:
    jobs = WORKFLOW["jobs"]
    assert [jobs[name].get("needs") for name in ("sdist", "wheels", "try", "publish")] == [
        None,
        "sdist",
        "wheels",
        "try",
    ]
    assert "cibuildwheel --output-dir wheels dist/*.tar.gz" in commands("wheels")
    assert "python dev/wheels.py --check wheels" in commands("wheels")
    assert "python dev/try_wheel.py wheels --gather" in commands("try")
    assert commands("wheels").index("advzip ") < commands("wheels").index("--check"), "judged as it is published"
    assert jobs["try"]["strategy"]["matrix"]["python"] == promised_pythons()
    assert jobs["try"]["strategy"]["matrix"]["runner"] == jobs["wheels"]["strategy"]["matrix"]["runner"]


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_wheels_are_packed_everywhere_as_they_are_here(name: str) -> None:
    (pack,) = re.findall(r"^PACK = \((.+)\)$", (ROOT / "dev" / "wheels.py").read_text(), re.MULTILINE)
    command = pack.replace('"', "").replace(",", "")
    assert f"- run: {command} " in (ROOT / ".github" / "workflows" / name).read_text()


# --- dev/wheels.py ----------------------------------------------------------------------------------------------


def judge(folder: Path) -> str:
    command = [sys.executable, str(ROOT / "dev" / "wheels.py"), "--check", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_that_must_not_be_published_is_found(tmp_path: Path) -> None:
    """One that was built here for here alone, with a library beside it, and with a module that is not ours."""
    assert judge(tmp_path) == ""
    with zipfile.ZipFile(tmp_path / "zarrfeed-0.2.0-cp311-cp311-linux_x86_64.whl", "w") as wheel:
        wheel.write(
            importlib.import_module("numpy.linalg._umath_linalg").__file__ or sys.executable, "zarrfeed/_core.so"
        )
        wheel.writestr("zarrfeed.libs/libfoo.so.1", b"\0" * 3_500_000)
        wheel.writestr("zarrfeed/data.bin", b"")
    said = judge(tmp_path)
    for fault in (
        "must have less than 3500000",
        "its name has no manylinux",
        "holds files of others: zarrfeed.libs/libfoo.so.1",
        "holds files of other kinds: .bin",
        "lacks the licences",
        "must hold one compiled module, zarrfeed/_core.cpython-311-x86_64-linux-gnu.so, holds ",
    ):
        assert fault in said


def test_a_module_of_another_machine_is_found(tmp_path: Path) -> None:
    """A wheel that was built for another machine has the name of that machine, and so has its module."""
    wheel_path = tmp_path / "zarrfeed-0.2.0-cp312-cp312-manylinux_2_27_ppc64le.manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(wheel_path, "w") as wheel:
        wheel.write(sys.executable, "zarrfeed/_core.cpython-312-aarch64-linux-gnu.so")
    assert f"is compiled for {platform.machine()}" in judge(tmp_path)
