"""The interface of dataflux-pytorch (gcs-torch-dataflux 1.x), Google's connector of Cloud Storage and PyTorch.

    from zarrfeed.compat.dataflux import dataflux_mapstyle_dataset  # was: from dataflux_pytorch import ...

The modules, classes, arguments and defaults are the same; docs/compat.md says what differs. Nothing is written to the
bucket of a dataset: there are no composite objects.
"""

from zarrfeed.compat.dataflux import dataflux_checkpoint, dataflux_iterable_dataset, dataflux_mapstyle_dataset
from zarrfeed.compat.dataflux.dataflux_checkpoint import DatafluxCheckpoint
from zarrfeed.compat.dataflux.dataflux_iterable_dataset import DataFluxIterableDataset
from zarrfeed.compat.dataflux.dataflux_mapstyle_dataset import Config, DataFluxMapStyleDataset

__all__ = [
    "Config",
    "DataFluxIterableDataset",
    "DataFluxMapStyleDataset",
    "DatafluxCheckpoint",
    "dataflux_checkpoint",
    "dataflux_iterable_dataset",
    "dataflux_mapstyle_dataset",
]
