"""One process of a run of transformers' `Trainer` on several ranks: trains in many ways, and writes what the model saw.

Run as `main(store, output)` with torchrun's environment variables, by `python -c`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.support.flat import iterable_dataset
from zarrfeed import ZarrDataLoader, ZarrIterableDataset

BATCH_SIZE = 6
EPOCHS = 2


class Recorder(torch.nn.Module):
    """Learns nothing, and writes down the samples that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.batches: list[list[int]] = []

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        assert torch.equal(x, index[:, None].expand(x.shape))
        self.batches.append(index.tolist())
        return {"loss": (x.float() * self.weight).sum(), "logits": index}


class Stop(TrainerCallback):  # type: ignore[misc]  # mypy skips transformers
    """Stops after some steps, as a job does that is killed."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        control.should_training_stop = state.global_step == self._step


def dataset(store: str, **options: Any) -> ZarrIterableDataset:
    return iterable_dataset(
        {"x": store}, **{"shuffle": True, "seed": 3, "lanes": 6, **options}, return_index=True, num_threads=1
    )


def as_dict(sample: Any) -> dict[str, torch.Tensor]:
    values, index = sample
    return {**values, "index": index}


class BatchTrainer(Trainer):  # type: ignore[misc]
    """Takes whole batches from a `ZarrDataLoader`."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        assert isinstance(self.train_dataset, ZarrIterableDataset)
        loader: DataLoader[Any] = self.accelerator.prepare(ZarrDataLoader(self.train_dataset))
        return loader


def train(
    store: str,
    directory: Path,
    *,
    trainer: Callable[..., Any] = Trainer,
    options: dict[str, Any] | None = None,
    stop: int | None = None,
    resume: bool = False,
    epoch: int | None = None,
    evaluates: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    """Train, and return what the model saw on this rank, or how that was refused."""
    model = Recorder()
    settings = TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=BATCH_SIZE,
        num_train_epochs=EPOCHS,
        use_cpu=True,
        report_to=[],
        label_names=["index"],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"save_strategy": "no", **arguments},
    )
    data = dataset(store, transform=as_dict, **(options or {}))
    if epoch is not None:
        data.set_epoch(epoch)
    made = trainer(
        model=model,
        args=settings,
        train_dataset=data,
        eval_dataset=dataset(store, transform=as_dict, shuffle=False, lanes=None) if evaluates else None,
        compute_metrics=(lambda seen: {"seen": sorted(map(int, seen.label_ids))}) if evaluates else None,
        callbacks=[] if stop is None else [Stop(stop)],
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if evaluates:
                return {"metrics": made.evaluate(), "batches": model.batches}
            made.train(resume_from_checkpoint=True if resume else None)
        except ValueError as error:
            return {"refusal": f"{type(error).__name__}: {error}"}
    return {
        "batches": model.batches,
        "steps": made.state.global_step,
        "chunks": data.stats().chunks_read,
        "warnings": [str(w.message) for w in caught if "accelerate reads" in str(w.message)],
    }


def main(store: str, output: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    own: dict[str, Any] = {"accelerator_config": {"dispatch_batches": False}}
    workers: dict[str, Any] = {"dataloader_num_workers": 2}
    directory = Path(output).parent
    batched = {"batch_size": BATCH_SIZE}
    results = {
        "default": train(store, directory),
        "own shares": train(store, directory, **own),
        "default, workers": train(store, directory, **workers),
        "own shares, workers": train(store, directory, **own, **workers),
        "batched": train(store, directory, options=batched),
        "batched, own shares": train(store, directory, options=batched, **own),
        "batched, workers": train(store, directory, options=batched, **own, **workers),
        "loader": train(store, directory, options=batched, trainer=BatchTrainer),
        "evaluate": train(store, directory, evaluates=True),
        "evaluate, own shares": train(store, directory, evaluates=True, **own),
    }
    saves: dict[str, Any]
    for name, arguments in {"default": {}, "own shares": own}.items():
        folder = directory / name
        saves = {"save_strategy": "steps", "save_steps": 23, **arguments}
        begun = train(store, folder, stop=23, **saves)
        resumed = train(store, folder, resume=True, **saves)
        results[f"resumed, {name}"] = {"batches": begun["batches"] + resumed["batches"]}
    folder = directory / "loader"
    saves = {"save_strategy": "steps", "save_steps": 23, "options": batched, "trainer": BatchTrainer}
    train(store, folder, stop=23, **saves)
    results["resumed, loader"] = train(store, folder, resume=True, **saves)
    begun = train(store, folder, stop=23, **saves)
    resumed = train(store, folder, resume=True, epoch=1, **saves)
    results["resumed, loader, epoch named"] = {"batches": begun["batches"] + resumed["batches"]}
    Path(output).write_text(json.dumps(results))
    if int(os.environ["WORLD_SIZE"]) > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
