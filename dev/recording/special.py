"""Configurations of what few users need, each of a kind that random options would reach too seldom.

Each adds a whole program: the description, the dataset, and what else is looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from recording.program import Program, call


def compat_runs(p: Program) -> None:
    """Read runs of whole blocks, as the dataset that zarrdataset's takes the place of."""
    n, rows = p.number(10, 60), p.pick(3, 4, 7)
    array = p.let(f"make.array({p.name()!r}, ({n}, 2), ({rows}, 2))")
    p.add(f"data = zf.open({array})")
    chosen = p.pick(None, [0, 2], [1, -1])
    shuffles = p.chance(0.6)
    options = {
        "selected_chunk_indexes": chosen,
        "shuffle_chunks": shuffles,
        "chunks_shuffle_seed": p.number(1, 9) if shuffles else None,
        "shuffle_buffer": p.chance(0.5),
        "buffer_shuffle_seed": p.number(1, 9),
    }
    made = call("zarrdataset.ZarrIterableDataset", f"samples={array}, targets=None", **options)
    p.add(f"dataset = lambda: {made}")
    p.add(f"workers = {p.number(2, 4)}")
    p.add("stops = (1, 4)")


def weighted_patches(p: Program) -> None:
    """Draw patches by weights: of voxels, on a coarser grid, or as they were measured."""
    array = p.let(f"make.array({p.name()!r}, (12, 12), (5, 6), dtype='u1')")
    p.add(f"data = zf.open({array})")
    weights = p.pick(
        "np.arange(144).reshape(12, 12)", "np.eye(4)", f"zf.patch_weights({array})", "np.eye(12) > 0", "None"
    )
    if weights == "None":
        p.add("data = data.select([*range(1, 5), *range(6, 12)])")
    border = p.pick("drop", "pad", "wrap")
    kept = f"sampling='random', n={p.number(5, 30)}, border={border!r}, weights={weights}"
    p.add(f"data = data.patch({{0: 4, 1: 3}}, {kept})")
    seed = p.number(1, 9)
    p.add(f"dataset = lambda: zf.ZarrIterableDataset(data, batch_size=3, shuffle=True, seed={seed}, num_threads=1)")
    p.add("resumed = lambda rank=1: zf.ZarrIterableDataset(")
    p.add(
        "    data, batch_size=2, shuffle=True, seed=dataset().state_dict()['order']['seed'], rank=rank, world_size=2)"
    )
    p.add("stops = (2,)")


def damaged(p: Program) -> None:
    """Skip chunks that cannot be decoded, or refuse them."""
    n = p.number(12, 60)
    kind = p.pick("array", "array", "text", "images", "csr", "stores", "map")
    store = p.name()
    if kind == "text":
        p.add(f"make.damage(make.text({store!r}, {n}, 4), 'c/1')")
    elif kind == "images":
        p.add(f"make.damage(make.images({store!r}, 20, 4), '1')")
    elif kind == "csr":
        p.add(f"make.damage(make.csr({store!r}, {n}, 5), 'data/c/1')")
    else:
        p.add(f"make.damage(make.array({store!r}, ({n}, 3), (4, 3)), 'c/1/0')")
    source = f"make.folder / {store!r}"
    if kind == "stores":
        source = f"[{source}, make.array({p.name()!r}, (9, 3), (2, 3))]"
    p.add(f"data = zf.open({source}){'.decode(' + repr('image') + ')' if kind == 'images' else ''}")
    if kind == "map":
        p.add("dataset = lambda: zf.ZarrDataset(data, num_threads=1)")
        p.add("asked = [[0.0, 0.99], [0.4, 0.45], [0.9]]")
        return
    faults = p.pick("{'on_error': 'skip'}", "{'on_error': 'skip'}", "{'on_error': 'raise'}")
    shuffle = p.pick(True, False)
    p.add(
        "dataset = lambda: zf.ZarrIterableDataset("
        f"data, batch_size=4, shuffle={shuffle}, num_threads=1, faults={faults}, return_index=True)"
    )
    p.add("stops = (1,)")


def far(p: Program) -> None:
    """Read a store that Python asks for, with a node cache or without."""
    n = p.number(10, 50)
    array = f"make.array({p.name()!r}, ({n}, 4), ({p.pick(2, 5)}, 2), v={p.pick(2, 3)})"
    p.add(f"store = zarr.storage.ObjectStore(obstore.store.LocalStore({array}))")
    cache = p.pick("", ", cache=make.folder / 'cache', cache_limit='1MiB', cache_version='immutable'")
    p.add(f"data = zf.open(store{cache})")
    if p.chance(0.3):
        p.add(
            "dataset = lambda: zf.ZarrDataset(data, num_threads=1, cache=p.pick(0, 3000))".replace(
                "p.pick(0, 3000)", "0"
            )
        )
        p.add("asked = [[0.0, 0.99], [0.4, 0.45, 0.4], [0.9]]")
        return
    seed = p.number(1, 9)
    requests = p.pick("None", "{'coalesce_gap': 0}")
    p.add(
        f"dataset = lambda: zf.ZarrIterableDataset(data, batch_size=4, shuffle=True, seed={seed}, num_threads=1, "
        f"requests={requests})"
    )
    p.add("stops = (2,)")


def pickled(p: Program) -> None:
    """Read a dataset that was sent to another process."""
    n = p.number(10, 50)
    array = p.let(f"make.array({p.name()!r}, ({n}, 3), (4, 3))")
    source = p.pick(
        array, f"[{array}, np.arange(30).reshape(10, 3).astype('i4')]", f"{{'x': {array}, 'y': np.arange({n})}}"
    )
    p.add(f"data = zf.open({source}).select(slice(1, None, 2))")
    if p.chance(0.4):
        p.add("data = data.window((0, 1))")
    p.add("data = pickle.loads(pickle.dumps(data))")
    made = p.pick(
        "zf.ZarrIterableDataset(data, batch_size=3, shuffle=True, seed=4, num_threads=1)",
        "zf.ZarrDataset(data, num_threads=1)",
    )
    p.add(f"dataset = lambda: pickle.loads(pickle.dumps({made}))")
    p.add("asked = [[0.5, 0.1]]" if "ZarrDataset" in made else "stops = (1, 2)")


def prefetched(p: Program) -> None:
    """Hand batches to a device, which is the processor here; or read with other loaders."""
    n = p.number(20, 60)
    p.add(f"data = zf.open(make.array({p.name()!r}, ({n}, 3), (4, 3)), np.arange({n}))")
    size = p.number(2, 5)
    p.add(f"dataset = lambda: zf.ZarrIterableDataset(data, batch_size={size}, shuffle=True, seed=2, num_threads=1)")
    loader = p.pick("device.prefetch(zf.ZarrDataLoader(dataset), 'cpu')", "device.prefetch(dataset, 'cpu')")
    p.add(f"loader = lambda dataset: {loader}")
    p.add("stops = (1, 3)")


def labelled(p: Program) -> None:
    """Choose samples by labels of all kinds."""
    n = 40
    labels, wanted = p.pick(
        ("np.datetime64('2020-01-01') + np.arange(40)", "'2020-01'"),
        (
            "np.datetime64('2020-01-01T00') + np.arange(40) * np.timedelta64(6, 'h')",
            "slice('2020-01-03', '2020-01-05')",
        ),
        ("np.datetime64('2020-01-01') + np.arange(40)", "[np.datetime64('2020-01-02'), '2020-01-09']"),
        ("np.arange(40) * 0.5", "slice(2.0, 9.5)"),
        ("np.arange(40) // 4", "3"),
        ("np.array([f'day{i:02d}' for i in range(40)])", "['day03', 'day20']"),
        ("np.arange(40) * np.timedelta64(1, 'h')", "slice(np.timedelta64(3, 'h'), None)"),
        ("np.arange(40)[::-1]", "slice(30, 4)"),
        ("np.arange(40.0)", "[3.2, 7.9], method='nearest'"),
    )
    p.add(f"labels = {labels}")
    p.add(f"data = zf.open(make.array({p.name()!r}, ({n}, 3), (4, 3), dims=('t', 'x')), sample_dim='t')")
    value, _, method = wanted.partition(", method=")
    p.add(f"data = data.sel(t={value}, coords=labels{', method=' + method if method else ''})")
    if p.chance(0.5):
        p.add("data = data.isel(t=slice(1, None))")
    if "datetime" in labels and p.chance(0.6):
        p.add("data = data.time_features('day_of_week', 'month', 'hour', 'year_fraction', coords=labels)")
    p.add("dataset = lambda: zf.ZarrIterableDataset(data, batch_size=3, shuffle=True, num_threads=1)")
    p.add("stops = (1,)")


def measured(p: Program) -> None:
    """Normalise by statistics that were measured, saved and loaded."""
    n = p.number(16, 50)
    p.add(f"full = zf.open({{'x': make.array({p.name()!r}, ({n}, 3, 2), (4, 3, 2), dtype='f4')}}, np.arange({n}.0))")
    p.add("train, data = full.split((0.75, 0.25), by='contiguous')")
    axis = p.pick("None", "1", "{'x': 1}")
    p.add(f"found = zf.stats(train, axis={axis}, num_threads=1)")
    p.add("found.save(make.folder / 'stats.json')")
    sides = p.pick("samples", ["samples", "targets"])
    p.add(f"data = data.normalize(zf.Statistics.load(make.folder / 'stats.json'), sides={sides!r})")
    p.add("dataset = lambda: zf.ZarrIterableDataset(data, batch_size=3, num_threads=1, return_index=True)")
    p.add("results = lambda dataset: [found['x'], zf.audit(parts[-1] for parts in dataset)]")


def volumes(p: Program) -> None:
    """Concatenate patches of volumes that were described apart."""
    sampling = p.pick("tiles", "grid", "positions", "random")
    more = {"positions": ", positions=[[1, 1], [0, 4], [3, 2]]", "random": ", n=7", "tiles": "", "grid": ""}[sampling]
    parts = []
    for _ in range(2):
        shape = (p.number(8, 14), 9)
        array = f"zf.open(make.array({p.name()!r}, {shape}, (4, 5)))"
        parts.append(p.let(f"{array}.patch({{0: 4, 1: 3}}, sampling={sampling!r}{more})"))
    p.add(f"data = zf.concat([{', '.join(parts)}])")
    p.add("dataset = lambda: zf.ZarrIterableDataset(data, batch_size=3, shuffle=True, seed=3, num_threads=1)")
    p.add("stops = (2,)")


def callables(p: Program) -> None:
    """Give functions where the package takes them: transforms, ranks, decoders and filters."""
    if p.chance(0.5):
        p.add(f"data = objects.open(make.objects({p.name()!r}, 15), filter=lambda one: one.size > 8)")
        p.add("dataset = lambda: objects.ObjectIterableDataset(data, decode=len, batch_size=3, num_threads=1,")
        p.add("    transform=lambda found: torch.tensor(found) + 1)")
    else:
        p.add(f"data = zf.open(make.array({p.name()!r}, (30, 3), (4, 3)), np.arange(30))")
        p.add("dataset = lambda: zf.ZarrIterableDataset(data, batch_size=3, shuffle=True, num_threads=1,")
        p.add("    rank=lambda: (1, 2),")
        p.add("    transform=lambda samples, targets: (samples * 2, targets))")
    p.add("stops = (1,)")


SPECIAL: tuple[Callable[[Program], None], ...] = (
    *(compat_runs, weighted_patches, damaged, far, pickled, prefetched, labelled, measured, volumes, callables),
    *(damaged, labelled, compat_runs, damaged, weighted_patches, far),
)
