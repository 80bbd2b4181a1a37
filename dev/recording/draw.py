"""Random configurations: each is a short program that follows from a seed and its number alone.

A program sets `data`, and `dataset`, a function that makes the dataset. It may set

- `resumed`, a function that makes the dataset that goes on from a state of the first one, on another setup;
- `loader`, a function that wraps a dataset in a loader;
- `workers`, how many DataLoader workers are played one after another;
- `between`, a function of the dataset that is called between two epochs;
- `asked`, indices that are asked of a map-style dataset;
- `results`, a function of further values to look at;
- `jump`, the epoch that is named behind the first one;
- `stops`, after which batches states are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from recording import descriptions
from recording.drawn import DRAWN
from recording.program import Described, Program, call
from recording.special import SPECIAL

#: Kinds of descriptions, as often as they come among so many configurations.
_KINDS: tuple[tuple[Callable[[Program], Described], int], ...] = (
    (descriptions.opened, 10),
    (descriptions.in_memory, 3),
    (descriptions.many_stores, 5),
    (descriptions.mixture, 6),
    (descriptions.joined, 4),
    (descriptions.patches, 7),
    (descriptions.images_over_time, 1),
    (descriptions.pyramid, 2),
    (descriptions.lists, 4),
    (descriptions.sparse, 3),
    (descriptions.climate, 4),
    (descriptions.growing, 3),
)
_CYCLE = [kind for kind, times in _KINDS for _ in range(times)]
#: From this number on, samples are weighted: what is drawn before stays as it was.
_WEIGHTED_FROM = 400
_WEIGHTED = (
    *(descriptions.opened, descriptions.in_memory, descriptions.many_stores, descriptions.sparse, descriptions.climate),
    *(descriptions.joined, descriptions.lists, descriptions.opened),
)
#: From this number on, samples are listed, epochs go on where the last one ended, and several dimensions make samples.
_NEWER_FROM = 424
#: From this number on, epochs are drawn.
_DRAWN_FROM = 448
_OBJECTS_EVERY = 14
_SPECIAL_EVERY = 8
_REAL_WORKERS_EVERY = 40


@dataclass(frozen=True)
class Configuration:
    """One configuration.

    Attributes
    ----------
    number
        Which one.
    text
        The program.
    """

    number: int
    text: str

    @property
    def summary(self) -> str:
        """The lines that make the description and the dataset, shortened."""
        last = [line for line in self.text.splitlines() if line.startswith(("data = ", "dataset = "))]
        return "; ".join(line if len(line) < 160 else line[:157] + "..." for line in last)


def draw(seed: int, number: int) -> Configuration:
    """Return a configuration."""
    p = Program(Random(f"{seed}/{number}"))
    if number >= _DRAWN_FROM:
        described = DRAWN[number % len(DRAWN)](p)
        options = _order_options(p, described) | {"drop_last": None}
        _put_epochs(p, options | ({"batch_size": 4, "world_size": None} if "bucket" in p.lines[-1] else {}))
    elif number >= _NEWER_FROM:
        (_listed, _continued, _gridded)[number % 3](p)
    elif number >= _WEIGHTED_FROM:
        _weighted(p, _WEIGHTED[number % len(_WEIGHTED)](p))
    elif number % _OBJECTS_EVERY == _OBJECTS_EVERY - 1:
        _objects(p)
    elif number % _SPECIAL_EVERY == _SPECIAL_EVERY - 1:
        SPECIAL[(number // _SPECIAL_EVERY) % len(SPECIAL)](p)
    else:
        described = _CYCLE[(number * 29) % len(_CYCLE)](p)
        if not described.stream_only and described.patches not in ("tiles", "random") and p.chance(0.2):
            _map_style(p)
        else:
            _stream(p, described, real_workers=number % _REAL_WORKERS_EVERY == 7)
    return Configuration(number, "\n".join(p.lines))


def _weighted(p: Program, described: Described) -> None:
    weights = p.pick("r % 7", "r % 3 == 0", "(r % 11 == 0) * 20 + 1", "1.0 + r", "(r + 1.0) ** -2")
    p.add("r = np.arange(len(data))")
    if p.chance(0.3):
        p.add(f"data = data.balance(r ** 2 % {p.pick(3, 7, 11)}, power={p.pick(0.5, 1.0)})")
    else:
        p.add(f"data = data.weight({weights}, n={p.pick(None, None, 2 * described.n, max(9, described.n // 3))})")
    _stream(p, described, real_workers=False)


def _listed(p: Program) -> None:
    """Read samples in the order of a list, in epochs of the whole list or of another length."""
    described = p.pick(descriptions.opened, descriptions.many_stores, descriptions.in_memory, descriptions.sparse)(p)
    p.add("r = np.arange(len(data))")
    order = p.pick("r[::-1]", "r ** 2 % len(r)", "np.repeat(r[::3], 2)", "[*r[5:], *r[:9]]", "np.roll(r, 7)[:: 2]")
    p.add(f"data = data.select({order}, keep_order=True)")
    options = _order_options(p, described) | {"shuffle": None, "drop_last": None}
    _put_epochs(p, options | {"epoch_size": p.pick(None, None, p.number(5, 2 * described.n))})


def _continued(p: Program) -> None:
    """Read epochs that go on where the last one ended."""
    described = p.pick(descriptions.opened, descriptions.many_stores, descriptions.in_memory, descriptions.climate)(p)
    _put_epochs(p, _order_options(p, described) | {"epoch_size": p.number(5, 2 * described.n), "drop_last": None})


def _gridded(p: Program) -> None:
    """Read samples that several dimensions of an array make."""
    members, times = p.number(2, 5), p.number(4, 15)
    chunks = (p.number(1, 3), p.number(1, 6), 2)
    shards = p.pick(None, (2 * chunks[0], 3 * chunks[1], 2))
    array = {"shape": (members, times, 3), "chunks": chunks, "shards": shards, "dims": ("member", "time", "x")}
    dims = p.pick(("member", "time"), ("time", "member"))
    p.add(f"data = zf.open(make.group({p.name()!r}, {{'x': {array}}}), sample_dim={dims})")
    windows = p.chance(0.4)
    if windows:
        p.add(f"data = data.window({p.pick('(0, 1)', '(-1, 0)', '(1,)')})")
    elif p.chance(0.4):
        p.add("data = data.isel(member=slice(1, None))")
    _stream(p, Described(members * times, windowed=windows, shards=shards is not None), real_workers=False)


def _put_epochs(p: Program, options: dict[str, Any]) -> None:
    _put_dataset(p, "zf.ZarrIterableDataset", "data", options)
    if p.chance(0.5):
        _put_dataset(p, "zf.ZarrIterableDataset", "data", _other_setup(p, options), "resumed")
    if p.chance(0.4):
        p.add(f"workers = {p.number(2, 3)}")
    if p.chance(0.4):
        p.add(f"jump = {p.pick(0, 1, 5)}")
    p.add(f"stops = {tuple(sorted({p.number(1, 3), p.number(2, 9)}))}")


def _order_options(p: Program, described: Described) -> dict[str, Any]:
    world = p.pick(None, None, None, 2, 3, 4, 5) if described.n > 12 or p.chance(0.2) else None
    drop_last = p.pick(None, None, True) if described.n > 60 else None
    options: dict[str, Any] = {
        "batch_size": p.pick(1, 2, 3, 4, 4, 5, 7, 8, 16),
        "shuffle": p.pick(None, True, True, True),
        "seed": p.pick(None, p.number(1, 99), 2**63 + p.number(0, 9)),
        "drop_last": drop_last,
        "return_index": p.pick(None, True),
        "num_threads": p.pick(1, 2, 3),
    }
    if world is not None:
        options |= {"world_size": world, "even": p.pick(None, "drop", "repeat", "off")}
    return options


def _stream(p: Program, described: Described, *, real_workers: bool) -> None:
    options = _order_options(p, described)
    if described.grows:  # a store that grows is read on several ranks with torch.distributed alone
        options["world_size"] = options["even"] = None
    mixing: dict[str, Any] = {}
    if p.chance(0.4):
        mixing["lanes"] = p.pick(1, 2, 3, 4, 8)
    if p.chance(0.25) and not described.patches:
        mixing["mix"] = p.pick(1, 2, 3, 5)
    if described.shards and p.chance(0.5) and not described.patches:
        mixing["block"] = p.pick("shard", "chunk")
    options["mixing"] = mixing or None
    options["memory_budget"] = p.pick(None, None, None, "1MiB", "2MiB", "64MiB")
    if p.chance(0.1):
        options["faults"] = p.pick({"on_error": "skip"}, {"missing": "raise"}, {"retries": 1, "timeout": 30})
    if p.chance(0.1):
        options["requests"] = {"coalesce_gap": p.pick(0, "1KiB"), "coalesce_limit": "64KiB"}
    world = options.get("world_size")
    if world in (2, 4) and p.chance(0.4) and options["shuffle"]:
        options["affinity"] = "node"
        p.add(f"env(LOCAL_WORLD_SIZE={world // 2})")
    if p.chance(0.06):
        options["batch_size"] = None
    _put_dataset(p, "zf.ZarrIterableDataset", "data", options)
    if p.chance(0.45):
        _put_dataset(p, "zf.ZarrIterableDataset", "data", _other_setup(p, options), "resumed")
    if real_workers and options["batch_size"]:
        p.add("loader = lambda dataset: zf.ZarrDataLoader(dataset, num_workers=2, multiprocessing_context='fork')")
    elif p.chance(0.2) and options["batch_size"]:
        p.add("loader = lambda dataset: zf.ZarrDataLoader(dataset)")
    elif p.chance(0.25):
        p.add(f"workers = {p.number(2, 3)}")
    if described.grows:
        p.add(f"between = lambda dataset: ({described.grows}, dataset.refresh())")
    elif described.windowed and p.chance(0.5):
        p.add(f"between = lambda dataset: dataset.set_offsets({p.pick('(0, 1)', '(-1, 0, 1)', '3')})")
    if (
        described.patches == "grid"
        and options["return_index"]
        and not world
        and options["batch_size"]
        and p.chance(0.5)
    ):
        weights = p.pick("flat", "hann")
        p.add(
            "results = lambda dataset: dataset.stitch("
            f"((2.0 * next(iter(parts[0].values())) if isinstance(parts[0], dict) else 2.0 * parts[0], parts[-1]) "
            f"for parts in dataset), {{}}, weights={weights!r})[:]"
        )
    if p.chance(0.3):
        p.add(f"jump = {p.pick(0, 1, 5)}")
    p.add(f"stops = {tuple(sorted({p.number(1, 3), p.number(2, 9)}))}")


def _other_setup(p: Program, options: dict[str, Any]) -> dict[str, Any]:
    changed = dict(options)
    what = p.pick("batch", "ranks", "alone", "memory", "seed", "lanes")
    if what == "batch":
        changed["batch_size"] = p.pick(1, 2, 6)
    elif what == "ranks":
        changed |= {"world_size": p.pick(2, 3, 6), "even": p.pick(None, "off")}
    elif what == "alone":
        changed["world_size"] = changed["even"] = changed["affinity"] = None
    elif what == "memory":
        changed |= {"memory_budget": "128MiB", "num_threads": 2}
    elif what == "seed":  # which is refused
        changed["seed"] = 1234
    else:
        changed["mixing"] = {"lanes": 5}
    return changed


def _put_dataset(p: Program, kind: str, source: str, options: dict[str, Any], name: str = "dataset") -> None:
    world = options.get("world_size")
    text = call(kind, source, **options)
    if world is None:
        p.add(f"{name} = lambda: {text}")
    else:
        p.add(f"{name} = lambda rank={p.number(0, world - 1)}: {text[:-1]}, rank=rank)")


def _map_style(p: Program) -> None:
    options = {
        "return_index": p.pick(None, True),
        "num_threads": p.pick(1, 2),
        "cache": p.pick(None, 0, "1MiB", 5000),
    }
    p.add(f"dataset = lambda: {call('zf.ZarrDataset', 'data', **options)}")
    asked = [[p.r.random() for _ in range(p.number(1, 9))] for _ in range(4)]
    shares = [[round(one, 3) for one in request] for request in asked]
    p.add(f"asked = {shares}  # shares of len(data)")
    if p.chance(0.5):
        p.add(
            "loader = lambda dataset: torch.utils.data.DataLoader(dataset, batch_sampler=zf.LookAhead("
            f"torch.utils.data.BatchSampler(range(len(dataset) - 1, -1, -1), {p.number(2, 6)}, False), "
            f"{p.pick(2, 64)}), collate_fn=list)"
        )


def _objects(p: Program) -> None:
    n = p.number(4, 40)
    kind = p.pick("bin", "bin", "npy", "png")
    made = f"make.objects({p.name()!r}, {n}, kind={kind!r})"
    decode = {"bin": p.pick(None, "bytes"), "npy": "npy", "png": "image"}[kind]
    opened = p.pick("", "", f", glob='**/*[13579].{kind}'", ", prefix='part-00'")
    p.add(f"data = objects.open({made}{opened})")
    if p.chance(0.3):
        p.add("data = data.select(slice(1, None))")
    if p.chance(0.25):
        p.add(f"dataset = lambda: {call('objects.ObjectDataset', 'data', decode=decode, num_threads=2)}")
        p.add("asked = [[0.0, 0.5, 0.5], [0.9]]")
        return
    options = _order_options(p, Described(n)) | {"decode": decode}
    _put_dataset(p, "objects.ObjectIterableDataset", "data", options)
    if p.chance(0.4):
        _put_dataset(p, "objects.ObjectIterableDataset", "data", _other_setup_of_objects(p, options), "resumed")
    p.add(f"stops = {(p.number(1, 3),)}")


def _other_setup_of_objects(p: Program, options: dict[str, Any]) -> dict[str, Any]:
    return options | {"batch_size": p.pick(1, 2, 6), "seed": p.pick(options["seed"], 77)}
