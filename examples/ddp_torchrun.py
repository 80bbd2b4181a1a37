"""Train on several processes with DistributedDataParallel, and prove that every epoch had each sample exactly once.

    torchrun --nproc-per-node 2 examples/ddp_torchrun.py --data train.zarr --checkpoint run.pt

The data are made if they are not there. Interrupt the run and start it again, on 1 or 4 processes if you like: the rest
of the epoch is what was not used yet. examples/slurm_ddp.sh and examples/kubernetes_job.yaml start the same script
without torchrun.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from synthetic import NUM_SAMPLES, SIZE, open_or_make_store
from torch.nn.parallel import DistributedDataParallel

from zarrfeed import (
    Digest,
    ZarrDataLoader,
    ZarrIterableDataset,
    audit,
    rank_from_kubernetes,
    rank_from_slurm,
    rank_from_torchrun,
)

#: Launcher -> what tells a process its rank, and the variable with its number on this node. A pod has one process.
LAUNCHERS = {
    "torchrun": (rank_from_torchrun, "LOCAL_RANK"),
    "slurm": (rank_from_slurm, "SLURM_LOCALID"),
    "kubernetes": (rank_from_kubernetes, ""),
}
GLOBAL_BATCH = 64  # samples of a step, over all ranks
SAVE_EVERY = 10  # steps


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with the Zarr arrays samples and targets")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"), help="read if it is there")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--launcher", choices=list(LAUNCHERS), default="torchrun")
    parser.add_argument("--stop-after", type=int, help="steps after which to stop, to try a new start")
    return parser.parse_args()


def main() -> None:
    """Join the other processes, train with them, and leave."""
    arguments = parse_arguments()
    find_rank, local_rank = LAUNCHERS[arguments.launcher]
    rank, world_size = find_rank()
    device = torch.device("cpu")
    if torch.cuda.is_available():  # a task of Slurm may see its own GPU alone, or all of the node
        device = torch.device("cuda", int(os.environ.get(local_rank, 0)) % torch.cuda.device_count())
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world_size)
    train(arguments, rank, world_size, device)
    # The model of DDP is gone by now. If it outlives the group, it ends gloo's threads while it holds the lock of
    # Python, and a thread that waits for that lock never ends (torch 2.13).
    dist.destroy_process_group()


def train(arguments: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    """Train until the last epoch ends."""
    if rank == 0:
        open_or_make_store(arguments.data)
    dist.barrier()
    samples, targets = open_or_make_store(arguments.data)

    # The rank comes from torch.distributed; each rank gets its share, and all of them the same number of batches.
    dataset = ZarrIterableDataset(
        samples, targets, batch_size=GLOBAL_BATCH // world_size, shuffle=True, seed=42, return_index=True
    )
    loader = ZarrDataLoader(dataset)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 1)).to(device)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    epoch, step = 0, 0
    delivered = Digest()  # of what this rank got in this epoch
    before_save = Digest()  # of what all ranks got in it before the run was saved
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same dict on every rank
        epoch, step, before_save = saved["epoch"], saved["step"], Digest.from_tensor(saved["digest"])
        if rank == 0:
            print(f"continuing on {world_size} ranks in epoch {epoch}, at step {step}", flush=True)

    def delivered_to_all() -> Digest:
        total = delivered.tensor().to(device)
        dist.all_reduce(total)
        return before_save + Digest.from_tensor(total)

    def save() -> None:
        digest = delivered_to_all()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "epoch": epoch,
            "step": step,
            "digest": digest.tensor(),
        }
        if rank == 0:
            partial = arguments.checkpoint.with_suffix(".partial")
            torch.save(state, partial)
            partial.replace(arguments.checkpoint)

    while epoch < arguments.epochs:
        for x, y, index in loader:
            loss = torch.nn.functional.mse_loss(ddp_model(x.to(device)).squeeze(1), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            delivered += audit(index)
            step += 1
            if step % SAVE_EVERY == 0:
                save()
            if step == arguments.stop_after:
                return
        exact = delivered_to_all() == Digest.of_range(NUM_SAMPLES)
        if rank == 0:
            times = (
                "each sample exactly once" if exact else "not each sample once (a tail was dropped to keep ranks even)"
            )
            print(f"epoch {epoch} on {world_size} ranks: {times}, loss {loss.item():.4f}", flush=True)
        epoch += 1
        delivered = before_save = Digest()
        save()


if __name__ == "__main__":
    main()
