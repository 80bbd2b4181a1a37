"""What stands for Slurm's `srun` in tests: `srun COMMAND...` in a job starts the tasks of a step on this machine.

The tasks have the variables that srun(1) names, with the values that they have on a cluster that lays tasks out in
blocks. SIGTERM goes on to all tasks, as slurmstepd signals them at a time limit. Like srun since Slurm 22.05, this one
does not take --cpus-per-task from sbatch: it fails where the tasks would silently have one core.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType


def environments() -> list[dict[str, str]]:
    """Return the environment of each task."""
    job = os.environ
    if job.get("SLURM_CPUS_PER_TASK") != job.get("SRUN_CPUS_PER_TASK"):
        sys.exit("srun: error: the tasks would not have the cores that sbatch asked for: SRUN_CPUS_PER_TASK is not set")
    nodes, per_node = int(job["SLURM_JOB_NUM_NODES"]), int(job["SLURM_NTASKS_PER_NODE"])
    layout = f"{per_node}(x{nodes})" if nodes > 1 else str(per_node)
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NODELIST": job["SLURM_JOB_NODELIST"],
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_TASKS_PER_NODE": layout,
        "SLURM_STEP_LAUNCHER_PORT": "0",
        "SLURM_TASKS_PER_NODE": layout,
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_NPROCS": str(nodes * per_node),
        "SLURM_DISTRIBUTION": "block",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
    }
    tasks = []
    for node in range(nodes):
        on_node = range(node * per_node, (node + 1) * per_node)
        of_node = {
            "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": f"node{node + 1}",
            "SLURM_GTIDS": ",".join(map(str, on_node)),
        }
        tasks += [
            {**job, **step, **of_node, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(local)}
            for local, task in enumerate(on_node)
        ]
    return tasks


def main() -> None:
    """Run the step; end with the highest status of its tasks, 128 + signal for one that a signal ended."""
    tasks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    for environment in environments():
        tasks.append(subprocess.Popen(sys.argv[1:], env=environment))  # noqa: PERF401 - the handler needs each at once
    codes = [task.wait() for task in tasks]
    sys.exit(max(128 - code if code < 0 else code for code in codes))


if __name__ == "__main__":
    main()
