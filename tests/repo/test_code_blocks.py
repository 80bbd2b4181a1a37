"""Every code block of README.md and docs/ is run as it stands.

The Python blocks of a document are one script: they are run from top to bottom, in one namespace and one empty
directory, as a reader runs them. Shell blocks run in between, in the same directory. A comment on the line before a
block says otherwise:

    <!-- own script -->                   it is a file of its own for a new interpreter, where warnings are errors
    <!-- own script, warnings: WHY -->    the same, where other libraries warn
    <!-- file: NAME -->                   it is written to that file, for a later shell block to run
    <!-- output -->                       its lines were printed by the block before, in order; "..." is any text
    <!-- no-run: WHY -->                  it is not run here

Blocks in `text` are not code. Other languages need a reason not to be run.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import os
import re
import subprocess
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from benchmarks.harness.loopback import LoopbackServer
from tests.support import warm
from tests.support.cases import case
from tests.support.examples import slow
from tests.support.paths import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<comment>.*?) -->\n)?^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    flags=re.MULTILINE | re.DOTALL,
)
_TIMEOUT_S = 350  # a hang, not a busy machine: Ray compiles its modules in each of its processes at first

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document; `comment` is what the line before it says, `line` where it begins."""

    language: str
    comment: str
    body: str
    line: int

    @property
    def is_run(self) -> bool:
        return self.language in ("python", "sh") and not self.comment.startswith("no-run: ")


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a document, in order."""
    return [
        Block(
            match["language"].strip(),
            match["comment"] or "",
            textwrap.dedent(match["body"]),
            text.count("\n", 0, match.start("body")),
        )
        for match in _FENCE.finditer(text)
    ]


def scripts_of(blocks: list[Block]) -> list[list[Block]]:
    """Return the blocks that are run together: each own script with its output, and all others as one script."""
    page: list[Block] = []
    scripts = [page]
    current = page
    for block in blocks:
        if block.comment.startswith("own script"):
            current = [block]
            scripts.append(current)
            continue
        if block.comment != "output":
            current = page
        current.append(block)
    return [script for script in scripts if any(block.is_run for block in script)]


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def environment() -> dict[str, str]:
    """Return the environment of a reader with this package and its commands, and no network."""
    return (
        os.environ
        | warm.variables()
        | {
            "ACCELERATE_USE_CPU": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": str(Path.cwd()),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_TOKEN": "0" * 64,  # otherwise Ray writes one to the home directory
        }
    )


def run_command(*command: str) -> str:
    """Run a command to its end; return what it printed."""
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def frameworks_of(script: str) -> tuple[str, ...]:
    """Return modules that a warm process needs for a script, besides those of all."""
    if re.search(r"^(import|from) (lightning|ignite)\b", script, flags=re.MULTILINE):
        return warm.LIGHTNING
    return warm.TRAINER if re.search(r"^from (transformers|accelerate)\b", script, flags=re.MULTILINE) else ()


def check_output(expected: str, printed: str) -> None:
    """Check that each line of `expected` was printed, in this order; "..." stands for any text."""
    lines = iter(printed.splitlines())
    for wanted in expected.splitlines():
        pattern = ".*".join(re.escape(part) for part in wanted.rstrip().split("..."))
        assert any(re.fullmatch(pattern, line.rstrip()) for line in lines), f"{wanted!r} is not in\n{printed}"


def run_blocks(document: Path, blocks: list[Block], directory: Path) -> None:
    """Run the blocks of a document in `directory`, which is the current one."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for number, block in enumerate(blocks):
        if block.comment == "output":
            check_output(block.body, printed)
        elif block.comment.startswith("file: "):
            (directory / block.comment.removeprefix("file: ")).write_text(block.body)
        elif not block.is_run:
            continue
        elif block.language == "sh":
            printed = run_command("bash", "-euo", "pipefail", "-c", block.body)
        elif block.comment.startswith("own script"):
            script = directory / f"script_{number}.py"  # a file, since workers that are spawned import it
            script.write_text(block.body)
            strict = ["-W", "error"] if block.comment == "own script" else []
            printed = run_command(*warm.command(*frameworks_of(block.body)), *strict, str(script))
        else:
            where = "\n" * block.line + block.body  # so that a traceback names the line of the document
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(where, str(document), "exec"), namespace)
            printed = out.getvalue()


def make_train_store(directory: Path) -> None:
    """Write the store that the short examples read: arrays `samples` and `targets` of 200 samples."""
    group = zarr.create_group(str(directory / "train.zarr"))
    values = np.random.default_rng(0).random((200, 3, 4), dtype=np.float32)
    group.create_array("samples", data=values, chunks=(16, 3, 4))
    group.create_array("targets", data=np.arange(200, dtype=np.float32), chunks=(50,))


def make_remote_store(directory: Path) -> None:
    """Write the store of the page on remote stores, where `serve` delivers it as a bucket and on the web."""
    for folder in ("my-bucket", "."):
        group = zarr.create_group(str(directory / folder / "era5.zarr"))
        values = np.zeros((100, 4, 8), dtype=np.float32)
        group.create_array("t2m", data=values, chunks=(10, 4, 8), dimension_names=("time", "lat", "lon"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # consolidated metadata have no v3 specification
            zarr.consolidate_metadata(str(directory / folder / "era5.zarr"))


#: Document -> what its readers have before they begin. Other documents write the stores that they read.
STORES: dict[str, Callable[[Path], None]] = {
    "README.md": make_train_store,
    "docs/integrations.md": make_train_store,
    "docs/tasks/remote.md": make_remote_store,
}

#: The web server of the pages; blocks are run with the address of a local one in its place.
WEB_SERVER = "https://data.example.org"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve `tmp_path`: its folders are the buckets of S3, too. Yield the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with LoopbackServer(functools.partial(Quiet, directory=tmp_path)) as serving:
        options = {"AWS_ENDPOINT_URL": serving.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        yield serving.url


def test_every_block_says_what_it_is() -> None:
    for document in DOCUMENTS:
        with case(name_of(document)):
            check_blocks(document)


def check_blocks(document: Path) -> None:
    """Check that each fence of a document is closed, and that each block is run or says why not."""
    text = document.read_text()
    blocks = blocks_of(text)
    assert len(re.findall(r"^ *```", text, flags=re.MULTILINE)) == 2 * len(blocks), (
        "a block is not closed, or not found"
    )
    assert not re.search(r"\n\n    [^ \n`*|-]", _FENCE.sub("", text)) or "???" in text or "!!!" in text, "not fenced"
    for block in blocks:
        known = re.fullmatch(r"|output|own script(, warnings: .+)?|file: [\w.-]+|no-run: .{10,}", block.comment)
        assert known, f"{name_of(document)}:{block.line}: {block.comment!r}"
        if block.language not in ("python", "sh", "text"):
            assert block.comment.startswith("no-run: "), f"{name_of(document)}:{block.line}: {block.language!r}"


#: Documents, and the numbers of their scripts.
SCRIPTS = [(of, number) for of in DOCUMENTS for number in range(len(scripts_of(blocks_of(of.read_text()))))]


#: Scripts of many CPU seconds, which run with --large alone: they start Ray, spawn workers, or time codecs or loaders.
#: Other tests use each of these.
_SLOW = re.compile(r"^import ray$|multiprocessing_context=\"spawn\"|--advise\b|^zarrfeed bench\b", flags=re.MULTILINE)


def case_of(document: Path, number: int) -> Any:
    """Return a script as a case of `parametrize`."""
    text = "".join(block.body for block in scripts_of(blocks_of(document.read_text()))[number] if block.is_run)
    return (slow if _SLOW.search(text) else pytest.param)(document, number, id=f"{name_of(document)}-{number}")


@pytest.mark.parametrize(("document", "number"), [case_of(*script) for script in SCRIPTS])
def test_the_blocks_run_as_they_stand(
    document: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    make = STORES.get(name_of(document))
    if make is not None:
        make(tmp_path)
    if make is make_remote_store:
        text = text.replace(WEB_SERVER, request.getfixturevalue("server"))
    run_blocks(document, scripts_of(blocks_of(text))[number], tmp_path)


def test_a_block_that_fails_or_prints_something_else_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = "```python\nvalue = 3\nprint('value:', {})\n```\n\n<!-- output -->\n```text\nvalue: ...3\n```\n"
    run_blocks(tmp_path / "page.md", blocks_of(page.format("value")), tmp_path)
    with pytest.raises(AssertionError, match="is not in"):
        run_blocks(tmp_path / "page.md", blocks_of(page.format("4")), tmp_path)
    with pytest.raises(NameError):
        run_blocks(tmp_path / "page.md", blocks_of(page.format("missing")), tmp_path)
    with pytest.raises(AssertionError, match="false"):
        run_blocks(tmp_path / "page.md", blocks_of("```sh\nfalse\n```\n"), tmp_path)
