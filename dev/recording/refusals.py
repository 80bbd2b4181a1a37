"""Wrong arguments, and what is said about each: every argument of every public call with values that it cannot take.

Some of the values are right for some arguments. Then the outcome is that the call takes them, and a change that refuses
them is found as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zarrfeed as zf
from recording.canonical import without_addresses
from recording.record import TAKEN, shortened
from recording.stores import Maker
from zarrfeed import objects

WRONG = ("None", "True", "-1", "0", "2**70", "1.5", "'x'", "[]", "{}")

#: Stores of a case, and descriptions of them.
_SETUP = """
a = make.array('a', (20, 3), (4, 3))
b = make.array('b', (20,), (5,), dtype='f4')
sharded = make.array('sharded', (20,), (2,), shards=(6,))
g = make.group('g', {'x': {'shape': (20, 3), 'chunks': (4, 3)}, 'y': {'shape': (20,), 'chunks': (5,), 'dtype': 'f4'}})
volume = make.array('volume', (8, 9, 10), (4, 4, 4), dims=('z', 'y', 'x'))
text = make.text('text', 20, 4)
csr = make.csr('csr', 20, 5)
climate = make.dataset('climate', 20, 4)
image = make.pyramid('image', (8, 12, 12), 4)
folder = make.objects('folder', 6)
bools = make.array('bools', (20,), (5,), dtype='b1')
short = make.array('short', (7, 3), (4, 3))
data = zf.open(g)
windows = data.window((0, 1))
patches = zf.open(volume).patch({'z': 4, 'y': 4, 'x': 4}, sampling='grid')
mixed = zf.mix([a, a])
days = np.datetime64('2020-01-01') + np.arange(20)
"""


#: Call -> its arguments.
_KEYWORDS = {
    "zf.open(g": "sample_axis sample_dim variables multiscale decode_cf storage_options zarr_format retries timeout "
    "refresh complete window evict cache_limit cache_version cache_group targets",
    "zf.open(a": "sample_axis zarr_format targets variables",
    "zf.open(a, refresh='epoch'": "complete window evict multiscale",
    "data.window((0, 1)": "segment_ends rows pad mask",
    "data.window((0, 1), pad={'x': 0}": "mask rows",
    "data.split((0.5, 0.5)": "by seed gap",
    "windows.split((0.5, 0.5)": "by gap",
    "data.normalize((1.0, 2.0)": "axis stats sides",
    "zf.open(b, b).normalize((1.0, 2.0)": "axis sides",
    "data.stack(['x', 'y']": "name spatial_axes",
    "data.time_features('hour'": "coords",
    "zf.open(text).decode('image'": "field size mode",
    "zf.open(csr).dense(": "field",
    "zf.open(volume).patch({'z': 4, 'y': 4}": "context sampling border stride pad positions n weights flip rotate isel",
    "zf.open(volume).patch({'z': 4}, sampling='random'": "n border weights",
    "zf.open(volume).patch({'z': 4}, sampling='grid'": "stride border pad",
    "zf.mix([a, a]": "weights stop batching dtype",
    "zf.mix([a, a], [1, 2], batching='per_batch'": "stop",
    "zf.concat([a, a]": "dtype contiguous",
    "zf.join({'p': a, 'q': b}, 'time', coords={'p': days, 'q': days}": "how missing",
    "zf.join({'p': a, 'q': b}, coords={'p': days, 'q': days}": "on",
    "zf.join({'p': a, 'q': b}, 'time'": "coords",
    "zf.ZarrIterableDataset(data": "batch_size shuffle seed drop_last return_index rank world_size even affinity "
    "num_threads memory_budget pin_memory transform mixing faults requests targets",
    "zf.ZarrIterableDataset(data, shuffle=True, world_size=2": "rank",
    "zf.ZarrIterableDataset(mixed, batch_size=4": "shuffle affinity mixing",
    "zf.ZarrIterableDataset(patches, batch_size=4": "affinity mixing",
    "zf.ZarrDataset(data": "return_index num_threads cache faults targets",
    "zf.ZarrDataLoader(zf.ZarrIterableDataset(data, batch_size=4)": "num_workers pin_memory prefetch_factor sampler",
    "zf.LookAhead([[1]]": "batches",
    "zf.Mixing(": "lanes mix block",
    "zf.Faults(": "on_error missing retries timeout max_errors",
    "zf.Requests(": "coalesce_gap coalesce_limit",
    "zf.Appender('appended'": "chunk_rows shard_rows zarr_format disposable",
    "zf.stats(data": "axis sides num_threads memory_budget",
    "zf.patch_weights(volume": "shares cell num_threads memory_budget",
    "objects.open(folder": "keys prefix glob filter requests retries timeout",
    "objects.ObjectIterableDataset(folder": "return_index decode batch_size shuffle seed drop_last "
    "even affinity num_threads "
    "memory_budget faults",
    "objects.ObjectDataset(folder": "decode num_threads faults",
}
#: Calls of one argument without a name.
_POSITIONAL = (
    *("zf.open(VALUE)", "zf.open({'x': VALUE})", "zf.open([a, VALUE])", "zf.concat(VALUE)", "zf.mix(VALUE)"),
    *("zf.join(VALUE)", "zf.lead(VALUE, 3)", "zf.lead(0, VALUE)", "objects.open(VALUE)", "zf.ZarrDataset(VALUE)"),
    *("data.select(VALUE)", "data.sel(VALUE)", "data.isel(VALUE)", "data.blocks(VALUE)", "data.window(VALUE)"),
    *("zf.open(volume).patch(VALUE)", "windows.with_offsets(VALUE)", "data.split(VALUE)", "data.cast(VALUE)"),
    *("data.normalize(VALUE)", "data.static(VALUE)", "data.static(z=VALUE)", "data.stack(VALUE)", "data.decode(VALUE)"),
    *("data.time_features(VALUE)", "data.locate(VALUE)", "patches.locate(VALUE)", "mixed.source_of(VALUE)"),
    *("data.cast({'x': VALUE})", "data.cast({VALUE!r}: 'f4'})".replace("{VALUE!r}", "{VALUE"), "data.isel(time=VALUE)"),
    *("zf.open(climate, sample_dim='time').sel(time=VALUE)", "zf.Statistics.load(VALUE)", "zf.audit(VALUE)"),
    *(
        "iterable.set_epoch(VALUE)",
        "iterable.load_state_dict(VALUE)",
        "iterable.sample_order(VALUE)",
        "iterable[VALUE]",
    ),
    *("iterable.set_offsets(VALUE)", "of_windows.set_offsets(VALUE)", "by_index[VALUE]", "iterable.stitch(VALUE, {})"),
    "iterable.load_state_dict(iterable.state_dict() | {'epoch': VALUE})",
    "iterable.load_state_dict(iterable.state_dict() | {'version': VALUE})",
    "objects.open(folder).select(VALUE)",
)
#: Calls that are wrong in a way of their own.
_OTHERS = """
zf.open(a, short)
zf.open({'x': a, 'y': short})
zf.open([a, b])
zf.open('nowhere')
zf.open('s3:/bucket')
zf.open('ftp://host/x')
zf.open(str(make.folder / '*.none'))
zf.open(folder)
zf.open(g, variables=['x', 'z'])
zf.open(g, variables=['x', 'x'])
zf.open(a, sample_axis=2)
zf.open(a, sample_dim='time')
zf.open(image, multiscale=['0', '7'])
zf.open(np.zeros(3, 'O'))
zf.open(np.zeros((3, 4), 'f4')[:, ::2])
zf.open(np.zeros(()))
zf.open([a, a], refresh='epoch')
zf.open(np.zeros(4), refresh='epoch')
zf.open(a, zarr_format=2)
zf.open(a, bach_size=3)
data.select(slice(30, 40))
data.select([1, 1])
data.select([99])
data.select(np.zeros(20, bool))
data.select(np.zeros(19, bool))
data.select([0.5])
data.blocks([9])
data.blocks([0], of='shard')
data.window((0, 30))
data.window({'z': (0, 1)})
data.window({'x': (0, zf.lead(1, 2)), 'y': (0, zf.lead(1, 3))})
data.window((0, 1), segment_ends=[5, 5, 20])
data.window((0, 1), segment_ends=[5, 30])
data.window((0, 1), pad='nan')
data.window((0, 1), pad=300.5)
windows.window((0, 1))
windows.select([0])
data.window((0, 1), mask=True)
data.blocks([0]).window((0, 1))
zf.open(text).window((0, 1))
zf.open(csr).window((0, 1))
data.select([0, 5, 9]).window((0, 1))
data.with_offsets((0, 1))
windows.split((0.5, 0.5))[0].with_offsets((0, 2))
data.split((0.5, 0.6))
data.split((30, 20))
data.split((0.5,) * 9)
data.split((0.99, 0.01))
windows.split((0.5, 0.5), by='sample')
data.split((0.5, 0.5), by='shard')
data.cast('int8')
data.cast('complex64')
data.cast({'q': 'float32'})
zf.open(text).cast('float32')
zf.open(bools).normalize((1, 2))
data.normalize((1, 0))
data.normalize(([1, 2], [3, 4]), axis=1)
data.normalize({'x': (1, 2)}).normalize({'x': (1, 2)})
data.normalize({'q': (1, 2)})
data.normalize((float('nan'), 1))
data.stack(['x'])
data.stack(['x', 'q'])
zf.open(climate, sample_dim='time').stack(['t2m', 'time'])
zf.open({'p': a, 'q': b}).stack(['p', 'q'], spatial_axes=1)
data.static('q')
data.static(x=1.0)
data.time_features('hour')
data.time_features('minute', coords=days)
data.decode('image')
data.dense()
zf.open(climate, sample_dim='time').sel(time='1999')
zf.open(climate, sample_dim='time').sel(lat=3)
data.sel(time='2015')
data.sel(time='2015', coords=days[:5])
zf.open(volume).patch({'z': 40}, border='drop')
zf.open(volume).patch({'w': 4})
zf.open(volume).patch({'z': 4}, stride={'z': 5}, sampling='grid')
zf.open(volume).patch({'z': 4}, positions=[[1]])
zf.open(volume).patch({'z': 4}, sampling='positions')
zf.open(volume).patch({'z': 4}, sampling='positions', positions=[[30, 0, 0]])
zf.open(volume).patch({'z': 4, 'y': 5}, rotate=['z', 'y'])
zf.open(volume).patch({'z': 4}, flip=['x'])
zf.open(volume).patch({'z': 4}, sampling='random')
zf.open(volume).patch({'z': 4}, sampling='random', n=3, weights=np.zeros((8, 9, 10)))
zf.open(volume).patch({'z': 4}, sampling='random', n=3, weights=np.ones((3, 3)))
zf.open(volume).patch({'z': 4}, isel={'y': 99})
zf.open(volume).patch({'z': 4}, pad=300.5)
zf.open(volume).patch({'z': 4}, pad='nan')
zf.open(text).patch({0: 4})
zf.open(volume).patch({'z': 4}, sampling='positions', positions=[[1, 2], [3]])
zf.open(volume).patch({'z': 4}, context={'x': {'q': 2}})
zf.open(volume).patch({'z': 4}, context={'x': {'z': 2}})
zf.open(image, multiscale=['0', '1']).patch({'z': 4, 'y': 4}, context={'1': {'x': 2}})
zf.open(image, multiscale=['0', '1']).patch({'z': 4, 'y': 4}, context={'1': {'y': 1}})
patches.patch({'z': 2})
patches.window((0, 1))
patches.split((0.5, 0.5))
patches.select([0])
zf.mix([a])
zf.mix([a, b])
zf.mix([a, a], [1, 2, 3])
zf.mix([a, a], [0, 0])
zf.mix([a, a], [1, -1])
zf.mix([a, a], {5: [1, 2]})
zf.mix([mixed, a])
zf.mix([patches, patches])
zf.concat([a, b])
zf.concat([a, zf.open(a).cast('float32')])
zf.concat([mixed, a])
zf.concat([zf.open(a, refresh='epoch'), a])
zf.concat([data.stack(['x', 'y'], spatial_axes=0), data])
zf.concat([zf.join({'p': a, 'q': b}, 'time', coords={'p': days, 'q': days}), a])
zf.concat([patches, a])
zf.mix([zf.open(a, refresh='epoch'), a])
zf.open(climate, sample_dim='time').isel(time=3)
zf.open(climate, sample_dim='time').isel(time=[3, 5])
zf.open(climate, sample_dim='time').isel(lat=3)
zf.join({'p': a, 'q': b}, 'time')
zf.join({'p': a, 'q': b}, 'time', coords={'p': days, 'q': days[:3]})
zf.join({'p': a, 'q': b}, 'time', coords={'p': days, 'q': days[::-1]})
zf.join({'p': a, 'q': b}, 'time', coords={'p': days, 'q': days + np.timedelta64(900, 'D')})
zf.join({'p': a, 'q': b}, 'time', how='outer', missing='nan', coords={'p': days, 'q': days + np.timedelta64(3, 'D')})
zf.join({'p': windows, 'q': b}, 'time', coords={'p': days, 'q': days})
zf.ZarrIterableDataset(data, b)
zf.ZarrIterableDataset(data, select=[1])
zf.ZarrIterableDataset(data, lanes=3)
zf.ZarrIterableDataset(data, batchsize=3)
zf.ZarrIterableDataset(data, rank=3, world_size=2)
zf.ZarrIterableDataset(data, rank=0)
zf.ZarrIterableDataset(data, rank=lambda: 3)
zf.ZarrIterableDataset(data, batch_size=30, drop_last=True)
zf.ZarrIterableDataset(data, batch_size=8, memory_budget=1)
zf.ZarrIterableDataset(data, batch_size=8, memory_budget='8KiB')
zf.ZarrIterableDataset(data, mixing={'block': 'shard'})
zf.ZarrIterableDataset(data, mixing={'lane': 1})
zf.ZarrIterableDataset(data, faults={'on_eror': 'skip'})
zf.ZarrIterableDataset(data, affinity='node')
zf.ZarrIterableDataset(data, transform=lambda: 0)
zf.ZarrIterableDataset(mixed)
zf.ZarrIterableDataset(zf.mix([a, a], batching='per_batch'))
zf.ZarrDataset(mixed)
zf.ZarrDataset(zf.open(volume).patch({'z': 4}))
zf.ZarrDataset(data, faults={'on_error': 'skip'})
zf.ZarrDataset(data, batch_size=3)
by_index[[0, 99]]
by_index[[0.5]]
iterable.refresh()
iterable.stitch([], {})
zf.ZarrDataLoader(by_index)
zf.ZarrDataLoader(zf.ZarrIterableDataset(data))
iterable.load_state_dict(other.state_dict())
iterable.load_state_dict(of_windows.state_dict())
iterable.load_state_dict(seeded.state_dict())
len(torch.utils.data.random_split(iterable, [10, 10]))
next(iter(torch.utils.data.DataLoader(iterable, batch_size=4)))
objects.open(folder, glob='*.none')
objects.open(folder, keys=['nothing'])
objects.open(folder, keys=[])
objects.ObjectIterableDataset(folder, decode='zarr-chunk')
objects.ObjectIterableDataset(folder, decode='jpeg')
next(iter(objects.ObjectIterableDataset(folder, decode='npy', batch_size=2)))
next(iter(objects.ObjectIterableDataset(folder, decode='image', batch_size=2)))
zf.Appender(a)
zf.split
zf.from_dask
zf.nothing
"""


def calls() -> list[str]:
    """Return all calls, with VALUE in the place of a wrong value, or wrong in a way of their own."""
    made = _OTHERS.strip().splitlines()
    for call, names in _KEYWORDS.items():
        comma = "" if call.endswith("(") else ", "
        made += [f"{call}{comma}{name}=VALUE)" for name in names.split()]
    return [*made, *_POSITIONAL]


def expressions(call: str) -> list[str]:
    """Return a call with each of the wrong values; one that has no place for them as it is."""
    return [call.replace("VALUE", value) for value in WRONG] if "VALUE" in call else [call]


def outcomes_of(some: Sequence[str], folder: Path) -> dict[str, tuple[str, ...]]:
    """Try some calls in an empty folder; return for each wrong value "class: text", or "taken"."""
    space: dict[str, Any] = {"zf": zf, "objects": objects, "np": np, "torch": torch, "make": Maker(folder)}
    outcomes: dict[str, tuple[str, ...]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(_SETUP, space)
        for call in some:
            said = (without_addresses(_outcome(expression, space), folder) for expression in expressions(call))
            outcomes[call] = tuple(map(shortened, said))
    return outcomes


def _outcome(expression: str, space: dict[str, Any]) -> str:
    fresh = {
        "iterable": "zf.ZarrIterableDataset(data, batch_size=4)",
        "of_windows": "zf.ZarrIterableDataset(windows, batch_size=4, return_index=True)",
        "other": "zf.ZarrIterableDataset(a, batch_size=4)",
        "seeded": "zf.ZarrIterableDataset(data, batch_size=4, shuffle=True, seed=9)",
        "by_index": "zf.ZarrDataset(data)",
    }
    try:
        for name, made in fresh.items():
            if name in expression:
                space[name] = eval(made, space)
        eval(expression, space)
    except Exception as error:  # noqa: BLE001 - whatever a wrong argument raises is its outcome
        return f"{type(error).__name__}: {error}"
    return TAKEN
