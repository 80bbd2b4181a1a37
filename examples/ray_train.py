"""Train on two workers with Ray Train; kill one of them; Ray starts both anew, and they go on from the checkpoint.

    python examples/ray_train.py

makes a small store in a temporary directory and trains on CPU. In the middle of epoch 1 a worker is killed as the
kernel kills a process without memory. After the restart come exactly the samples that were not used before the
checkpoint. `pip install "ray[data]"` has what is needed. On a cluster, give directories that all nodes share:

    python examples/ray_train.py --directory /shared/run --workers 8
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, get_device, prepare_model
from synthetic import NUM_SAMPLES, SIZE, open_or_make_store

from zarrfeed import Digest, ZarrDataLoader, ZarrIterableDataset, audit

EPOCHS = 2
GLOBAL_BATCH = 64  # samples of a step, over all workers
SAVE_EVERY = 10  # steps


def train(config: dict[str, Any]) -> None:
    """Train until the last epoch ends: what Ray runs on each worker, and once more after a worker died."""
    rank, workers = dist.get_rank(), dist.get_world_size()  # Ray has called init_process_group
    samples, targets = open_or_make_store(config["data"])
    # The rank comes from torch.distributed. Ray's prepare_data_loader is not for this loader: it takes a batch ahead.
    dataset = ZarrIterableDataset(
        samples, targets, batch_size=GLOBAL_BATCH // workers, shuffle=True, seed=42, return_index=True
    )
    loader = ZarrDataLoader(dataset)
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    epoch, step, exact = 0, 0, 0
    delivered = Digest()  # of what this worker got in this epoch
    before_save = Digest()  # of what all workers got in it before the run was saved
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory) / "state.pt", map_location=get_device())
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same dict on every worker
        epoch, step, exact, before_save = (*saved["progress"], Digest.from_tensor(saved["digest"]))
        if rank == 0:
            print(f"continuing on {workers} workers in epoch {epoch}, after step {step}", flush=True)

    def delivered_to_all() -> Digest:
        total = delivered.tensor().to(get_device())
        dist.all_reduce(total)
        return before_save + Digest.from_tensor(total)

    def save() -> None:
        metrics = {"step": step, "exact_epochs": exact, "loss": loss.item()}
        digest = delivered_to_all()
        if rank > 0:
            ray.train.report(metrics)  # every worker reports, as often as the others
            return
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),  # a small dict: which epoch, and how far in it
            "progress": (epoch, step, exact),
            "digest": digest.tensor(),
        }
        with tempfile.TemporaryDirectory() as directory:
            torch.save(state, Path(directory) / "state.pt")
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))

    while epoch < EPOCHS:
        for x, y, index in loader:
            if step == config["kill_after"] and rank == workers - 1 and checkpoint is None:
                ray.train.get_all_reported_checkpoints()  # waits until Ray has registered those that were reported
                os.kill(os.getpid(), signal.SIGKILL)
            loss = torch.nn.functional.mse_loss(model(x.to(get_device())).squeeze(1), y.to(get_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            delivered += audit(index)
            step += 1
            if step % SAVE_EVERY == 0:
                save()
        exact += delivered_to_all() == Digest.of_range(NUM_SAMPLES)
        epoch += 1
        delivered = before_save = Digest()
        save()


def fit(
    directory: Path, workers: int, *, kill_after: int | None, train: Callable[[dict[str, Any]], None] = train
) -> dict[str, Any]:
    """Train on some workers; return the metrics that were reported last."""
    open_or_make_store(directory / "train.zarr")
    trainer = TorchTrainer(
        train,
        train_loop_config={"data": directory / "train.zarr", "kill_after": kill_after},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),  # use_gpu=True: a GPU for each
        run_config=ray.train.RunConfig(
            name="example",
            storage_path=str(directory / "runs"),
            failure_config=ray.train.FailureConfig(max_failures=1),  # how often Ray starts the workers anew
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    return trainer.fit().metrics


def main() -> None:
    """Train where the arguments say, or in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="for data and checkpoints")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=int, default=45, help="steps after which a worker is killed; 0: never")
    arguments = parser.parse_args()
    ray.init(num_cpus=None if "RAY_ADDRESS" in os.environ else arguments.workers, include_dashboard=False)
    with tempfile.TemporaryDirectory() as temporary:
        directory, kill_after = arguments.directory or Path(temporary), arguments.kill_after or None
        metrics = fit(directory, arguments.workers, kill_after=kill_after)
    print(f"{metrics['exact_epochs']} of {EPOCHS} epochs had each sample exactly once, loss {metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
