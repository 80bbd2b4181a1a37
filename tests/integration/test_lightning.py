"""Lightning's Trainer: checkpoints in the middle of an epoch, epochs that advance by themselves, ranks by "ddp"."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support import warm
from tests.support.examples import slow
from tests.support.later import Later
from tests.support.paths import ROOT
from zarrfeed import ZarrDataLoader, ZarrIterableDataset

lightning: Any = Later("lightning")
models: Any = Later("tests.support.lightning_models")

N = 211  # a prime
BATCH_SIZE = 6
STEPS = -(-N // BATCH_SIZE)
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # Lightning's and torch's, of each other
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("lightning") / "samples.zarr")
    zarr.create_array(path, data=np.repeat(np.arange(N), 3).reshape(N, 3), chunks=(4, 3))
    return path


def make_loader(store: str, num_workers: int, *, persistent: bool = False) -> ZarrDataLoader:
    dataset = ZarrIterableDataset(store, batch_size=BATCH_SIZE, shuffle=True, seed=3, return_index=True, num_threads=1)
    if num_workers == 0:
        return ZarrDataLoader(dataset)
    return ZarrDataLoader(
        dataset, num_workers=num_workers, multiprocessing_context="fork", persistent_workers=persistent, timeout=240
    )


def fit(
    loader: ZarrDataLoader, directory: Path, *, checkpoint: Path | None = None, **settings: Any
) -> dict[int, list[list[int]]]:
    """Train, save after every fifth batch, and return the batches of each epoch."""
    module = models.Recorder()
    saves = lightning.pytorch.callbacks.ModelCheckpoint(
        directory, filename="{step}", every_n_train_steps=5, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=directory,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, loader, ckpt_path=checkpoint)
    epochs: dict[int, list[list[int]]] = module.epochs
    return epochs


def samples_of(batches: list[list[int]]) -> list[int]:
    return sorted(index for batch in batches for index in batch)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), slow(2, False), (2, True)])
def test_epochs_advance_though_nobody_calls_set_epoch(
    store: str, tmp_path: Path, num_workers: int, persistent: bool
) -> None:
    epochs = fit(make_loader(store, num_workers, persistent=persistent), tmp_path, max_epochs=3)
    assert list(epochs) == [0, 1, 2]
    for batches in epochs.values():
        assert samples_of(batches) == list(range(N))
        assert len(batches) == STEPS
    assert len({str(batches) for batches in epochs.values()}) == 3


@pytest.mark.parametrize(("saved_at", "num_workers"), [(5, 0), slow(5, 2), slow(STEPS + 4, 0), (STEPS + 4, 2)])
def test_a_checkpoint_within_an_epoch_resumes_with_the_unused_samples(
    store: str, tmp_path: Path, num_workers: int, saved_at: int
) -> None:
    """The checkpoint is older than the end of the run: what came after it counts as not used."""
    whole = fit(make_loader(store, num_workers), tmp_path, max_epochs=3)
    epoch, step = divmod(saved_at, STEPS)
    resumed = fit(
        make_loader(store, num_workers), tmp_path, checkpoint=tmp_path / f"step={saved_at}.ckpt", max_epochs=3
    )
    assert list(resumed) == list(range(epoch, 3))
    assert samples_of(whole[epoch][:step] + resumed[epoch]) == list(range(N))
    if num_workers == 0:
        assert resumed[epoch] == whole[epoch][step:]
    for later in range(epoch + 1, 3):
        assert resumed[later] == whole[later]


@pytest.mark.parametrize(("before", "after"), [slow(0, 2), slow(2, 0), (2, 3)])
def test_a_checkpoint_resumes_with_another_number_of_workers(
    store: str, tmp_path: Path, before: int, after: int
) -> None:
    whole = fit(make_loader(store, before), tmp_path, max_epochs=1)
    resumed = fit(make_loader(store, after), tmp_path, checkpoint=tmp_path / "step=15.ckpt", max_epochs=2)
    assert samples_of(whole[0][:15] + resumed[0]) == list(range(N))
    assert samples_of(resumed[1]) == list(range(N))


def test_a_checkpoint_of_the_end_of_an_epoch_resumes_with_the_next(store: str, tmp_path: Path) -> None:
    """Lightning does not load the loader's state from such a checkpoint, and only says which epoch begins."""

    class AtEnd(lightning.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, _: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"end-{trainer.current_epoch}.ckpt")

    module = models.Recorder()
    lightning.Trainer(max_epochs=3, callbacks=[AtEnd()], **QUIET).fit(module, make_loader(store, 0))
    resumed = models.Recorder()
    lightning.Trainer(max_epochs=3, **QUIET).fit(resumed, make_loader(store, 0), ckpt_path=tmp_path / "end-0.ckpt")
    assert resumed.epochs == {1: module.epochs[1], 2: module.epochs[2]}


def test_loaders_that_are_made_anew_for_each_epoch_read_different_ones(store: str) -> None:
    class Reloading(models.Recorder):  # type: ignore[misc]
        def train_dataloader(self) -> ZarrDataLoader:
            return make_loader(store, 0)

    module = Reloading()
    lightning.Trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1, **QUIET).fit(module)
    assert [samples_of(batches) for batches in module.epochs.values()] == [list(range(N))] * 3
    assert len({str(batches) for batches in module.epochs.values()}) == 3


def test_a_second_fit_goes_on_with_new_orders(store: str) -> None:
    loader, modules = make_loader(store, 0), (models.Recorder(), models.Recorder())
    for module in modules:
        lightning.Trainer(max_epochs=2, **QUIET).fit(module, loader)
    assert len({str(batches) for module in modules for batches in module.epochs.values()}) == 4


def test_fabric_counts_from_zero_after_resuming_and_does_no_harm(store: str) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)

    def batches_of(feed: Iterator[Any], count: int | None = None) -> list[list[int]]:
        return [index.tolist() for _, index in itertools.islice(feed, count)]

    loader = make_loader(store, 0)
    wrapped = fabric.setup_dataloaders(loader)
    whole = [batches_of(iter(wrapped)) for _ in range(3)]
    assert len({str(epoch) for epoch in whole}) == 3
    loader = make_loader(store, 0)
    wrapped = fabric.setup_dataloaders(loader)
    assert batches_of(iter(wrapped)) == whole[0]
    assert batches_of(iter(wrapped), 4) == whole[1][:4]
    state = loader.state_dict()
    loader = make_loader(store, 0)
    loader.load_state_dict(state)
    wrapped = fabric.setup_dataloaders(loader)
    assert batches_of(iter(wrapped)) == whole[1][4:]
    assert batches_of(iter(wrapped)) == whole[2]


RANK_SCRIPT = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
sys.executable = {python!r}
from tests.integration import test_lightning as here

directory, checkpoint, num_workers = Path(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3])
# made in the script, before the ranks are connected
loader = here.make_loader(str(directory / "samples.zarr"), num_workers)
epochs = here.fit(
    loader, directory, checkpoint=checkpoint, max_epochs=2, devices=2, strategy="ddp", max_steps=int(sys.argv[4])
)
rank = os.environ.get("LOCAL_RANK", "0")
(directory / f"rank-{{rank}}.json").write_text(json.dumps(epochs))
"""


def fit_on_two_ranks(
    directory: Path, *, checkpoint: str = "", num_workers: int = 0, max_steps: int = -1
) -> Iterator[Any]:
    """Run the script as a user would; Lightning starts it again, by `sys.executable`, for rank 1.

    Return what each rank was given.
    """
    script = directory / "train.py"
    script.write_text(RANK_SCRIPT.format(root=str(ROOT), python=str(warm.executable(*warm.LIGHTNING))))
    command = [
        *warm.command(*warm.LIGHTNING),
        str(script),
        str(directory),
        checkpoint,
        str(num_workers),
        str(max_steps),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for rank in range(2):
        yield json.loads((directory / f"rank-{rank}.json").read_text())


@pytest.mark.parametrize("num_workers", [0, slow(2)])
def test_two_ranks_share_epochs_and_resume(tmp_path: Path, num_workers: int) -> None:
    data = np.repeat(np.arange(N), 3).reshape(N, 3)
    zarr.create_array(str(tmp_path / "samples.zarr"), data=data, chunks=(4, 3))
    steps = -(-(N // 2) // BATCH_SIZE)
    first = list(fit_on_two_ranks(tmp_path, num_workers=num_workers, max_steps=steps + 5))
    assert [len(batches) for batches in first[0].values()] == [steps, 5]
    assert len(set(samples_of(first[0]["0"] + first[1]["0"]))) == N - 1, "one sample is left out to stay even"
    saved_at = (steps + 5) // 5 * 5
    checkpoint = str(tmp_path / f"step={saved_at}.ckpt")
    resumed = list(fit_on_two_ranks(tmp_path, checkpoint=checkpoint, num_workers=num_workers))
    together = [
        index
        for before, after in zip(first, resumed, strict=True)
        for index in samples_of(before["1"][: saved_at - steps] + after["1"])
    ]
    assert len(together) == len(set(together)) == N - 1
