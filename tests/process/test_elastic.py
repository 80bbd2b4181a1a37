"""torchrun with a world size that changes while a run goes on: a node is lost, and another one joins."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.support import warm
from tests.support.paths import ROOT
from tests.support.sample_log import WRAPPER, SampleLog, assert_kept_once

EXAMPLE = ROOT / "examples" / "ddp_torchrun.py"
NUM_SAMPLES, STEPS, SAVE_EVERY = 2048, 32, 10

pytestmark = pytest.mark.timeout(900)

#: A lost node is forgotten after 6 s, and not after 15.
_RENDEZVOUS = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=6,is_host=0"


class Node:
    """An agent of torchrun with one rank, as on a node of its own."""

    def __init__(self, name: str, port: int, directory: Path) -> None:
        self._said = directory / f"{name}.txt"
        command = [
            *(*warm.command(), "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"),
            # seconds that a node waits for a second one; and the store of all is not a node's, but this process's
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

    def lose(self) -> None:
        """End the agent and its rank by SIGKILL, as a node ends that loses its power."""
        if self.agent.poll() is None:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it ended just now
                agent = warm.child_of(self.agent.pid)
                clients = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
                for process in [agent, *(warm.child_of(int(client)) for client in clients)]:
                    os.kill(process, signal.SIGKILL)
        self.agent.kill()
        self.agent.wait(240)

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


def test_a_run_goes_on_exactly_after_the_loss_of_a_node_and_with_a_new_one(tmp_path: Path, nodes: list[Node]) -> None:
    """Two ranks, one, two: each step that was kept had other samples, and the epochs had each sample once."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    log = SampleLog(tmp_path / "log")
    log.limit(1, 0)
    log.limit(2, 17)
    nodes += [Node(name, store.port, tmp_path) for name in ("first", "second")]
    staying, lost = nodes

    def check() -> None:
        staying.check()

    log.wait([17], check)  # in the middle of epoch 0, 7 steps after the checkpoint
    lost.lose()
    log.limit(1, 33)
    log.limit(2, 10**6)
    log.wait([17, 33], check)  # in the middle of epoch 1, at step 43
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
