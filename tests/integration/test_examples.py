"""The examples run as their first lines say, on CPU. tests/process/ has those that clusters start."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.support import warm
from tests.support.dcp import dcp
from tests.support.paths import ROOT
from tests.support.proc import children
from zarrfeed.checkpoint import ZarrfeedReader

EXAMPLES = ROOT / "examples"
EXACT = "each sample exactly once"

pytestmark = pytest.mark.timeout(600)


def run(*command: str, **variables: str) -> str:
    """Run a command to its end, and return what it printed; a failure shows all of it."""
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = os.environ | warm.variables() | own | variables
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_plain_pytorch_stops_and_goes_on(tmp_path: Path) -> None:
    out = run(*warm.command(), str(EXAMPLES / "plain_pytorch.py"), TMPDIR=str(tmp_path))
    assert "stopped in epoch 1 after 512 samples" in out
    assert "continuing in epoch 1 after 512 samples" in out
    assert re.findall(r"epoch (\d) is over: (\d+) samples", out) == [("0", "2048"), ("1", "2048"), ("2", "2048")]
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < 0.1 * losses[0], "the model learns"
    assert not list(tmp_path.glob("**/train.zarr")), "what it made is gone"


def weights_of(checkpoint: Path) -> torch.Tensor:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 8), torch.nn.Linear(8, 1)).double()
    state = {"model": model.state_dict()}
    dcp.load(state, storage_reader=ZarrfeedReader(checkpoint), no_dist=True)
    return torch.cat([value.flatten() for value in state["model"].values()])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_run_that_is_killed_goes_on_exactly_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Model and data: the samples of each step and the final weights are those of a run that was not killed."""

    def command(ranks: int, run_name: str) -> list[str]:
        return [
            *(*warm.command(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
            *(str(EXAMPLES / "checkpoint_torchrun.py"), "--data", str(tmp_path / "train.zarr")),
            *("--checkpoints", str(tmp_path / run_name), "--epochs", "1", "--save-every", "3"),
        ]

    whole = run(*command(1, "whole")).splitlines()[-1]
    assert re.fullmatch(r"done after 32 steps, trail [0-9a-f]{64}", whole)
    draw = random.Random()
    killed_at, delay = draw.randrange(1, 6), draw.random() * 0.05
    environment = os.environ | warm.variables() | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(command(2, "run"), stdout=subprocess.PIPE, text=True, env=environment) as first:
        assert first.stdout is not None
        for _ in range(killed_at):
            assert first.stdout.readline().startswith("saved step")
        time.sleep(delay)
        for rank in children(warm.child_of(first.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        assert "done" not in first.stdout.read(), f"killed {delay} s after checkpoint {killed_at}"
        assert first.wait(240) != 0
    second = run(*command(1, "run")).splitlines()
    assert int(re.findall(r"continuing on 1 ranks after step (\d+)", second[0])[0]) >= 3 * killed_at
    assert second[-1] == whole, f"killed {delay} s after checkpoint {killed_at}"
    # Sums over two ranks are rounded otherwise than sums over one.
    expected = weights_of(tmp_path / "whole" / "step-32")
    assert torch.allclose(weights_of(tmp_path / "run" / "step-32"), expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(weights_of(tmp_path / "run" / "step-30"), expected, rtol=1e-6), "the model still learns"
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == ["step-30", "step-32"], "retention"


def torchrun(ranks: int, directory: Path, *arguments: str) -> str:
    return run(
        *(*warm.command(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
        *(str(EXAMPLES / "ddp_torchrun.py"), "--data", str(directory / "train.zarr")),
        *("--checkpoint", str(directory / "run.pt"), *arguments),
    )


def test_torchrun_stops_and_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    first = torchrun(2, tmp_path, "--stop-after", "43", "--epochs", "2")
    assert [line.partition(",")[0] for line in first.splitlines()] == [f"epoch 0 on 2 ranks: {EXACT}"]
    second = torchrun(1, tmp_path, "--epochs", "2").splitlines()
    assert second[0] == "continuing on 1 ranks in epoch 1, at step 40"
    assert [line.partition(",")[0] for line in second[1:]] == [f"epoch 1 on 1 ranks: {EXACT}"]


def test_lightning_stops_and_goes_on(tmp_path: Path) -> None:
    out = run(*warm.command(*warm.LIGHTNING), str(EXAMPLES / "lightning_fit.py"), TMPDIR=str(tmp_path))
    assert out.splitlines() == [
        "rank 0, epoch 0: 2048 samples before the stop, 0 after it, 2048 different ones",
        "rank 0, epoch 1: 512 samples before the stop, 1536 after it, 2048 different ones",
        "rank 0, epoch 2: 0 samples before the stop, 2048 after it, 2048 different ones",
    ]


@pytest.mark.slow
def test_lightning_on_two_ranks(tmp_path: Path) -> None:
    arguments = ("--devices", "2", "--directory", str(tmp_path))
    lines = run(*warm.command(*warm.LIGHTNING), str(EXAMPLES / "lightning_fit.py"), *arguments).splitlines()
    for rank in range(2):
        assert f"rank {rank}, epoch 1: 256 samples before the stop, 768 after it, 1024 different ones" in lines
        assert f"rank {rank}, epoch 2: 0 samples before the stop, 1024 after it, 1024 different ones" in lines


@pytest.mark.slow
def test_a_growing_dataset_is_read_while_simulations_write_it(tmp_path: Path) -> None:
    arguments = ("--directory", str(tmp_path), "--sample-kib", "4", "--window", "200", "--rate", "8", "--seconds", "1")
    out = run(*warm.command(), str(EXAMPLES / "growing_dataset.py"), *arguments)
    epochs = [tuple(map(int, one)) for one in re.findall(r"epoch \d+: (\d+) samples, up to (\d+)", out)]
    assert len(epochs) >= 2
    assert all(samples == min(200, end) for samples, end in epochs)
    assert [end for _, end in epochs] == sorted(end for _, end in epochs)
    assert f"0 torn samples of {sum(samples for samples, _ in epochs)};" in out
    assert not list(tmp_path.iterdir()), "what it made is gone"


def train_on_a_small_head(directory: Path, *arguments: str) -> tuple[list[tuple[str, ...]], float]:
    """Run the example, which stops and goes on; return patches and voxels of each epoch, and the Dice score."""
    script = str(EXAMPLES / "segment_volume.py")
    out = run(*warm.command(), script, "--small", *arguments, TMPDIR=str(directory))
    assert "stopped in epoch 2 after 30 steps\ncontinuing in epoch 2 after 24 steps\n" in out
    assert not list(directory.glob("**/*.zarr")), "what it made is gone"
    epochs = re.findall(r"epoch \d: (\d+) patches with (\d+) voxels", out)
    return epochs, float(re.findall(r"that was not trained on: ([0-9.]+)", out)[0])


@pytest.mark.slow
def test_a_volume_is_segmented_from_patches(tmp_path: Path) -> None:
    """Each voxel comes once in an epoch, also in the one with the stop; the model finds voxels that it never saw."""
    epochs, dice = train_on_a_small_head(tmp_path)
    assert len(epochs) == 4
    assert len({voxels for _, voxels in epochs}) == 1
    assert dice > 0.5


def test_a_volume_is_segmented_from_patches_of_the_foreground(tmp_path: Path) -> None:
    epochs, dice = train_on_a_small_head(tmp_path, "--foreground")
    assert [patches for patches, _ in epochs] == ["48"] * 4
    assert len({voxels for _, voxels in epochs}) == 4, "patches are drawn anew"
    assert dice > 0.5


def test_the_volume_of_the_example_is_in_the_package_of_nilearn() -> None:
    pytest.importorskip("nilearn", reason="pip install nilearn, which takes 200 MB with what it needs")
    code = "import segment_volume; image, grey = segment_volume.read_brain(); print(image.shape, grey.mean().round(2))"
    out = run(*warm.command(), "-c", code, PYTHONPATH=f"{EXAMPLES}:{os.environ.get('PYTHONPATH', '')}")
    assert out == "(233, 197, 189) 0.12\n"


def test_the_readme_names_every_example() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".sh", ".yaml") and path.name != "synthetic.py":
            assert f"[{path.name}]({path.name})" in readme
