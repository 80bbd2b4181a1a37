"""Descriptions whose epochs are drawn: weighted and mixed patches, weighted sources, crops, and bucketed sequences."""

from __future__ import annotations

from recording.program import Described, Program, call


def weighted_sources(p: Program) -> Described:
    """Mix sources of which some are weighted or balanced."""
    first, second, third = p.number(20, 60), p.number(20, 60), p.number(8, 30)
    options = {"weights": [p.number(1, 5) for _ in range(3)], "stop": p.pick(None, "longest", p.number(20, 120))}
    p.add(f"r = np.arange({first})")
    sources = [
        f"zf.open(make.array({p.name()!r}, ({first}, 2), (7, 2))).weight(r % 7 + 1.0)",
        f"zf.open(make.array({p.name()!r}, ({second}, 2), (5, 2))).balance(np.arange({second}) ** 2 % 5)",
        f"zf.open(make.array({p.name()!r}, ({third}, 2), (4, 2)))",
    ]
    p.add(f"data = {call('zf.mix', '[' + ', '.join(sources) + ']', **options, batching=p.pick(None, 'per_batch'))}")
    return Described(first + second + third, stream_only=True)


def joined_patches(p: Program) -> Described:
    """Put patches of volumes of different sizes together, each drawn by weights of its own."""
    n = p.number(6, 20)
    shapes = [(p.number(8, 16), p.number(8, 16)) for _ in range(2)]
    border = p.pick("drop", "pad")
    sources = []
    for number, shape in enumerate(shapes):
        label = f"np.arange({shape[0] * shape[1]}).reshape({shape}) % {5 + number}"
        sources.append(
            f"zf.open(make.array({p.name()!r}, {shape}, (5, 4)))"
            f".patch({{0: 3, 1: 4}}, sampling='random', n={n + number}, border={border!r}, weights={label} == 1)"
        )
    p.add(f"data = zf.concat([{', '.join(sources)}])")
    return Described(2 * n, stream_only=True, patches="random")


def mixed_patches(p: Program) -> Described:
    """Mix patches by weights."""
    sampling, count = p.pick("random", "random", "grid"), p.number(2, 3)
    sources = []
    for _ in range(count):
        shape = (p.number(8, 16), p.number(8, 16))
        number = f", n={p.number(5, 30)}" if sampling == "random" else ""
        sources.append(
            f"zf.open(make.array({p.name()!r}, {shape}, (5, 4))).patch({{0: 3, 1: 4}}, sampling={sampling!r}{number})"
        )
    options = {"weights": [p.number(1, 5) for _ in sources], "stop": p.pick(None, "all", p.number(20, 90))}
    p.add(f"data = {call('zf.mix', '[' + ', '.join(sources) + ']', **options, batching=p.pick(None, 'per_batch'))}")
    return Described(60, stream_only=True, patches="mixed")


def _recordings(p: Program) -> int:
    """Open recordings of different lengths in one array; return how many there are."""
    lengths = [p.number(6, 20) for _ in range(p.number(8, 20))]
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    p.add(f"data = zf.open(make.array({p.name()!r}, ({ends[-1]}, 2), (9, 2))).segments({ends})")
    return len(lengths)


def crops(p: Program) -> Described:
    """Draw crops of recordings."""
    count, n = _recordings(p), p.number(1, 3)
    p.add(f"data = data.random_crop({p.number(2, 6)}, n={n})")
    return Described(count * n, stream_only=True)


def sequences(p: Program) -> Described:
    """Read whole recordings, padded, in batches of about one length."""
    count = _recordings(p)
    p.add("data = data.pad_sequences(-1).bucket_by_length(4, pool=2)")
    return Described(count, stream_only=True)


DRAWN = (weighted_sources, joined_patches, mixed_patches, crops, sequences, mixed_patches)
