"""Scripts written for dataflux-pytorch run with their import changed, against servers that stand in for Google's.

The scripts do what the README and the notebook of dataflux-pytorch show. All servers are on 127.0.0.1.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from benchmarks.harness.object_server import ObjectServer
from tests.support import warm
from tests.support.real_servers import BUCKET, Endpoint, NotHereError, isolate, serving_gcs

N = 12
_IMPORT = """
import io, sys
import numpy
import torch
from PIL import Image
from zarrfeed.compat.dataflux import dataflux_checkpoint, dataflux_iterable_dataset, dataflux_mapstyle_dataset

PROJECT, BUCKET, PREFIX = "project", sys.argv[1], "simple-demo"

def to_array(content):
    return numpy.asarray(Image.open(io.BytesIO(content)))

def to_tensor(content):
    return torch.from_numpy(to_array(content).copy())
"""

RAW = """
config = dataflux_mapstyle_dataset.Config(prefix=PREFIX)
dataset = dataflux_mapstyle_dataset.DataFluxMapStyleDataset(
    project_name=PROJECT, bucket_name=BUCKET, config=config
)
name, size = dataset.objects[0][0], dataset.objects[0][1]
print(len(dataset), len(dataset.objects), name, len(dataset[0]) == size)
print(sum(len(each) for each in dataset) == sum(size for _, size in dataset.objects))
stream = dataflux_iterable_dataset.DataFluxIterableDataset(
    project_name=PROJECT, bucket_name=BUCKET, config=dataflux_iterable_dataset.Config(prefix=PREFIX)
)
print([bytes(a) == b for a, b in zip(stream, dataset)] == [True] * len(dataset))
"""

FORMATTED = """
for module, name in ((dataflux_mapstyle_dataset, "MapStyle"), (dataflux_iterable_dataset, "Iterable")):
    dataset = getattr(module, f"DataFlux{name}Dataset")(
        project_name=PROJECT,
        bucket_name=BUCKET,
        config=dataflux_mapstyle_dataset.Config(prefix=PREFIX, sort_listing_results=True, max_composite_object_size=0),
        data_format_fn=to_array,
    )
    print([int(each[0, 0]) for each in dataset])
"""

LOADERS = """
for module, name in ((dataflux_mapstyle_dataset, "MapStyle"), (dataflux_iterable_dataset, "Iterable")):
    dataset = getattr(module, f"DataFlux{name}Dataset")(
        project_name=PROJECT,
        bucket_name=BUCKET,
        config=dataflux_mapstyle_dataset.Config(prefix=PREFIX, sort_listing_results=True),
        data_format_fn=to_tensor,
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=5, shuffle=name == "MapStyle")
    batches = list(loader)
    print([tuple(batch.shape) for batch in batches], sorted(int(one[0, 0]) for batch in batches for one in batch))
"""

CHECKPOINT = """
ckpt = dataflux_checkpoint.DatafluxCheckpoint(project_name=PROJECT, bucket_name=BUCKET)
CKPT_PATH = "checkpoints/epoch0.ckpt"
model = torch.nn.Linear(300, 400)
with ckpt.writer(CKPT_PATH) as writer:
    torch.save(model.state_dict(), writer)
with ckpt.reader(CKPT_PATH) as reader:
    read_state_dict = torch.load(reader)
other = torch.nn.Linear(300, 400)
other.load_state_dict(read_state_dict)
print(torch.equal(model.weight, other.weight))
"""


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("images")
    (folder / "simple-demo-dataset").mkdir()
    for i in range(N):
        Image.fromarray(np.full((4, 6), i, np.uint8)).save(folder / "simple-demo-dataset" / f"{i:03d}.png")
    (folder / "other").write_bytes(b"no image")
    try:
        with serving_gcs(folder) as endpoint:
            yield endpoint
    except NotHereError as error:
        pytest.skip(str(error))


def run(script: str, bucket: str, address: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a script in a process that is told of the server as Google's own tools are; return the lines it prints."""
    isolate(monkeypatch)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    command = [*warm.command(), "-W", "error", "-c", _IMPORT + script, bucket]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_raw_objects(gcs: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(RAW, BUCKET, gcs.options["endpoint_url"], monkeypatch)
    assert lines == [f"{N} {N} simple-demo-dataset/000.png True", "True", "True"]


def test_formatted_objects_alone_and_in_loaders(gcs: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(FORMATTED + LOADERS, BUCKET, gcs.options["endpoint_url"], monkeypatch)
    numbers = list(range(N))
    assert lines == [str(numbers)] * 2 + [f"[(5, 4, 6), (5, 4, 6), (2, 4, 6)] {numbers}"] * 2


def test_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectServer() as server:  # fake-gcs-server does not know how obstore uploads
        assert run(CHECKPOINT, "bucket", f"http://127.0.0.1:{server.port}", monkeypatch) == ["True"]
        assert "checkpoints/epoch0.ckpt" in server.keys()  # noqa: SIM118 (it is no dict)
