"""Random descriptions of samples: one function for each kind of what `zarrfeed.open`, `join`, `mix` and others take.

Each adds lines to a program, of which the last one sets `data`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from recording.program import Described, Program, call
from recording.stores import CODECS

_DTYPES = ("i4", "i4", "i8", "f4", "f8", "u1", "i2", "f2", "u4", "b1", ">i4", ">f4")
_FLOATS = ("float32", "float64", "bfloat16", "float16")
_MOST_CHUNKS = 40


def stored(
    p: Program,
    n: int,
    *,
    sample: tuple[int, ...] | None = None,
    dtype: str | None = None,
    axis: int = 0,
    v: Literal[2, 3] | None = None,
    dims: tuple[str, ...] | None = None,
    rows: int | None = None,
    local: bool = False,
    name: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the call that writes an array of `n` samples, and its options."""
    sample = p.pick((), (3,), (4,), (2, 3), (5, 4), (2, 3, 4)) if sample is None else sample
    shape = list(sample)
    at = min(axis, len(shape))
    shape.insert(at, n)
    rows = p.pick(1, 2, 3, 4, 5, 7, 8, 16, n, n + 3) if rows is None else rows
    rows = min(max(rows, -(-n // 24)), n + 3)
    chunks = [p.pick(length, length, max(1, length // 2), length + 1) for length in shape]
    chunks[at] = rows
    while math.prod(-(-s // c) for s, c in zip(shape, chunks, strict=True)) > _MOST_CHUNKS:
        worst = max((i for i in range(len(shape)) if i != at), key=lambda i: -(-shape[i] // chunks[i]), default=at)
        worst = worst if -(-shape[worst] // chunks[worst]) > 1 else at
        chunks[worst] *= 2
    v = p.pick(3, 3, 2) if v is None else v
    dtype = p.pick(*_DTYPES) if dtype is None else dtype
    options: dict[str, Any] = {"dtype": dtype, "codec": p.pick(*CODECS), "v": v}
    if v == 3 and p.chance(0.3):
        options["shards"] = tuple(c * p.number(1, 3) for c in chunks)
        options["index"] = p.pick("start", "end")
    if v == 3 and len(shape) > 1 and p.chance(0.15):
        options["transpose"] = True
    if v == 2:
        options["order"] = p.pick("C", "C", "F")
        options["delta"] = True if dtype in ("i4", "i8") and p.chance(0.15) else None
    if p.chance(0.2):
        options["separator"] = p.pick(".", "/")
    if p.chance(0.15):
        options["holes"] = (p.number(0, 2), p.number(2, 4))
        options["fill"] = True if dtype == "b1" else p.pick(0, 9)
    if axis:
        options["axis"] = at
    if dims is not None:
        options["dims"] = dims
    if not local and p.chance(0.2):
        options["kept"] = p.pick("memory", "zip")
    return call("make.array", repr(name or p.name()), tuple(shape), tuple(chunks), **options), options


def count(p: Program, most: int = 160) -> int:
    """Return how many samples a store has."""
    return p.pick(p.number(2, 12), p.number(13, 60), p.number(13, 60), p.number(61, most))


def opened(p: Program) -> Described:
    """Open arrays, a mapping or a group, with targets or not."""
    n = count(p)
    axis = p.pick(0, 0, 0, 0, 0, 1)
    how = p.pick("array", "array", "mapping", "group")
    sample = (3, 2) if axis else None
    shards = False
    numeric: tuple[str, ...] = ("",)
    options: dict[str, Any] = {"sample_axis": axis or None}
    if how == "array":
        text, made = stored(p, n, axis=axis, sample=sample)
        shards = "shards" in made
        source = p.let(text)
        dtypes = [made["dtype"]]
    else:
        names = ("x", "y", "z")[: p.number(1, 3)]
        v: Literal[2, 3] = p.pick(2, 3)
        made_all = {}
        for name in names:
            made_all[name] = stored(p, n, axis=axis, sample=sample, v=v, local=how == "group")
        numeric, dtypes = names, [made_all[name][1]["dtype"] for name in names]
        if how == "mapping":
            listed = ", ".join(f"{name!r}: {p.let(made_all[name][0])}" for name in names)
            source = f"{{{listed}}}"
            if p.chance(0.2):
                source = source[:-1] + f", 'm': {p.pick('np', 'torch')}.arange({n}) * 3}}" if not axis else source
        else:
            folder = p.name("g")
            p.add(f"make.group({folder!r}, {{}}, v={v})")
            for name in names:
                text = made_all[name][0]
                p.add(f"make.array('{folder}/{name}'{text[text.index(', ') :]}")
            source = f"make.folder / {folder!r}"
            if len(names) > 1 and p.chance(0.3):
                options["variables"] = list(names[:-1])
                numeric, dtypes = names[:-1], dtypes[:-1]
    targets = p.pick(None, None, None, "stored", "numpy", "torch")
    if targets == "stored" and not axis:
        source += f", {p.let(stored(p, n, sample=p.pick((), (2,)))[0])}"
    elif targets is not None and not axis:
        source += f", np.arange({n})[:, None] * 7" if targets == "numpy" else f", torch.arange({n}) % 5"
    p.add(f"data = {call('zf.open', source, **options)}")
    chosen = select(p, n)
    windowed = p.chance(0.3) and chosen >= 6
    if windowed:
        window(p, chosen, n, numeric)
    convert(p, numeric, dtypes)
    if p.chance(0.2) and chosen >= 12:
        split(p)
        chosen //= 2
    return Described(chosen, numeric, windowed, shards=shards)


def in_memory(p: Program) -> Described:
    """Open arrays in host memory, of NumPy and torch."""
    n = count(p, 300)
    dtype = p.pick("i4", "f4", "f8", "u1")
    single = p.chance(0.5)
    rows = f"np.arange({n * 6}, dtype={dtype!r}).reshape({n}, 2, 3)"
    source = rows if single else f"{{'x': {rows}, 'y': torch.arange({n}, dtype=torch.float32)}}"
    p.add(f"data = zf.open({source}{p.pick('', f', np.arange({n})')})")
    chosen = select(p, n)
    numeric = ("",) if single else ("x", "y")
    windowed = p.chance(0.3) and chosen >= 6
    if windowed:
        window(p, chosen, n, numeric)
    convert(p, numeric, [dtype, "f4"][: len(numeric)])
    return Described(chosen, numeric, windowed)


def select(p: Program, n: int) -> int:
    """Choose some samples, in half of the cases; return about how many."""
    for _ in range(p.pick(0, 0, 1, 1, 2)):
        if n < 6:
            break
        kind = p.pick("slice", "slice", "step", "list", "mask", "isel", "blocks")
        if kind == "slice":
            begin, end = p.number(0, n // 3), p.number(n // 2 + 1, n)
            p.add(f"data = data.select(slice({begin}, {p.pick(end, end - n or None)}))")
            n = end - begin
        elif kind == "step":
            step = p.pick(2, 3, -1, -2)
            p.add(f"data = data.select(slice(None, None, {step}))")
            n = -(-n // abs(step))
        elif kind == "list":
            chosen = p.some(range(n), p.number(max(2, n // 2), n))
            p.add(f"data = data.select({chosen})")
            n = len(chosen)
        elif kind == "mask":
            p.add(f"data = data.select(np.arange(len(data)) % {p.pick(3, 4)} != {p.number(0, 2)})")
            n = n * 2 // 3
        elif kind == "isel":
            p.add(f"data = data.select(slice({p.number(0, 2)}, None))")
            n -= 2
        else:
            p.add(f"data = data.blocks([0, -1]{p.pick('', '', ', of=' + repr('shard'))})")
            n = max(1, n // 3)
    return n


def window(p: Program, chosen: int, n: int, names: tuple[str, ...]) -> None:
    """Make samples windows."""
    reach = min(4, max(1, chosen // 4))
    one = p.pick((-1, 0), (0, 1), (-reach, 0, reach), (0,), 2, 1, (-1, 0, 1, 2)[: reach + 1], (0, 0, 1))
    offsets: Any = repr(one)
    if names != ("",) and p.chance(0.4):
        offsets = f"{{{names[0]!r}: {one!r}}}"
    elif names == ("",) and isinstance(one, tuple) and p.chance(0.15):
        offsets = f"(0, zf.lead(1, {reach}))"
    options: dict[str, Any] = {}
    if p.chance(0.3):
        options["segment_ends"] = sorted({p.number(1, n - 1), p.number(1, n - 1), n})
    options["rows"] = p.pick(None, None, "all", "selected")
    if p.chance(0.4):
        options["pad"] = p.pick("edge", 0, 5)
        options["mask"] = p.pick(None, True)
    p.add(f"data = {call('data.window', offsets, **options)}")


def convert(p: Program, names: tuple[str, ...], dtypes: list[str]) -> None:
    """Convert some arrays, in half of the cases."""
    at = p.number(0, len(names) - 1)
    name, dtype = names[at], dtypes[at]

    def of_name(value: str) -> str:
        return f"{{{name!r}: {value}}}" if name else value

    if p.chance(0.35):
        p.add(f"data = data.cast({of_name(repr(p.pick(*_FLOATS)))})")
    if p.chance(0.3) and dtype != "b1":
        p.add(f"data = data.normalize({of_name(p.pick('(2.0, 3.0)', '(-1.5, 0.25)'))})")
    if p.chance(0.1):
        p.add(p.pick("data = data.static(lsm=np.arange(6.0).reshape(2, 3))", "data = data.static(g=9.5)"))


def split(p: Program) -> None:
    """Take a part of the samples."""
    parts = p.pick("(0.75, 0.25)", "(0.5, 0.25, 0.25)")
    options: dict[str, Any] = {"by": p.pick("chunk", "sample", "contiguous", "shard"), "seed": p.pick(None, 5)}
    options["gap"] = p.pick(None, None, 2) if options["by"] == "contiguous" else None
    text = call("data.split", parts, **options)
    if options["by"] == "sample":
        text = text[:-1] + ", gap=None)"
    p.add(f"data = {text}[{p.number(0, 1)}]")


def many_stores(p: Program) -> Described:
    """Open several stores as one, alike or not, or concatenate descriptions."""
    lengths = [p.number(3, 40) for _ in range(p.number(2, 5))]
    sample, dtype = p.pick((), (3,), (2, 4)), p.pick("i4", "f4", "u1", "i8")
    alike = p.chance(0.5)
    rows, v = p.pick(2, 3, 5, 8), p.pick(2, 3)
    stores = []
    first = 0
    folder = p.name("many")
    codec = p.pick(*CODECS)
    for number, length in enumerate(lengths):
        name = f"{folder}_{number}.zarr"
        if alike:
            shape = (length, *sample)
            text = call(
                "make.array", repr(name), shape, (rows, *sample), dtype=dtype, codec=codec, v=v, first=first or None
            )
        else:
            text = stored(p, length, sample=sample, dtype=dtype, local=p.chance(0.5), name=name)[0]
        first += length * math.prod(sample)
        stores.append(p.let(text))
    kind = p.pick("list", "list", "concat", "selected", "pattern")
    if kind == "pattern" and alike:
        p.add(f"data = zf.open(str(make.folder / '{folder}_*.zarr'))")
    elif kind == "selected":
        listed = ", ".join([f"zf.open({stores[0]}).select(slice(1, None))", *stores[1:]])
        p.add(f"data = zf.concat([{listed}]{p.pick('', ', contiguous=True')})")
        lengths[0] -= 1
    elif kind == "concat":
        p.add(f"data = zf.concat([{', '.join(stores)}], dtype={p.pick(None, 'float64')!r})")
    else:
        p.add(f"data = zf.open([{', '.join(stores)}])")
    n = sum(lengths)
    chosen = select(p, n)
    windowed = p.chance(0.3) and chosen >= 8 and min(lengths) > 4
    if windowed:
        p.add(f"data = data.window({p.pick('(-1, 0)', '(0, 2)', '(1,)')}{p.pick('', ', pad=' + repr('edge'))})")
    convert(p, ("",), [dtype])
    if p.chance(0.15) and chosen >= 16:
        split(p)
    return Described(chosen, windowed=windowed)


def mixture(p: Program) -> Described:
    """Mix sources by weights."""
    sources = []
    sample, dtype = p.pick((), (2,), (2, 3)), p.pick("i4", "f4")
    lengths = [p.number(4, 90) for _ in range(p.number(2, 4))]
    for length in lengths:
        if p.chance(0.25):
            sources.append(f"np.full({(length, *sample)}, {length}, {dtype!r})")
        else:
            sources.append(p.let(stored(p, length, sample=sample, dtype=dtype)[0]))
    if p.chance(0.3):
        sources[0] = f"zf.open({sources[0]}).select(slice(1, None))"
    weights: Any = p.pick(None, [p.number(1, 9) for _ in lengths], [p.number(1, 9) for _ in lengths])
    if p.chance(0.25):
        weights = {
            0: [p.number(1, 5) for _ in lengths],
            p.number(20, 60): [p.number(0, 4) + (i == 0) for i in range(len(lengths))],
        }
    stop = p.pick(None, "first", "all", "longest", p.number(10, 150))
    batching = p.pick(None, None, "per_batch")
    p.add(f"data = {call('zf.mix', '[' + ', '.join(sources) + ']', weights=weights, stop=stop, batching=batching)}")
    if p.chance(0.3):
        p.add("data = data.cast('float64')")
    return Described(sum(lengths), stream_only=True)


def joined(p: Program) -> Described:
    """Join arrays by a coordinate."""
    n, every = p.number(12, 60), p.pick(1, 2, 3)
    low = p.number(0, 4)
    p.add(f"days = np.datetime64('2020-01-01') + np.arange({n + low})")
    first = p.let(stored(p, n, sample=(2,), dtype=p.pick("f4", "f8"))[0])
    count_other = len(range(0, n + low, every))
    second = p.let(stored(p, count_other, sample=p.pick((), (3,)), dtype="f4")[0])
    options: dict[str, Any] = {"how": p.pick(None, None, "outer")}
    if options["how"]:
        options["missing"] = p.pick(None, "nearest", "nan")
    inputs = f"{{'a': {first}, 'b': {p.pick(second, f'zf.open({second}).normalize((1, 2), axis=None)')}}}"
    coords = f"{{'a': days[{low}:], 'b': days[::{every}]}}"
    text = call("zf.join", inputs, "'time'", **options)
    p.add(f"data = {text[:-1]}, coords={coords})")
    chosen = n // every
    if p.chance(0.3):
        p.add(f"data = data.sel(time=slice('2020-01-0{p.number(1, 5)}', None))")
    windowed = p.chance(0.4) and chosen >= 6
    if windowed:
        p.add(
            f"data = data.window({p.pick('(-1, 0)', '{' + repr('a') + ': (0, 1)}')}{p.pick('', ', pad=0, mask=True')})"
        )
    if p.chance(0.3):
        p.add("data = data.cast({'a': 'float16'})")
    return Described(chosen, ("a", "b"), windowed)


def patches(p: Program) -> Described:
    """Cut patches out of volumes, or of images over time."""
    dims = p.pick(2, 2, 3, 3)
    shape = tuple(p.number(6, 22) if dims == 2 else p.number(6, 14) for _ in range(dims))
    channels = p.pick((), (), (), (2,))
    dtype = p.pick("i4", "f4", "u2")
    many = p.pick(1, 1, 1, 2, 3)
    names = ("z", "y", "x")[-dims:]
    named = p.chance(0.5)
    keys: list[Any] = list(names) if named else list(range(dims))
    chunks = tuple(p.number(3, 8) for _ in shape)
    stores = []
    for number in range(many):
        lengths = (shape[0] + 3 * number, *shape[1:])
        options: dict[str, Any] = {
            "dtype": dtype,
            "codec": p.pick("zstd", "blosc", "none"),
            "v": 3 if named else p.pick(2, 3),
        }
        if named:
            options["dims"] = (*names, *("c" for _ in channels))
        if options["v"] == 3 and p.chance(0.2):
            options["shards"] = tuple(2 * c for c in chunks) + tuple(channels)
        if p.chance(0.15):
            options["holes"] = (1,)
        stores.append(p.let(call("make.array", repr(p.name()), lengths + channels, chunks + channels, **options)))
    source = stores[0] if many == 1 else f"[{', '.join(stores)}]"
    if many == 1 and not channels and p.chance(0.25):
        source = f"{{'image': {stores[0]}, 'label': {stores[0]}}}"
    p.add(f"data = zf.open({source})")
    if p.chance(0.2):
        p.add(f"data = data.select(slice(1, {shape[0] - 1}))")
        shape = (shape[0] - 2, *shape[1:])
    size = {key: p.number(2, min(6, length)) for key, length in zip(keys, shape, strict=True)}
    sampling = p.pick("tiles", "tiles", "grid", "grid", "random", "positions")
    kept: dict[str, Any] = {"sampling": sampling}
    kept["border"] = (
        p.pick(None, "drop", "shift", "wrap", "pad") if sampling in ("tiles", "grid") else p.pick(None, "wrap")
    )
    if sampling == "random" and p.chance(0.5):
        kept["border"] = "drop"
    if kept["border"] in (None, "pad"):
        kept["pad"] = p.pick(None, 3, "edge", "reflect", *(["nan"] if dtype == "f4" else []))
    if sampling == "grid" and p.chance(0.6):
        kept["stride"] = {key: p.number(max(1, length // 2), length) for key, length in size.items()}
    if sampling == "random":
        kept["n"] = p.number(5, 40)
    text = call("data.patch", repr(size), **kept)[:-1]
    if sampling == "positions":
        spots = [[p.number(0, length - 2) for length in shape] for _ in range(p.number(3, 20))]
        if many > 1:
            spots = [[p.number(0, many - 1), *spot] for spot in spots]
        text += f", positions={spots}"
    if sampling == "random" and many == 1 and p.chance(0.4):
        text += f", weights=np.arange({math.prod(shape)}.0).reshape({shape})"
    if p.chance(0.25):
        text += f", flip={keys[-1:]}"
    if p.chance(0.15) and size[keys[-1]] == size[keys[-2]]:
        text += f", rotate={keys[-2:]}"
    if channels and p.chance(0.4):
        text += f", isel={{{'c' if named else dims}: {p.pick(0, [1])}}}"
    p.add(f"data = {text})")
    if p.chance(0.3):
        p.add(p.pick("data = data.cast('float32')", "data = data.normalize((3.0, 2.0))"))
    return Described(30, patches=sampling)


def images_over_time(p: Program) -> Described:
    """Cut patches of images over time, windows or not."""
    n, y, x = p.number(6, 20), p.number(6, 16), p.number(6, 16)
    array = call(
        "make.array",
        repr(p.name()),
        (n, y, x),
        (p.number(1, 4), p.number(3, 8), p.number(3, 8)),
        dtype="f4",
        dims=("t", "y", "x"),
    )
    p.add(f"data = zf.open({array})")
    windowed = p.chance(0.6)
    if p.chance(0.3):
        p.add("data = data.select(slice(1, None))")
    if windowed:
        p.add(f"data = data.window({p.pick('(-1, 0)', '(0, 2)')})")
    size = {"y": p.number(3, 5), "x": p.number(3, 5)}
    kept = {"border": p.pick("drop", "shift", "wrap", "pad"), "sampling": p.pick("tiles", "grid")}
    p.add(f"data = {call('data.patch', repr(size), **kept)}")
    return Described(n * 6, windowed=windowed, patches="grid")


def pyramid(p: Program) -> Described:
    """Read levels of an OME-Zarr image."""
    shape = (p.number(8, 16), p.number(8, 20), p.number(8, 20))
    labels = p.chance(0.3)
    made = call(
        "make.pyramid",
        repr(p.name()),
        shape,
        p.number(4, 8),
        levels=p.number(2, 3),
        v=p.pick(2, 3),
        labels=labels or None,
    )
    kind = p.pick("one", "two", "two", "two")
    if kind == "one":
        p.add(f"data = zf.open({made})")
        return Described(shape[0])
    levels = ["0", "1"] + ["labels/cells"] * labels
    p.add(f"data = zf.open({made}, multiscale={levels})")
    if p.chance(0.4):
        p.add(f"data = data.select(slice({p.pick(0, 2, 4)}, {shape[0] - p.number(0, 3)}))")
    if p.chance(0.75):
        size = {name: p.pick(2, 4) for name in "zyx"}
        kept: dict[str, Any] = {"sampling": p.pick("tiles", "grid"), "border": p.pick(None, "drop", "shift")}
        if p.chance(0.4) and kept["border"] != "shift":
            kept["context"] = {"1": {"y": 4, "x": 4}}
        p.add(f"data = {call('data.patch', repr(size), **kept)}")
        return Described(40, patches="grid")
    return Described(shape[0])


def lists(p: Program) -> Described:
    """Read text, bytes, records and images."""
    n, chunk = p.number(5, 60), p.pick(1, 3, 4, 7)
    kind = p.pick("text", "text", "bytes", "records", "images", "images", "beside", "stores")
    if kind == "text":
        p.add(f"data = zf.open(make.text({p.name()!r}, {n}, {chunk}, v={p.pick(2, 3)}, width={p.pick(0, 2)}))")
    elif kind == "bytes":
        p.add(f"data = zf.open(make.text({p.name()!r}, {n}, {chunk}, raw=True))")
    elif kind == "records":
        p.add(
            f"data = zf.open(make.records({p.name()!r}, {n}, {chunk}){p.pick('', ', variables=[' + repr('b') + ']')})"
        )
    elif kind == "images":
        p.add(f"data = zf.open(make.images({p.name()!r}, {min(n, 24)}, {chunk}))")
        p.add(f"data = data.decode('image'{p.pick('', ', size=(4, 6)', ', size=(3, 3), mode=' + repr('L'))})")
        n = min(n, 24)
    elif kind == "stores":
        texts = [p.let(f"make.text({p.name()!r}, {length}, {chunk})") for length in (n, 4)]
        p.add(f"data = zf.open([{', '.join(texts)}])")
        n += 4
    else:
        array = p.let(stored(p, n, dtype="i4")[0])
        text = p.let(f"make.text({p.name()!r}, {n}, {chunk})")
        p.add(f"data = zf.open({{'x': {array}, 't': {text}}}, np.arange({n}))")
    chosen = select(p, n)
    return Described(chosen, ())


def sparse(p: Program) -> Described:
    """Read sparse matrices, alone or of AnnData."""
    n = p.number(8, 60)
    kind = p.pick("csr", "csr", "anndata", "stores")
    columns = p.number(3, 9)
    if kind == "csr":
        p.add(f"data = zf.open(make.csr({p.name()!r}, {n}, {columns}, chunk={p.pick(5, 20, 33)}))")
    elif kind == "anndata":
        names = p.pick(["X"], ["X", "obs/n"], ["X", "obs/kind"])
        made = f"make.anndata({p.name()!r}, {n}, {columns})"
        p.add(f"data = {call('zf.open', made, variables=names)}")
    else:
        stores = [
            p.let(f"make.csr({p.name()!r}, {length}, {columns}, first={first})") for length, first in ((n, 0), (9, n))
        ]
        p.add(f"data = zf.open([{', '.join(stores)}])")
        n += 9
    if p.chance(0.5):
        p.add("data = data.dense()")
    return Described(select(p, n), ())


def climate(p: Program) -> Described:
    """Read what xarray writes, by labels, with CF attributes, statics, stacks and features of time."""
    n = p.number(16, 70)
    made = p.let(f"make.dataset({p.name()!r}, {n}, {p.number(3, 9)}, step={p.pick(6, 24)})")
    how = p.pick("open", "open", "xarray", "stores")
    options: dict[str, Any] = {"sample_dim": "time", "variables": ["t2m", "rain"]}
    if how == "open":
        options["decode_cf"] = p.pick(None, None, False)
        p.add(f"data = {call('zf.open', made, **options)}")
        if options["decode_cf"] is False:
            p.add("data = data.cast({'t2m': 'float32', 'rain': 'float32'})")
    elif how == "xarray":
        p.add(f"ds = xr.open_zarr({made}, consolidated=False, chunks=None)[['t2m', 'rain']]")
        part = p.pick("ds", "ds", f"ds.isel(time=slice(2, {n - 2}))")
        p.add(f"data = zf.from_xarray({part}, sample_dim='time')")
    else:
        other = p.let(f"make.dataset({p.name()!r}, 12, 4, first={n})")
        p.add(f"data = {call('zf.open', f'[{made}, {other}]', **options)}")
        n += 12
    if p.chance(0.4) and how != "xarray":
        p.add(f"data = data.sel(time={p.pick('slice(' + repr('2015-01-02') + ', None)', repr('2015-01'))})")
    if p.chance(0.3) and how == "open":
        p.add("data = data.time_features('hour', 'day_of_year')")
    windowed = p.chance(0.4)
    if windowed:
        p.add(f"data = data.window({p.pick('(-1, 0)', '(0, 1, 3)')})")
    if p.chance(0.4):
        p.add(f"data = data.normalize({p.pick('{' + repr('t2m') + ': (280.0, 20.0)}', repr('auto'))})")
    static = p.chance(0.4)
    if static:
        given, stored_too = "data = data.static(lsm=np.ones((4, 5), 'f4'))", "data = data.static('mask')"
        p.add(p.pick(given, stored_too) if how == "open" else given)
    if p.chance(0.5):
        p.add(f"data = data.stack(['t2m', 'rain'{', ' + repr('lsm') if static and 'lsm' in p.lines[-1] else ''}])")
    elif p.chance(0.4):
        p.add("data = data.cast('bfloat16')")
    return Described(n // 2, (), windowed)


def growing(p: Program) -> Described:
    """Open a store that grows."""
    rows, n = p.pick(3, 4, 8), p.number(12, 50)
    how = p.pick("zarr", "zarr", "appender")
    options: dict[str, Any] = {"refresh": "epoch", "window": p.pick(None, None, p.number(8, 12))}
    if how == "zarr":
        array = p.let(call("make.array", repr(p.name()), (n, 2), (rows, 2), dtype="i8", v=p.pick(2, 3), fill=-1))
        options["complete"] = p.pick(None, None, "shape")
        grows = f"make.append({array}, {p.number(3, 20)})"
    else:
        array = p.let(f"make.folder / {p.name()!r}")
        p.add(f"rows = np.arange({n * 2}).reshape({n}, 2)")
        p.add(f"make.appended({array}, rows, chunk_rows={rows})")
        grows = f"make.appended({array}, rows[:{rows * 3}])"
    p.add(f"data = {call('zf.open', array, **options)}")
    windowed = p.chance(0.3)
    if p.chance(0.3):
        p.add("data = data.select(slice(2, None))")
    if windowed:
        p.add("data = data.window((-1, 0))")
    if p.chance(0.3):
        p.add("data = data.cast('float64')")
    return Described(n, ("",), windowed, grows=grows)
