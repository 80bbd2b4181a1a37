"""The memory of a job is the least of what the machine, control groups, Slurm and the process allow."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from zarrfeed.base import job_memory
from zarrfeed.base.job_memory import cgroup_limits, job_bytes, slurm_limits

GIB = 1 << 30


class Machine:
    """Files as the kernel shows them of one process."""

    def __init__(self, path: Path, *, groups: str, mounts: list[str]) -> None:
        self.path = path
        self.process = path / "proc"
        self.process.mkdir()
        (self.process / "cgroup").write_text(groups)
        lines = [f"31 23 0:28 {mount.replace('TOP', str(path))}" for mount in mounts]
        (self.process / "mountinfo").write_text("22 1 0:21 / /proc rw - proc proc rw\nnonsense\n" + "\n".join(lines))

    def limit(self, group: str, file: str, value: str) -> None:
        (self.path / group).mkdir(parents=True, exist_ok=True)
        (self.path / group / file).write_text(value + "\n")

    def limits(self) -> list[int]:
        return sorted(cgroup_limits(self.process))


def test_a_limit_of_a_group_around_that_of_the_process_is_overlooked(tmp_path: Path) -> None:
    machine = Machine(
        tmp_path, groups="0::/slurm/job_7/step_0\n", mounts=["/ TOP/cg rw,relatime shared:9 - cgroup2 cgroup2 rw"]
    )
    machine.limit("cg/slurm", "memory.max", str(64 * GIB))
    machine.limit("cg/slurm/job_7", "memory.max", str(8 * GIB))
    machine.limit("cg/slurm/job_7/step_0", "memory.max", "max")
    machine.limit("cg/slurm/job_8", "memory.max", str(GIB))
    assert machine.limits() == [8 * GIB, 64 * GIB]


def test_version_1_of_control_groups_is_not_read(tmp_path: Path) -> None:
    groups = "4:memory:/docker/abc\n3:cpuset:/docker/abc\n0::/\n"
    machine = Machine(
        tmp_path,
        groups=groups,
        mounts=[
            "/ TOP/cpuset rw - cgroup cgroup rw,cpuset",
            "/ TOP/memory rw - cgroup cgroup rw,memory",
            "/ TOP/unified rw - cgroup2 cgroup2 rw",
        ],
    )
    machine.limit("memory", "memory.limit_in_bytes", "9223372036854771712")
    machine.limit("memory/docker", "memory.limit_in_bytes", str(16 * GIB))
    machine.limit("memory/docker/abc", "memory.limit_in_bytes", str(2 * GIB))
    machine.limit("cpuset/docker/abc", "memory.limit_in_bytes", "1")
    assert machine.limits() == [2 * GIB, 16 * GIB, 9223372036854771712]


def test_a_container_looks_for_the_group_of_the_host_below_its_own_mount(tmp_path: Path) -> None:
    """Docker with version 1 mounts the container's own group, while the process names it as the host does."""
    machine = Machine(
        tmp_path, groups="4:memory:/docker/abc\n", mounts=["/docker/abc TOP/memory ro - cgroup cgroup rw,memory"]
    )
    machine.limit("memory", "memory.limit_in_bytes", str(3 * GIB))
    machine.limit("memory/docker/abc", "memory.limit_in_bytes", "1")
    assert machine.limits() == [3 * GIB]


@pytest.mark.parametrize("group", ["/../../other", "/gone"])
def test_a_group_that_cannot_be_seen_hides_the_limit_of_the_mount(tmp_path: Path, group: str) -> None:
    machine = Machine(tmp_path, groups=f"0::{group}\n", mounts=["/ TOP/cg rw - cgroup2 cgroup2 rw"])
    machine.limit("cg", "memory.max", str(5 * GIB))
    assert machine.limits() == [5 * GIB]


def test_files_that_are_missing_or_unreadable_are_an_error(tmp_path: Path) -> None:
    assert list(cgroup_limits(tmp_path / "none")) == []
    machine = Machine(tmp_path, groups="0::/a\n", mounts=["/ TOP/cg rw - cgroup2 cgroup2 rw"])
    for value in ("", "-1", "12 34", "١٢"):
        machine.limit("cg/a", "memory.max", value)
        assert machine.limits() == []
    (tmp_path / "cg/a/memory.max").write_bytes(b"\xff\xfe")
    assert machine.limits() == []


@pytest.mark.parametrize(
    ("environment", "limits"),
    [
        ({}, []),
        ({"SLURM_MEM_PER_NODE": "4096"}, [4 * GIB]),
        ({"SLURM_MEM_PER_NODE": "0"}, []),
        ({"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "16"}, [8 * GIB]),
        ({"SLURM_MEM_PER_CPU": "512"}, []),
        ({"SLURM_MEM_PER_NODE": "1G", "SLURM_MEM_PER_CPU": "", "SLURM_CPUS_ON_NODE": "many"}, []),
    ],
)
def test_what_slurm_says_is_misread(environment: dict[str, str], limits: list[int]) -> None:
    assert list(slurm_limits(environment)) == limits


def test_a_job_may_use_more_than_one_of_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, groups="0::/\n", mounts=["/ TOP/cg rw - cgroup2 cgroup2 rw"])
    monkeypatch.setattr(job_memory, "_PROC", machine.process)
    monkeypatch.setattr(job_memory, "physical_bytes", lambda: 100 * GIB)
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"):
        monkeypatch.delenv(name, raising=False)
    find = job_bytes.__wrapped__
    assert find() == 100 * GIB
    machine.limit("cg", "memory.max", str(50 * GIB))
    assert find() == 50 * GIB
    monkeypatch.setenv("SLURM_MEM_PER_NODE", str(40 << 10))
    assert find() == 40 * GIB


def test_a_limit_of_the_address_space_is_overlooked() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 60, resource.RLIM_INFINITY))
        found = [*job_memory._process_limits()]
        os.write(write, repr(found).encode())
        os._exit(0)
    assert os.read(read, 100).decode() == repr([1 << 60])
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
