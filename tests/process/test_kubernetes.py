"""The manifest of an indexed Job in examples/, and its command with the environment of its pods."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import warm
from tests.support.paths import ROOT
from tests.support.sample_log import WRAPPER, SampleLog, assert_kept_once
from zarrfeed import rank_from_kubernetes

NUM_SAMPLES, STEPS = 2048, 32

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """Return the documents of the manifest, by kind."""
    documents = yaml.safe_load_all((ROOT / "examples" / "kubernetes_job.yaml").read_text())
    return {document["kind"]: document for document in documents}


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (only,) = manifest["Job"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def environment_of_pod(manifest: dict[str, Any], index: int) -> dict[str, str]:
    """Return what the manifest sets, and what Kubernetes sets in a pod of an indexed Job."""
    variables = {variable["name"]: variable["value"] for variable in container(manifest)["env"]}
    assert all(isinstance(value, str) for value in variables.values()), "Kubernetes refuses others"
    return variables | {"JOB_COMPLETION_INDEX": str(index)}


def test_the_manifest_tells_each_pod_its_rank_and_the_world_size(
    manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, service = manifest["Job"]["spec"], manifest["Service"]
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"], "ranks wait for each other"
    for index in range(job["completions"]):
        for name, value in environment_of_pod(manifest, index).items():
            monkeypatch.setenv(name, value)
        assert rank_from_kubernetes() == (index, job["completions"])
    name = manifest["Job"]["metadata"]["name"]
    assert job["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    pod = environment_of_pod(manifest, 0)
    assert pod["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
    assert [port["port"] for port in service["spec"]["ports"]] == [int(pod["MASTER_PORT"])]


def test_the_command_of_the_manifest_trains_on_all_pods(tmp_path: Path, manifest: dict[str, Any]) -> None:
    """Two pods, on this machine: each sample comes once."""
    of_pod = container(manifest)
    assert of_pod["command"] == ["python", "examples/ddp_torchrun.py"]
    arguments = [str(argument).replace("/data/", f"{tmp_path}/") for argument in of_pod["args"]]
    log = SampleLog(tmp_path / "log")
    log.limit(2, 10**6)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pods = [
        subprocess.Popen(
            [*warm.command(), str(WRAPPER), str(ROOT / of_pod["command"][1]), *arguments, "--epochs", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                **environment_of_pod(manifest, index),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "PYTHONPATH": str(ROOT),
                "SAMPLE_LOG": str(log.folder),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
        )
        for index in range(2)
    ]
    try:
        said = [pod.communicate(timeout=240)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
            pod.communicate()
    assert [pod.returncode for pod in pods] == [0, 0], "\n".join(said)
    assert said[0].startswith("epoch 0 on 2 ranks: each sample exactly once")
    assert_kept_once(log.starts(), [0], steps=STEPS, num_samples=NUM_SAMPLES)
