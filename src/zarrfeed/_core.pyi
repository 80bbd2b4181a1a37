from collections.abc import Mapping, Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

#: Number of the field, key, whether it is the index of a shard; parts: request id, first byte and end as of a slice.
FetchRequest: TypeAlias = tuple[int, str, bool, list[tuple[int, int, int | None]]]

_Skipped = tuple[list[int], list[int], list[tuple[int, int, str, str, int, str]]]
_TensorSpec = tuple[int, int, Sequence[int]]
#: Address of the rows or 0, their number; without an address the first row and the step.
#: Or with the number of runs behind that: the address of these, the number of samples, 0 and the step.
_RowMap: TypeAlias = "tuple[int, int, int, int] | tuple[tuple[int, int, int, int], int] | SampleGrid"
#: Least and greatest distance, and which of the offsets are drawn.
_Lead = tuple[int, int, Sequence[int]]
#: "edge" or "fill", the item as it stands in the batch, and where segments begin.
_Pad = tuple[str, bytes, npt.NDArray[np.int64] | None]
_BadRows = tuple[int, int, int, str, str, int, str]

class CodecSpec:
    def __init__(
        self,
        name: str,
        *,
        checksum_at_start: bool = False,
        element_bytes: int = 1,
        run_bytes: int = 0,
        stride: int = 1,
        big_endian: bool = False,
    ) -> None: ...

class ShardSpec:
    def __init__(
        self,
        *,
        chunks: Sequence[int],
        index_at_start: bool,
        index_big_endian: bool,
        index_has_crc32c: bool,
        cache_bytes: int | None = None,
    ) -> None: ...

class ConversionSpec:
    def __init__(
        self,
        *,
        items: str,
        result: str,
        decode_in_double: bool,
        fills: Sequence[float],
        scale: float | None,
        offset: float | None,
        mean: npt.NDArray[np.float64],
        std: npt.NDArray[np.float64],
        channel_items: int,
        steps: Sequence[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.float64], int]] = [],
    ) -> None: ...

class Converter:
    def __init__(self, spec: ConversionSpec) -> None: ...
    def convert(self, dest: npt.NDArray[np.generic], source: npt.NDArray[np.generic], position: int) -> None: ...

class ArrayParts:
    def __init__(
        self,
        *,
        begin: npt.NDArray[np.int64],
        end: npt.NDArray[np.int64],
        prefixes: Sequence[bytes],
        names: Sequence[str],
        rows_per_chunk: int,
    ) -> None: ...

class ChunkTable:
    def __init__(
        self,
        *,
        files: Sequence[tuple[bytes, int, int]],
        in_memory: bytes,
        grid: Sequence[int],
        numbers: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        file_indices: Sequence[int],
        padded_bytes: int = 0,
    ) -> None: ...

class ArraySpec:
    def __init__(
        self,
        *,
        name: str,
        shape: Sequence[int],
        chunk_shape: Sequence[int],
        storage_order: Sequence[int],
        sample_axis: int,
        item_bytes: int,
        swap_bytes: int,
        fill: bytes,
        codecs: Sequence[CodecSpec],
        root: bytes,
        metadata_key: str,
        key_prefix: str,
        key_separator: str,
        num_key_axes: int | None = None,
        shard: ShardSpec | None = None,
        in_python: bool = False,
        max_stored_bytes: int = 0,
        parts: ArrayParts | None = None,
        chosen: Sequence[Sequence[int]] = (),
        tables: Sequence[ChunkTable] = (),
        key_indices: Sequence[tuple[int, int, int]] = (),
        is_transcoded: bool = False,
    ) -> None: ...

class SampleGrid:
    def __init__(self, axes: Sequence[tuple[int, int, int, int]]) -> None: ...
    @staticmethod
    def joined(grids: Sequence[SampleGrid], first_rows: Sequence[int]) -> SampleGrid: ...
    def rows_of(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def samples_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...

class PatchSpec:
    def __init__(
        self,
        *,
        axes: Sequence[tuple[int, int, int, int, int, str, Sequence[int]]],
        volumes: npt.NDArray[np.int64],
        fill: bytes = b"",
    ) -> None: ...

class FieldSpec:
    @staticmethod
    def stored(
        array: ArraySpec,
        *,
        conversion: ConversionSpec | None = None,
        offsets: Sequence[int] = (),
        tensor: _TensorSpec | None = None,
        slot: tuple[int, int, int] | None = None,
        row_map: _RowMap | None = None,
        pad: _Pad | None = None,
        is_variant: bool = False,
        lead: _Lead | None = None,
        patch: PatchSpec | None = None,
        source: int | None = None,
    ) -> FieldSpec: ...
    @staticmethod
    def resident(
        address: int,
        *,
        row_bytes: int,
        bad_rows: Sequence[_BadRows] = (),
        conversion: ConversionSpec | None = None,
        offsets: Sequence[int] = (),
        tensor: _TensorSpec | None = None,
        slot: tuple[int, int, int] | None = None,
        row_map: _RowMap | None = None,
        pad: _Pad | None = None,
        num_rows: int = 0,
        lead: _Lead | None = None,
        source: int | None = None,
    ) -> FieldSpec: ...
    @staticmethod
    def pad_mask(
        *, offsets: Sequence[int], pad: _Pad, tensor: _TensorSpec | None = None, lead: _Lead | None = None
    ) -> FieldSpec: ...
    @staticmethod
    def lead(*, low: int, high: int, tensor: _TensorSpec | None = None) -> FieldSpec: ...
    @staticmethod
    def index(
        *, tensor: _TensorSpec | None = None, offsets: Sequence[int] = (), row_map: _RowMap | None = None
    ) -> FieldSpec: ...

class CarryPlan:
    def __init__(
        self,
        *,
        next_group: npt.NDArray[np.int64],
        begin: npt.NDArray[np.int64],
        source: npt.NDArray[np.int64],
        chunk: npt.NDArray[np.int64],
        on: npt.NDArray[np.int64],
        take_begin: npt.NDArray[np.int64],
        take_source: npt.NDArray[np.int64],
        take_chunk: npt.NDArray[np.int64],
        run_rows: npt.NDArray[np.int64] | None = None,
    ) -> None: ...

class MixtureStage:
    def __init__(
        self,
        *,
        first_row: int,
        ratio: npt.NDArray[np.uint64],
        phase: npt.NDArray[np.uint64],
        base: npt.NDArray[np.int64],
    ) -> None: ...

class Mixture:
    def __init__(
        self,
        *,
        columns: int,
        unit: int,
        paths: Sequence[Sequence[tuple[int, int]]],
        stages: Sequence[MixtureStage],
    ) -> None: ...
    def steps_of(self, source: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...

class MixturePlan:
    def __init__(
        self,
        *,
        mixture: Mixture,
        begin: int,
        group_source: npt.NDArray[np.int64],
        group_pass: npt.NDArray[np.int64],
        source_seed: npt.NDArray[np.uint64],
        source_lanes: npt.NDArray[np.int64],
        source_length: npt.NDArray[np.int64],
    ) -> None: ...
    def group_steps(
        self,
        *,
        length: int,
        first: int,
        stride: int,
        begin: int,
        count: int,
        run: int,
        period: int,
        lane: npt.NDArray[np.int64],
        offset: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...

class PatchTable:
    def __init__(
        self,
        *,
        num_dims: int,
        step: npt.NDArray[np.int64],
        origin: npt.NDArray[np.int64],
        least: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
        block_first: npt.NDArray[np.int64],
        block_volume: npt.NDArray[np.int64],
        block_begin: npt.NDArray[np.int64],
        block_count: npt.NDArray[np.int64],
        sweep_axis: int,
        volume_of: npt.NDArray[np.int64],
        start_of: npt.NDArray[np.int64],
        margin: npt.NDArray[np.int64],
        period: npt.NDArray[np.int64],
        stride: npt.NDArray[np.int64],
        volume_number: npt.NDArray[np.int64],
        orientations: npt.NDArray[np.int64],
    ) -> None: ...

class BlockTable:
    num_blocks: int
    length: int
    @staticmethod
    def of_runs(
        *,
        held_index: npt.NDArray[np.int64],
        block: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
        stride: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        num_blocks: int,
    ) -> BlockTable: ...
    @staticmethod
    def of_steps(*, start: int, step: int, count: int, block_rows: int) -> BlockTable: ...
    @staticmethod
    def of_list(
        *, block: npt.NDArray[np.int64], first: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> BlockTable: ...
    def at(
        self, held_indices: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def rows_before(self, held_indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def indices_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...

class SampleTable:
    length: int
    @staticmethod
    def of_list(samples: npt.NDArray[np.int64], *, ascends: bool = True) -> SampleTable: ...
    @staticmethod
    def of_runs(*, begin: npt.NDArray[np.int64], count: npt.NDArray[np.int64], step: int = 1) -> SampleTable: ...
    @staticmethod
    def of_pages(*, offset: npt.NDArray[np.uint16], before: npt.NDArray[np.int64], bits: int) -> SampleTable: ...
    @staticmethod
    def of_repeats(
        *, offset: npt.NDArray[np.uint16], before: npt.NDArray[np.int64], base: npt.NDArray[np.int64]
    ) -> SampleTable: ...
    @staticmethod
    def of_flags(flags: npt.NDArray[np.uint8]) -> SampleTable: ...
    @staticmethod
    def of_grid(*, grid: SampleGrid, rows: SampleTable) -> SampleTable: ...
    def at(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def rank(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def list(self, first: int, count: int) -> npt.NDArray[np.int64]: ...

class BlockOrder:
    @staticmethod
    def natural(table: BlockTable, *, first: int = 0, short_last: bool = False) -> BlockOrder: ...
    @staticmethod
    def listed(table: BlockTable, held_indices: npt.NDArray[np.int64]) -> BlockOrder: ...
    @staticmethod
    def combs(table: BlockTable, *, seed: int, epoch: int, strata: int) -> BlockOrder: ...
    def held_indices(self, begin: int, end: int) -> npt.NDArray[np.int64]: ...
    def find(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def begins(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def ordinals_of(self, held_indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...

class EpochPlan:
    def __init__(
        self,
        *,
        seed: int,
        epoch: int,
        shuffle: bool,
        lanes: int,
        length: int,
        num_samples: int,
        sample_step: int,
        first: int,
        stride: int,
        begin: int,
        count: int,
        steps: int,
        group_begin: npt.NDArray[np.int64],
        group_lane: npt.NDArray[np.int64],
        group_offset: npt.NDArray[np.int64],
        group_number: npt.NDArray[np.int64],
        group_turn: npt.NDArray[np.int64],
        extra_position: npt.NDArray[np.int64],
        extra_step: npt.NDArray[np.int64],
        first_step: npt.NDArray[np.int64],
        last_step: npt.NDArray[np.int64],
        selected: SampleTable | None,
        segment_block: npt.NDArray[np.int64],
        segment_first: npt.NDArray[np.int64],
        segment_rows: npt.NDArray[np.int64],
        segment_start: npt.NDArray[np.int64],
        segment_length: npt.NDArray[np.int64],
        run: int = 0,
        period: int = 0,
        carry: CarryPlan | None = None,
        mixture: MixturePlan | None = None,
        patches: PatchTable | None = None,
        block_order: BlockOrder | None = None,
        mix: int = 1,
    ) -> None: ...
    def count_pieces(self) -> int: ...
    def segments(self) -> npt.NDArray[np.int64]: ...

class SampleStream:
    left: int
    def __init__(self, plan: EpochPlan) -> None: ...
    def next(self, count: int) -> npt.NDArray[np.int64]: ...

class EngineOptions:
    def __init__(
        self,
        *,
        batch_size: int,
        num_threads: int,
        num_fetch_threads: int,
        max_requests: int = 1,
        coalesce_gap: int = 0,
        coalesce_limit: int = 0,
        provides_memory: bool = False,
        cache_bytes: int = 0,
        carry_bytes: int = 0,
        caller_runs: bool = False,
        max_block_bytes: int = ...,
        max_retries: int = 0,
        timeout_s: float = 3600.0,
        missing_is_error: bool = False,
        skip_bad: bool = False,
    ) -> None: ...

class ObjectVersions:
    @overload
    def __init__(self, common: str) -> None: ...
    @overload
    def __init__(self, listed: Sequence[tuple[str, str]]) -> None: ...
    def find(self, key: str) -> str | None: ...
    def agrees(self, key: str, *, inode: int, time_ns: int, size: int) -> bool: ...

class SharedPool:
    @staticmethod
    def create(id: int, most_held_bytes: int) -> SharedPool: ...
    @staticmethod
    def open(descriptor: int, id: int) -> SharedPool: ...
    @staticmethod
    def find(id: int) -> SharedPool | None: ...
    @staticmethod
    def find_slot(address: int) -> tuple[SharedPool, int, int] | None: ...
    @staticmethod
    def forget_over() -> None: ...
    def acquire(self, bytes: int) -> object | None: ...
    def share(self, address: int, bytes: int) -> tuple[int, int, int, int] | None: ...
    def take_over(self, slot: int, generation: int, begin: int, bytes: int) -> object: ...
    def retire(self) -> None: ...
    def descriptor(self) -> int: ...
    def owner(self) -> int: ...
    def is_opened(self) -> bool: ...
    def is_over(self) -> bool: ...
    def num_leases(self) -> int: ...
    def num_slots(self) -> int: ...
    def slot_bytes(self) -> int: ...

class CacheDirectory:
    def __init__(self, path: bytes, limit: int, group: int | None = None) -> None: ...
    def close(self) -> None: ...
    def path(self) -> str: ...
    def limit(self) -> int: ...
    def trouble(self) -> str: ...
    def notice(self) -> str: ...
    def admits(self) -> bool: ...
    def is_writable(self) -> bool: ...
    def used_bytes(self) -> int: ...
    def recount(self) -> int: ...
    def clear(self, store: str) -> int: ...
    def files(self) -> list[tuple[str, int]]: ...
    def store_name(self, folder: str) -> bytes: ...
    def read_info(self, path: str) -> tuple[str, str] | None: ...
    def check(self, path: str) -> int | None: ...
    def remove(self, path: str) -> int: ...

class CacheClaim:
    def release(self) -> None: ...

class CachedArray:
    form: str
    def __init__(
        self, directory: CacheDirectory, *, store: str, prefix: str, versions: ObjectVersions, form: str = ""
    ) -> None: ...
    def read(self, key: str, begin: int = 0, end: int | None = None, *, max_bytes: int) -> bytes | bool | None: ...
    def admit(self, key: str, begin: int, end: int | None, stored: bytes | npt.NDArray[np.uint8]) -> str: ...
    def contains(self, key: str, begin: int = 0, end: int | None = None) -> bool: ...
    def entries(self, most: int) -> tuple[list[tuple[str, int, int | None, bool, int]], float]: ...
    def counted_bytes(self, key: str, begin: int, end: int | None, payload: int) -> int: ...
    def try_claim(self, key: str, begin: int = 0, end: int | None = None) -> CacheClaim | None: ...

class Engine:
    def __init__(
        self, fields: Sequence[FieldSpec], options: EngineOptions, cached: Mapping[int, CachedArray] = ...
    ) -> None: ...
    def start(
        self, plan: EpochPlan, max_open_batches: int, *, short_of_memory: bool = False, keep_bytes: int = 0
    ) -> None: ...
    def next(self) -> tuple[int, tuple[object, ...], _Skipped | None] | None: ...
    def stop(self) -> None: ...
    def provide_buffers(self, addresses: list[int]) -> None: ...
    def request_descriptor(self) -> int: ...
    def take_requests(self) -> tuple[list[FetchRequest], list[int]]: ...
    def request_epoch(self) -> int: ...
    def exchange(
        self, epoch: int, answers: Sequence[tuple[int, npt.NDArray[np.uint8] | None]]
    ) -> tuple[FetchRequest, list[int], int] | None: ...
    def answer(self, answers: Sequence[tuple[int, npt.NDArray[np.uint8] | None]]) -> None: ...
    def refuse(self, request_id: int, what: str, errno_value: int) -> None: ...
    def refuse_corrupt(self, request_id: int, what: str) -> None: ...
    def stats(self) -> dict[str, int]: ...

class ChunkChecker:
    def __init__(self, array: ArraySpec, *, max_retries: int = 0, timeout_s: float = 3600.0) -> None: ...
    def num_numbers(self) -> int: ...
    def check(
        self, begin: int, end: int
    ) -> tuple[int, int, int, list[tuple[int, int, str, str, tuple[str, str] | None]]]: ...
    def check_bytes(self, stored: npt.NDArray[np.uint8]) -> None: ...

def resize_pixels(
    dest: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8], box: tuple[int, int, int, int], mirrored: bool
) -> None: ...
def process_start(process: int) -> int: ...
def codec_kinds() -> dict[str, str]: ...
def undo_codec(codec: CodecSpec, stored: memoryview, most: int) -> bytes: ...
def is_transient(errno_value: int) -> bool: ...
def is_of_chunk(errno_value: int) -> bool: ...
def pause_after(tries: int) -> float: ...
def required_open_batches(plan: EpochPlan, batch_size: int) -> int: ...
def sample_order(plan: EpochPlan) -> npt.NDArray[np.int64]: ...
def draw_counts(
    *,
    expected: npt.NDArray[np.int64],
    bits: int,
    rows: npt.NDArray[np.int64],
    seed: int,
    epoch: int,
) -> npt.NDArray[np.int64]: ...
def pack_sequences(
    *, lengths: npt.NDArray[np.int64], pool_begin: npt.NDArray[np.int64], room: int
) -> npt.NDArray[np.int64]: ...
def copy_runs(
    source: npt.NDArray[np.generic],
    begin: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
    *,
    item_bytes: int,
    out: npt.NDArray[np.generic],
) -> int: ...
def runs_together(extents: Sequence[tuple[int, int]], *, gap: int, limit: int) -> list[int]: ...
def parse_shard_index(shard: ShardSpec, stored: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]: ...
def measure_ceiling(
    field: FieldSpec,
    *,
    num_threads: int,
    window_chunks: int,
    scatter: bool,
    blocks: Sequence[int] = (),
    copies: int = 1,
) -> tuple[float, int, int, float]: ...
def measure_patch_ceiling(
    field: FieldSpec,
    starts: npt.NDArray[np.int64],
    *,
    num_threads: int,
    window_patches: int,
    out: npt.NDArray[np.uint8] | None = None,
) -> tuple[float, int, int]: ...
def measure_library_ceiling(
    field: FieldSpec,
    *,
    num_threads: int,
    window_chunks: int,
    out: npt.NDArray[np.uint8] | None = None,
    blosc2_library: str = "",
) -> tuple[float, int, int]: ...
