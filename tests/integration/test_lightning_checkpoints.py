"""Lightning's Trainer with `ZarrfeedCheckpointIO`: saves to S3, removes all but the best, resumes from a URL."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from obstore.fsspec import register

from tests.support.later import Later
from tests.support.real_servers import Endpoint, NotHereError, serving_s3
from zarrfeed import ZarrDataLoader, ZarrIterableDataset, checkpoint
from zarrfeed.base.errors import ConfigError, CorruptCheckpointError, StoreReadError, StoreWriteError
from zarrfeed.storage.checkpoint.checkpoint_folder import open_folder

lightning: Any = Later("lightning")
models: Any = Later("tests.support.lightning_models")
compat: Any = Later("zarrfeed.compat.lightning")

N, BATCH_SIZE = 60, 6

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Lightning's and torch's, of each other
]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Serve S3 where the environment says, as a user would have it: Lightning's own requests take no options."""
    try:
        with serving_s3(tmp_path_factory.mktemp("empty")) as endpoint, pytest.MonkeyPatch.context() as patch:
            options = endpoint.options
            for name, value in {
                "AWS_ACCESS_KEY_ID": options["access_key_id"],
                "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
                "AWS_REGION": options["region"],
                "AWS_ENDPOINT_URL": options["endpoint"],
                "AWS_ALLOW_HTTP": "true",
                "AWS_EC2_METADATA_DISABLED": "true",
            }.items():
                patch.setenv(name, value)
            patch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # it comes back
            register("s3")
            yield endpoint
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("lightning") / "samples.zarr")
    zarr.create_array(path, data=np.repeat(np.arange(N, dtype=np.float32), 3).reshape(N, 3), chunks=(4, 3))
    return path


def make_loader(store: str) -> ZarrDataLoader:
    dataset = ZarrIterableDataset(store, batch_size=BATCH_SIZE, shuffle=True, seed=3, return_index=True, num_threads=1)
    return ZarrDataLoader(dataset)


def fit(store: str, directory: str, plugin: Any, *, resume: str | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = models.Line(N)
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        directory,
        filename="{step}",
        every_n_train_steps=3,
        save_top_k=2,
        monitor="progress",
        mode="max",
        save_last=True,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        plugins=[plugin],
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(model, make_loader(store), ckpt_path=resume)
    return model


def files_of(url: str, **options: Any) -> list[str]:
    return [entry.name for entry in open_folder(url, **options).listing().entries]


def test_a_run_is_saved_to_s3_and_goes_on_from_there(s3: Endpoint, store: str) -> None:
    whole = fit(store, f"{s3.url}/whole", compat.ZarrfeedCheckpointIO(), max_epochs=2)
    assert files_of(f"{s3.url}/whole") == ["last.ckpt", "step=15.ckpt", "step=18.ckpt"], "the others were removed"
    first = fit(store, f"{s3.url}/run", compat.ZarrfeedCheckpointIO(), max_steps=14, max_epochs=2)
    assert files_of(f"{s3.url}/run") == ["last.ckpt", "step=12.ckpt", "step=9.ckpt"]
    saved = f"{s3.url}/run/step=12.ckpt"
    second = fit(store, f"{s3.url}/run", compat.ZarrfeedCheckpointIO(), resume=saved, max_epochs=2)
    assert first.seen[:12] + second.seen == whole.seen
    for name, value in whole.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), "weights, too"
    with checkpoint.reader(f"{s3.url}/run/last.ckpt") as file:
        loaded: Any = torch.load(io.BytesIO(file.read()), weights_only=False)
    assert loaded["global_step"] == 18


def test_asynchronous_saves_go_through_it(s3: Endpoint, store: str) -> None:
    saves = lightning.pytorch.plugins.io.AsyncCheckpointIO(compat.ZarrfeedCheckpointIO())
    fit(store, f"{s3.url}/async", saves, max_epochs=1)
    assert "step=9.ckpt" in files_of(f"{s3.url}/async")


def test_a_local_run_is_saved_whole(store: str, tmp_path: Path) -> None:
    fit(store, str(tmp_path), compat.ZarrfeedCheckpointIO(), max_epochs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.ckpt", "step=6.ckpt", "step=9.ckpt"]
    (tmp_path / "step=9.ckpt").write_bytes((tmp_path / "step=9.ckpt").read_bytes()[:-100])
    with pytest.raises(CorruptCheckpointError):
        fit(store, str(tmp_path), compat.ZarrfeedCheckpointIO(), resume=str(tmp_path / "step=9.ckpt"), max_epochs=2)


def test_saving_loading_and_removing(tmp_path: Path) -> None:
    plugin, path = compat.ZarrfeedCheckpointIO(), tmp_path / "a" / "b.ckpt"
    plugin.save_checkpoint({"step": 1}, path)
    plugin.save_checkpoint({"step": 2}, path)
    assert plugin.load_checkpoint(path) == {"step": 2}
    assert plugin.load_checkpoint(str(path), map_location="cpu", weights_only=True) == {"step": 2}
    plugin.remove_checkpoint(path)
    plugin.remove_checkpoint(str(path))
    assert list(path.parent.iterdir()) == []
    with pytest.raises(StoreReadError, match="no checkpoint is there"):
        plugin.load_checkpoint(path)


def test_a_checkpoint_of_another_plugin_is_loaded_on_request(tmp_path: Path) -> None:
    torch.save({"step": 3}, tmp_path / "plain.ckpt")
    with pytest.raises(CorruptCheckpointError, match="allow_plain=True"):
        compat.ZarrfeedCheckpointIO().load_checkpoint(tmp_path / "plain.ckpt")
    assert compat.ZarrfeedCheckpointIO(allow_plain=True).load_checkpoint(tmp_path / "plain.ckpt") == {"step": 3}


def test_a_save_that_fails_says_why_and_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    plugin, path = compat.ZarrfeedCheckpointIO(), tmp_path / "a.ckpt"
    plugin.save_checkpoint({"step": 1}, path)
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_: Any) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "write", fail)
        with pytest.raises(StoreWriteError, match="No space left"):
            plugin.save_checkpoint({"step": 2}, path)
    assert plugin.load_checkpoint(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"retries": -1}, "retries = -1"),
        ({"timeout": 0}, "timeout = 0"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"memory_budget": "much"}, "memory_budget"),
        ({"allow_plain": "yes"}, "allow_plain = 'yes'"),
        ({"storage_options": "key"}, "storage_options: got a str"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        compat.ZarrfeedCheckpointIO(**arguments)


def test_options_of_a_single_save(tmp_path: Path) -> None:
    plugin = compat.ZarrfeedCheckpointIO()
    with pytest.raises(ConfigError, match="storage_options: got a int"):
        plugin.save_checkpoint({}, tmp_path / "a.ckpt", storage_options=3)
    with pytest.raises(ConfigError, match="regoin"):
        plugin.save_checkpoint({}, "s3://bucket/a.ckpt", storage_options={"regoin": "x"})
