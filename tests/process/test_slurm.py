"""The batch script of examples/ with a `srun` and a `scontrol` of our own: a time limit, and a job on other nodes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.paths import ROOT
from tests.support.proc import children
from tests.support.sample_log import WRAPPER, SampleLog, assert_kept_once

EXAMPLES = ROOT / "examples"
NUM_SAMPLES, STEPS = 2048, 32

SCONTROL = """#!/usr/bin/env bash
# The first node is this machine. A large job has more names than a pipe holds, of which the script needs the first.
[ "$*" = "show hostnames $SLURM_JOB_NODELIST" ] || exit 1
echo localhost
for ((node = 2; node <= 10000; node++)); do echo "node$node"; done
"""

pytestmark = pytest.mark.timeout(900)


class Cluster:
    """Where `sbatch` and the commands of a job are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        commands, submit = directory / "bin", directory / "submit" / "examples"
        commands.mkdir()
        submit.mkdir(parents=True)
        srun = f'#!/bin/sh\nexec "{warm.executable()}" "{ROOT / "tests" / "support" / "fake_srun.py"}" "$@"\n'
        for name, text in (("srun", srun), ("scontrol", SCONTROL)):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        example = f"sys.argv[1:1] = [{str(EXAMPLES / 'ddp_torchrun.py')!r}]"
        (submit / "ddp_torchrun.py").write_text(
            f"import runpy, sys\n{example}\nrunpy.run_path({str(WRAPPER)!r}, run_name='__main__')\n"
        )
        self.jobs: list[subprocess.Popen[str]] = []

    def sbatch(self, *, nodes: int, tasks_per_node: int) -> subprocess.Popen[str]:
        """Run the script as Slurm does: a copy of it, in the folder where sbatch was called."""
        number, tasks = job_with_a_free_port(), nodes * tasks_per_node
        node_list = f"node[1-{nodes}]" if nodes > 1 else "node1"
        copy = self.directory / f"slurm_script_{number}"
        shutil.copy(EXAMPLES / "slurm_ddp.sh", copy)
        job = {
            "SLURM_JOB_ID": str(number),
            "SLURM_JOBID": str(number),
            "SLURM_JOB_NAME": "zarrfeed",
            "SLURM_JOB_NODELIST": node_list,
            "SLURM_NODELIST": node_list,
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_NNODES": str(nodes),
            "SLURM_NTASKS": str(tasks),
            "SLURM_NPROCS": str(tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks_per_node),
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_SUBMIT_DIR": str(self.directory / "submit"),
            "SLURM_PROCID": "0",  # of the batch script itself
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "0",
        }
        environment = {
            **os.environ,
            **job,
            "PATH": f"{self.directory / 'bin'}:{warm.executable().parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SAMPLE_LOG": str(self.directory / "log"),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [*("bash", str(copy)), *(str(self.directory / name) for name in ("train.zarr", "run.pt"))]
        self.jobs.append(
            subprocess.Popen(
                [*command, "--epochs", "2"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=self.directory / "submit",
                start_new_session=True,
            )
        )
        return self.jobs[-1]


def job_with_a_free_port() -> int:
    """Return the number of a job for which the script chooses a port that is free: 20000 + number mod 20000."""
    for job in range(os.getpid() % 10000, 20000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", 20000 + job))
            return job
    raise AssertionError("no port is free")


def step_of(job: subprocess.Popen[str]) -> int:
    """Return the process of the srun of a job."""
    (srun,) = children(job.pid)
    return srun


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    for job in cluster.jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def test_a_job_that_its_time_limit_ends_goes_on_exactly_on_other_nodes(tmp_path: Path, cluster: Cluster) -> None:
    """Two nodes, then one: of what was kept, each sample came once an epoch."""
    log = SampleLog(tmp_path / "log")
    log.limit(2, 17)
    log.limit(1, 10**6)
    first = cluster.sbatch(nodes=2, tasks_per_node=1)

    def check() -> None:
        assert first.poll() is None, first.communicate()[0]

    log.wait([17], check)  # in the middle of epoch 0, 7 steps after the checkpoint
    os.kill(step_of(first), signal.SIGTERM)
    said = first.communicate(timeout=240)[0]
    assert first.returncode == 128 + signal.SIGTERM, said
    second = cluster.sbatch(nodes=1, tasks_per_node=1)
    said = second.communicate(timeout=240)[0]
    assert second.returncode == 0, said

    assert said.startswith("continuing on 1 ranks in epoch 0, at step 10\n")
    starts = log.starts()
    assert [(start.world_size, len(start.steps)) for start in starts] == [(2, 17), (1, 2 * STEPS - 10)]
    assert_kept_once(starts, [0, 10], steps=STEPS, num_samples=NUM_SAMPLES)
    assert re.findall(r"epoch (\d) on 1 ranks: each sample exactly once", said) == ["0", "1"]
