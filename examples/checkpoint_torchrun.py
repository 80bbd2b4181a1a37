"""Train a sharded model, save it with the position in the data, and go on exactly after a kill, on other ranks, too.

    torchrun --nproc-per-node 2 examples/checkpoint_torchrun.py --data train.zarr --checkpoints run

The data are made if they are not there. `--checkpoints` may be `s3://bucket/run`. Kill the run at any moment, with
`kill -9` if you like, and start it again on 1, 2 or 4 processes: it continues from the newest checkpoint, with the
batches that would have come next. "trail" is a digest of the samples of all steps in their order; a run that was never
killed ends with the same one, and with the same weights but for the rounding of sums over another number of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from synthetic import NUM_SAMPLES, SIZE, open_or_make_store
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from zarrfeed import ZarrDataLoader, ZarrIterableDataset, rank_from_torchrun
from zarrfeed.checkpoint import LoaderState, ZarrfeedReader, ZarrfeedWriter, newest, retain

GLOBAL_BATCH = 64  # samples of a step, over all ranks


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with the Zarr arrays samples and targets")
    parser.add_argument("--checkpoints", required=True, help="folder of the checkpoints: a path or a URL")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=5, help="steps")
    return parser.parse_args()


def main() -> None:
    """Train until the last epoch ends."""
    arguments = parse_arguments()
    rank, world_size = rank_from_torchrun()
    dist.init_process_group("gloo", rank=rank, world_size=world_size)  # on GPUs: "cpu:gloo,cuda:nccl"
    if rank == 0:
        open_or_make_store(arguments.data)
    dist.barrier()
    samples, targets = open_or_make_store(arguments.data)

    dataset = ZarrIterableDataset(
        samples, targets, batch_size=GLOBAL_BATCH // world_size, shuffle=True, seed=42, return_index=True
    )
    loader = ZarrDataLoader(dataset)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE * SIZE, 8), torch.nn.Linear(8, 1)).double()
    mesh = dist.init_device_mesh("cpu", (world_size,))
    fully_shard(model, mesh=mesh)  # each rank has a part of every weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def everything(progress: dict[str, int | str]) -> dict[str, object]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "loader": LoaderState(loader), "progress": progress}

    progress: dict[str, int | str] = {"step": 0, "trail": ""}
    checkpoint = newest(arguments.checkpoints)  # the same on every rank: nobody saves now
    if checkpoint is not None:
        state = everything(progress)
        dcp.load(state, storage_reader=ZarrfeedReader(checkpoint))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        progress = state["progress"]
        if rank == 0:
            print(f"continuing on {world_size} ranks after step {progress['step']}", flush=True)

    def save() -> None:
        writer = ZarrfeedWriter(f"{arguments.checkpoints}/step-{progress['step']}")
        dcp.save(everything(dict(progress)), storage_writer=writer)
        if rank == 0:
            retain(arguments.checkpoints, keep_last=2)
            print(f"saved step {progress['step']}", flush=True)

    last_step = arguments.epochs * (NUM_SAMPLES // GLOBAL_BATCH)
    while progress["step"] < last_step:
        for x, y, index in loader:  # the first time after loading: the rest of the epoch
            loss = torch.nn.functional.mse_loss(model(x.double()).squeeze(1), y.double())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_ranks = [torch.empty_like(index) for _ in range(world_size)]
            dist.all_gather(of_ranks, index)
            used = torch.cat(of_ranks).sort().values.numpy().tobytes()
            progress["trail"] = hashlib.sha256(progress["trail"].encode() + used).hexdigest()
            progress["step"] += 1
            if progress["step"] % arguments.save_every == 0 or progress["step"] == last_step:
                save()
    if rank == 0:
        print(f"done after {progress['step']} steps, trail {progress['trail']}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
