"""Distributed checkpoints and retention in object stores: servers that others wrote, and a server with faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness.object_server import Act, ObjectServer, Request
from tests.support.dcp import dcp
from tests.support.real_servers import Endpoint, NotHereError, serving_gcs, serving_s3
from zarrfeed import checkpoint
from zarrfeed.base.errors import StoreReadError
from zarrfeed.checkpoint import ZarrfeedReader, ZarrfeedWriter, newest, retain

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state_of(value: int) -> dict[str, Any]:
    return {"weight": torch.full((5000,), value), "step": value}


def save(url: str, value: int, **options: Any) -> None:
    dcp.save(state_of(value), storage_writer=ZarrfeedWriter(url, **options))


def load(url: str, **options: Any) -> int:
    state = state_of(-1)
    dcp.load(state, storage_reader=ZarrfeedReader(url, **options))
    value: int = state["step"]
    assert torch.equal(state["weight"], torch.full((5000,), value))
    return value


def save_file(url: str, **options: Any) -> None:
    with checkpoint.writer(url, **options) as file:
        file.write(b"weights")


def names(urls: tuple[str, ...]) -> list[str]:
    return [url.rpartition("/")[2] for url in urls]


def next_second() -> None:
    """Wait until what is written has another time: stores tell seconds."""
    now = int(time.time())
    while int(time.time()) == now:
        time.sleep(0.02)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    try:
        with serving_s3(tmp_path_factory.mktemp("empty")) as endpoint:
            yield endpoint
    except NotHereError as error:
        pytest.skip(str(error))


def test_a_run_in_s3(s3: Endpoint) -> None:
    options: dict[str, Any] = {"storage_options": s3.options}
    run = f"{s3.url}/run"
    assert newest(run, **options) is None
    save(f"{run}/step-1", 0, **options)
    save(f"{run}/step-1", 1, **options)
    next_second()
    save_file(f"{run}/step-2.pt", **options)
    save_file(f"{run}/deeper/step-0.pt", **options)
    s3.put("run/notes.txt", b"mine" * 100)
    s3.put("running/step-1.pt", b"another run")
    next_second()
    save(f"{run}/step-3", 3, **options)
    assert load(f"{run}/step-1", **options) == 1
    assert newest(run, **options) == f"{run}/step-3"
    done = retain(run, keep_last=2, **options)
    assert (names(done.kept), names(done.removed)) == (["step-3", "step-2.pt"], ["step-1"])
    assert load(f"{run}/step-3", **options) == 3
    done = retain(run, keep_last=1, verify=False, **options)
    assert (names(done.kept), names(done.removed)) == (["step-3"], ["step-2.pt"])
    for key in ("deeper/step-0.pt", "notes.txt"):
        with checkpoint.reader(f"{run}/{key}", allow_plain=True, **options) as file:
            assert file.read()
    with pytest.raises(StoreReadError, match="no checkpoint is there"):
        checkpoint.reader(f"{run}/step-2.pt", **options)


def test_what_lies_in_google_is_loaded_and_removed(tmp_path: Path) -> None:
    """The fake server takes no uploads of obstore's client, so objects are put there as they are written to a disk."""
    for step in range(3):
        save(str(tmp_path / "run" / f"step-{step}"), step)
        save_file(str(tmp_path / "run" / f"step-{step}.pt"))
    try:
        with serving_gcs(tmp_path / "nothing") as server:
            options: dict[str, Any] = {"storage_options": server.options}
            for step in range(3):
                for path in sorted((tmp_path / "run" / f"step-{step}").iterdir(), reverse=True):
                    server.put(f"run/step-{step}/{path.name}", path.read_bytes())
                if step < 2:
                    next_second()
            assert load(f"{server.url}/run/step-2", **options) == 2
            assert newest(f"{server.url}/run", **options) == f"{server.url}/run/step-2"
            done = retain(f"{server.url}/run", keep_last=1, **options)
            assert (names(done.kept), names(done.removed)) == (["step-2"], ["step-1", "step-0"])
            assert retain(f"{server.url}/run", keep_last=1, **options).removed == ()
            assert load(f"{server.url}/run/step-2", **options) == 2
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_each_kind_of_store_holds_a_checkpoint(scheme: str) -> None:
    with ObjectServer() as server:
        options: dict[str, Any] = {"storage_options": server.options(scheme)}
        save(f"{scheme}://bucket/run/step", 1, **options)
        assert load(f"{scheme}://bucket/run/step", **options) == 1
        assert len(server.keys()) == 2


class FaultAt:
    """Something that goes wrong with one request."""

    def __init__(self, number: int, act: Act) -> None:
        self.left, self._act = number, act

    def __call__(self, _: Request) -> Act | None:
        self.left -= 1
        return self._act if self.left == 0 else None


ACTS = {
    "503": Act("status", 503),
    "reset": Act("reset"),
    "no answer": Act("forget"),
    "short": Act("cut"),
    "flipped": Act("flip", share=0.4),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.filterwarnings("ignore:.*objects of the previous checkpoint remain")
def test_a_save_with_a_fault_at_any_request_leaves_a_whole_checkpoint(act: str) -> None:
    """With no retry. A save that does not raise has made the new checkpoint."""
    url, told = "s3://bucket/run/step", 0
    with ObjectServer() as server:
        options: dict[str, Any] = {"storage_options": server.options(), "retries": 0}
        save(url, 0, **options)
        previous = 0
        for value in range(1, 60):
            server.fault = fault = FaultAt(value, ACTS[act])
            try:
                save(url, value, read_back=act == "flipped", **options)
                raised = False
            except BaseException as error:  # torch's is of no other class
                if not isinstance(error, dcp.CheckpointException):
                    raise
                raised = True
            server.fault = None
            loaded = load(url, **options)
            assert loaded in ((previous, value) if raised else (value,))
            told += raised
            previous = loaded
            if fault.left > 0:
                break
        assert fault.left > 0, "the last save had no fault"
        assert server.hits == value - 1 >= 8
        assert told > 1 or act == "no answer", "what is read back tells that the request was done"


@pytest.mark.parametrize("act", ACTS)
def test_a_load_with_a_fault_at_any_request_is_right_or_raises(act: str) -> None:
    url = "s3://bucket/run/step"
    with ObjectServer() as server:
        options: dict[str, Any] = {"storage_options": server.options(), "retries": 0}
        save(url, 7, **options)
        for number in range(1, 40):
            server.fault = fault = FaultAt(number, ACTS[act])
            try:
                assert load(url, **options) == 7
            except BaseException as error:  # torch's is of no other class
                if not isinstance(error, dcp.CheckpointException):
                    raise
            if fault.left > 0:
                break
        assert fault.left > 0
        assert server.hits == number - 1 >= 4


def test_retries_get_over_a_fault() -> None:
    url = "s3://bucket/run/step"
    with ObjectServer() as server:
        options: dict[str, Any] = {"storage_options": server.options(), "retries": 2}
        for value in range(1, 80, 3):
            server.fault = fault = FaultAt(value, ACTS["503"])
            save(url, value, **options)
            assert load(url, **options) == value
            if fault.left > 0:
                break
        assert fault.left > 0


def test_a_manifest_that_is_replaced_while_it_is_read_is_read_again() -> None:
    """The save ends between the look at the length of the manifest and the look at its end."""
    url = "s3://bucket/run/step"
    with ObjectServer() as server:
        options: dict[str, Any] = {"storage_options": server.options(), "retries": 0}
        save(url, 1, **options)
        after: list[Request] = []

        def replace(request: Request) -> None:
            if request.key.endswith(".metadata") and request.kind == "get" and not after:
                after.append(request)
                save(url, 2, **options)

        server.fault = replace
        assert load(url, **options) == 2
        assert after
