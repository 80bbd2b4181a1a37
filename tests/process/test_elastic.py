"""torchrun with a world size that changes while a run goes on: a node is lost, and another one joins."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from tests.support import warm
from tests.support.paths import ROOT
from tests.support.proc import children
from tests.support.sample_log import WRAPPER, SampleLog, assert_kept_once

EXAMPLE = ROOT / "examples" / "ddp_torchrun.py"
NUM_SAMPLES, STEPS, SAVE_EVERY = 2048, 32, 10

pytestmark = pytest.mark.timeout(900)

#: However slow a node is, the others neither take it for lost nor begin without it, unless `Rendezvous` lets them. By
#: the clock, an agent that had not run for six seconds was shut out, and ended with RendezvousClosedError.
_RENDEZVOUS = "last_call_timeout=600,keep_alive_interval=1,keep_alive_max_attempt=600,is_host=0"
_ID = "elastic"
_LONG_AGO = datetime.fromtimestamp(0, UTC)


class Rendezvous:
    """The state of the rendezvous of all agents, which is in a store of this process."""

    def __init__(self, store: TCPStore) -> None:
        self._backend = C10dRendezvousBackend(store, _ID)

    def forget(self, node: int) -> None:
        """Let the other nodes take a node, by the process of its agent, for lost at once."""

        def expire(state: Any) -> None:
            for one in state.last_heartbeats:
                if one.pid == node:
                    state.last_heartbeats[one] = _LONG_AGO

        self._change(expire)

    def begin_with(self, count: int) -> None:
        """Let nodes that wait for others begin if so many have come."""

        def end_wait(state: Any) -> None:
            if not state.complete and len(state.participants) == count:
                state.deadline = _LONG_AGO

        self._change(end_wait)

    def _change(self, change: Callable[[Any], None]) -> None:
        written = False
        while not written:  # an agent may write in between
            bits, token = self._backend.get_state()  # type: ignore[misc]
            state = pickle.loads(bits)
            change(state)
            _, _, written = self._backend.set_state(pickle.dumps(state), token)  # type: ignore[misc]


class Node:
    """An agent of torchrun with one rank, as on a node of its own."""

    def __init__(self, name: str, port: int, directory: Path) -> None:
        self._said = directory / f"{name}.txt"
        command = [
            *(*warm.command(), "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={_ID}"),
            # the store of all is not a node's, but this process's
            *(
                f"--rdzv-conf={_RENDEZVOUS}",
                "--local-addr=127.0.0.1",
                "--monitor-interval=0.2",
            ),
            *(str(WRAPPER), str(EXAMPLE), "--data", str(directory / "train.zarr")),
            *("--checkpoint", str(directory / "run.pt"), "--epochs", "2"),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SAMPLE_LOG": str(directory / "log"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else a node that joins is not told an address (torch 2.13)
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHON_EXEC": str(warm.executable()),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with self._said.open("w") as said:
            self.agent = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)

    def lose(self) -> int:
        """End the agent and its rank by SIGKILL, as a node ends that loses its power; return the agent's process."""
        agent = 0
        if self.agent.poll() is None:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it ended just now
                agent = warm.child_of(self.agent.pid)
                for process in [agent, *map(warm.child_of, children(agent))]:
                    os.kill(process, signal.SIGKILL)
        self.agent.kill()
        self.agent.wait(240)
        return agent

    def said(self) -> str:
        return self._said.read_text()

    def end(self) -> None:
        """Wait until the run ends, and fail with what the node said if it does not end well."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.agent.wait(240)
        assert self.agent.poll() == 0, self.said()

    def check(self) -> None:
        assert self.agent.poll() is None, self.said()


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    """Nodes that are ended after the test."""
    started: list[Node] = []
    yield started
    for node in started:
        node.lose()


@pytest.mark.slow
def test_a_run_goes_on_exactly_after_the_loss_of_a_node_and_with_a_new_one(tmp_path: Path, nodes: list[Node]) -> None:
    """Two ranks, one, two: each step that was kept had other samples, and the epochs had each sample once."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rendezvous = Rendezvous(store)
    log = SampleLog(tmp_path / "log")
    log.limit(1, 0)
    log.limit(2, 17)
    nodes += [Node(name, store.port, tmp_path) for name in ("first", "second")]
    staying, lost = nodes

    def check() -> None:
        staying.check()

    log.wait([17], check)  # in the middle of epoch 0, 7 steps after the checkpoint
    rendezvous.forget(lost.lose())

    def check_and_begin_alone() -> None:
        check()
        rendezvous.begin_with(1)

    log.limit(1, 33)
    log.limit(2, 10**6)
    log.wait([17, 33], check_and_begin_alone)  # in the middle of epoch 1, at step 43
    nodes.append(Node("third", store.port, tmp_path))
    for node in (staying, nodes[-1]):
        node.end()

    said = "".join(node.said() for node in nodes)
    begins = sorted(map(int, re.findall(r"continuing on \d ranks in epoch \d, at step (\d+)", said)))
    starts = log.starts()
    assert begins == [10, 40]
    assert [start.world_size for start in starts] == [2, 1, 2]
    assert_kept_once(starts, [0, *begins], steps=STEPS, num_samples=NUM_SAMPLES)
    assert re.findall(r"epoch (\d) on (\d) ranks: each sample exactly once", said) == [("0", "1"), ("1", "2")]
