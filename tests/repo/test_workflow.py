"""The hosted workflow and the hooks agree with the project and with `.ci/run`."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
HOOKS: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())


def promised_pythons() -> list[str]:
    classifiers = PROJECT["project"]["classifiers"]
    return [version for one in classifiers for version in re.findall(r"^Programming .* (3\.\d+)$", one)]


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_workflow_does_what_ci_does_on_every_python_that_is_promised() -> None:
    check = WORKFLOW["jobs"]["check"]
    assert promised_pythons() == check["strategy"]["matrix"]["python"]
    assert commands(check) == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, "it can be run"
    assert set(WORKFLOW[True]) == {"push", "pull_request"}  # YAML reads the key `on` as a boolean
    assert all(job["timeout-minutes"] <= 60 for job in WORKFLOW["jobs"].values())


def test_the_workflow_builds_a_wheel_for_every_python_that_is_promised() -> None:
    installs, builds, *_, judges = commands(WORKFLOW["jobs"]["wheels"])
    assert re.match(r"pip install cibuildwheel==[\d.]+ ", installs)
    assert builds.startswith("cibuildwheel ")
    assert judges == "python dev/wheels.py --check dist"
    wheels = PROJECT["tool"]["cibuildwheel"]["build"]
    tags = [f"cp{version.replace('.', '')}" for version in promised_pythons()]
    assert wheels == [f"{tag}-manylinux_{machine}" for machine in ("x86_64", "aarch64") for tag in tags]


def test_a_weekly_workflow_runs_what_the_usual_run_leaves_out() -> None:
    workflow: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "large.yml").read_text())
    assert set(workflow[True]) == {"schedule", "workflow_dispatch"}
    installs, tests = commands(workflow["jobs"]["large"])
    assert f"\n{installs} && pytest\n" in (ROOT / "README.md").read_text(), "as the usual run is installed"
    assert tests == "pytest --large"
    *_, cpp_tests = commands(workflow["jobs"]["cpp"])
    usual = re.findall(r"ctest --preset ci.*", (ROOT / ".ci" / "run").read_text())
    assert [cpp_tests] == [f"ZARRFEED_STRESS=1 {command}" for command in usual]


def test_every_expression_of_the_workflow_is_closed_and_known() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    expressions = re.findall(r"\$\{\{ ([\w.]+) \}\}", text)
    assert text.count("${{") == text.count("}}") == len(expressions)
    assert set(expressions) <= {"github.workflow", "github.ref", "matrix.python"}


def test_hooks_run_programs_of_the_extra_lint_on_files_that_exist() -> None:
    programs = {
        re.split(r"[=<>]", requirement)[0] for requirement in PROJECT["project"]["optional-dependencies"]["lint"]
    }
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*") if path.is_file()]
    files += [str(path.relative_to(ROOT)) for path in ROOT.glob(".github/**/*") if path.is_file()]
    hooks = [hook for repo in HOOKS["repos"] for hook in repo["hooks"]]
    assert {"ruff", "ruff-format", "clang-format", "stub"} <= {hook["id"] for hook in hooks}
    for hook in hooks:
        assert hook["language"] == "system", "a hook is the program that constraints.txt pins"
        assert hook["entry"].split()[0] in programs | {"bash"}
        if "files" in hook:
            assert any(re.search(hook["files"], file) for file in files), hook["id"]


@pytest.mark.parametrize(
    "command", ["ruff format", "clang-format", "check-jsonschema", "mypy", "mkdocs build --strict"]
)
def test_ci_runs_the_linters_and_builds_the_site(command: str) -> None:
    assert f"{command} " in (ROOT / ".ci" / "run").read_text() or f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()
