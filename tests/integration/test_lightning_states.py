"""Lightning's Trainer makes loaders early, anew, or for the same batches: no sample is trained on twice unsaid."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.test_lightning import QUIET, STEPS, N, lightning, make_loader, models, samples_of, store
from tests.support.examples import slow
from zarrfeed import ConfigError, ZarrDataLoader

__all__ = ["store"]  # a fixture

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # Lightning's and torch's, of each other
]
TWICE = "trained on a second time"


def fit(
    folder: Path, loaders: Any, module: Any = None, *, checkpoint: Path | None = None, **settings: Any
) -> tuple[dict[int, list[list[int]]], list[str]]:
    """Train with checkpoints after every fifth batch; return the batches of each epoch, and our warnings."""
    module = module or models.Scheduled()
    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    options = {name: value for name, value in QUIET.items() if name != "enable_checkpointing"}
    trainer = lightning.Trainer(default_root_dir=folder, callbacks=[saves], **{"max_epochs": 2, **options, **settings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, loaders, ckpt_path=checkpoint)
    return module.epochs, [str(one.message) for one in caught if TWICE in str(one.message)]


@pytest.mark.parametrize(
    ("kind", "module", "saved_at"),
    [
        ("workers 0", "Scheduled", STEPS + 4),
        slow("workers 0", "Scheduled", 5),
        ("workers 2", "Scheduled", 5),
        slow("workers 2", "Scheduled", STEPS + 4),
        slow("data module", "Scheduled", STEPS + 4),
        ("data module", "Scheduled", 5),
        ("two loaders", "OfBoth", STEPS + 4),
        slow("two loaders", "OfBoth", 5),
    ],
)
def test_a_loader_that_is_made_before_the_checkpoint_is_read_gets_its_state(
    store: str, tmp_path: Path, kind: str, module: str, saved_at: int
) -> None:
    make = getattr(models, module)

    def loaders() -> Any:
        if kind == "data module":
            return models.InModule(lambda: make_loader(store, 0))
        if kind == "two loaders":
            return {"first": make_loader(store, 0), "second": make_loader(store, 0)}
        return make_loader(store, int(kind[-1]))

    whole, _ = fit(tmp_path, loaders(), make())
    epoch, step = divmod(saved_at, STEPS)
    rest, said = fit(tmp_path, loaders(), make(), checkpoint=tmp_path / f"step={saved_at}.ckpt")
    assert not said
    assert list(rest) == list(range(epoch, 2))
    assert samples_of(whole[epoch][:step] + rest[epoch]) == list(range(N))
    for later in range(epoch + 1, 2):
        assert samples_of(rest[later]) == list(range(N))
    if "workers" not in kind or kind[-1] == "0":
        assert [rest[later] for later in rest] == [whole[epoch][step:], *(whole[e] for e in range(epoch + 1, 2))]
    again = saved_at + 5  # a checkpoint of the resumed run
    rest, _ = fit(tmp_path, loaders(), make(), checkpoint=tmp_path / f"step={again}.ckpt")
    epoch, step = divmod(again, STEPS)
    assert samples_of(whole[epoch][:step] + rest[epoch]) == list(range(N))


def test_a_checkpoint_without_a_state_of_the_loader_is_said_to_repeat_batches(store: str, tmp_path: Path) -> None:
    fit(tmp_path, make_loader(store, 0), max_steps=10)
    checkpoint = torch.load(tmp_path / "step=10.ckpt", weights_only=False)
    states = checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader")
    torch.save(checkpoint, tmp_path / "without.ckpt")
    for module in (models.Recorder(), models.Scheduled()):
        _, said = fit(tmp_path, make_loader(store, 0), module, checkpoint=tmp_path / "without.ckpt", max_epochs=1)
        (text,) = said
        assert "epoch 0 behind its first 10 batches" in text
        loader = make_loader(store, 0)
        loader.load_state_dict(states[0])  # as the message says
        rest, said = fit(tmp_path, loader, type(module)(), checkpoint=tmp_path / "without.ckpt", max_epochs=1)
        assert not said
        assert len(rest[0]) == STEPS - 10
    _, said = fit(tmp_path, make_loader(store, 0), models.Recorder(), max_epochs=1)
    assert not said, "nothing is resumed"


@pytest.mark.parametrize("num_workers", [slow(0), 2])
def test_overfit_batches_reads_the_same_batches_in_every_epoch(store: str, num_workers: int) -> None:
    first = [batch[1].tolist() for batch in make_loader(store, num_workers)][:3]
    for batches in (3, 3 / STEPS + 1e-6):
        module = models.Overfitting()
        trainer = lightning.Trainer(max_epochs=3, overfit_batches=batches, num_sanity_val_steps=0, **QUIET)
        trainer.fit(module, make_loader(store, num_workers), make_loader(store, 0))
        assert module.epochs == dict.fromkeys(range(3), first)
        assert module.validated[:3] == module.validated[3:6] == module.validated[6:]
        assert len(module.validated) == 9


@pytest.mark.parametrize("num_workers", [0, 2])
def test_predictions_are_of_every_sample_once(store: str, num_workers: int) -> None:
    """Lightning makes the loader anew to predict."""
    loader = ZarrDataLoader(
        make_loader(store, 0).dataset,  # type: ignore[arg-type]
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    predicted: Any = lightning.Trainer(**QUIET).predict(models.Overfitting(), loader)
    assert np.array_equal(np.sort(np.concatenate(predicted)), np.arange(N))


def test_a_sampler_is_refused(store: str) -> None:
    with pytest.raises(ConfigError, match="must be None, as the dataset's order decides"):
        ZarrDataLoader(make_loader(store, 0).dataset, sampler=[1, 2])  # type: ignore[arg-type]
