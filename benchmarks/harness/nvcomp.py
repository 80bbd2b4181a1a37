"""nvCOMP's batched decompression, by its C functions: many small streams at once, each decoded by a part of the GPU.

The functions and their argument order are those of nvcomp/lz4.h, zstd.h, deflate.h and gzip.h of nvCOMP 6. Their
options are structures of 64 bytes that are passed by value, and zeros are the defaults of all four.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch

#: Codec of a stream -> nvCOMP's name of it; blosclz is Blosc's own, and nvCOMP does not have it.
ALGORITHMS = {"lz4": "LZ4", "zstd": "Zstd", "zlib": "Deflate", "gzip": "Gzip"}
_MAJOR = 6
_INSTALL = "pip install nvidia-libnvcomp-cu12, or -cu13"


class NoNvcompError(Exception):
    """nvCOMP is not installed, or another version of it."""


class _Options(ctypes.Structure):
    _fields_ = [("zeros", ctypes.c_uint64 * 8)]


class _Properties(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32)]


class _Alignments(ctypes.Structure):
    _fields_ = [("input", ctypes.c_size_t), ("output", ctypes.c_size_t), ("temp", ctypes.c_size_t)]


_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p


class Nvcomp:
    """The library; `library` is what ctypes loaded, or an object with the same functions."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def find(cls) -> Self:
        """Load the library of the wheel.

        Raises
        ------
        NoNvcompError
            If it is not installed, cannot be loaded, or has another major version.
        """
        try:
            spec = find_spec("nvidia.libnvcomp")
        except ModuleNotFoundError:  # there is no package `nvidia`
            spec = None
        files = [
            file for folder in (spec and spec.submodule_search_locations) or [] for file in _libraries(Path(folder))
        ]
        if not files:
            raise NoNvcompError(f"nvCOMP is not installed ({_INSTALL})")
        try:
            found = cls(ctypes.CDLL(str(files[0])))
        except OSError as error:
            raise NoNvcompError(f"nvCOMP cannot be loaded: {error}") from error
        if not found.version().startswith(f"{_MAJOR}."):
            raise NoNvcompError(f"nvCOMP {found.version()} is installed, and nvCOMP {_MAJOR} is needed ({_INSTALL})")
        return found

    def version(self) -> str:
        """Return the version, such as "6.0.0"."""
        properties = _Properties()
        self._check("nvcompGetProperties", self._library.nvcompGetProperties(ctypes.byref(properties)))
        major, rest = divmod(properties.version, 1000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def alignment(self, codec: str) -> int:
        """Return the number of bytes of which the offset of a compressed stream must be a multiple."""
        found = _Alignments()
        function = self._function(codec, "GetRequiredAlignments", [_Options, _POINTER])
        self._check(function.__name__, function(_Options(), ctypes.byref(found)))
        return int(found.input)

    def temp_bytes(self, codec: str, streams: int, most_bytes: int, total_bytes: int) -> int:
        """Return how much memory of the device decompression needs besides.

        `most_bytes` and `total_bytes` are decoded ones, of the largest stream and of all.
        """
        found = _SIZE()
        function = self._function(codec, "GetTempSize", [_SIZE, _SIZE, _Options, _POINTER, _SIZE, _POINTER])
        status = function(streams, most_bytes, _Options(), ctypes.byref(found), total_bytes, None)
        self._check(function.__name__, status)
        return found.value

    def decompress(
        self,
        codec: str,
        *,
        sources: torch.Tensor,
        source_sizes: torch.Tensor,
        targets: torch.Tensor,
        target_sizes: torch.Tensor,
        actual_sizes: torch.Tensor,
        statuses: torch.Tensor,
        temp: torch.Tensor,
        stream: int,
    ) -> None:
        """Begin to decompress streams.

        Parameters
        ----------
        sources, targets
            Pointers to the memory of each stream on the device, and to where it goes; int64, on the device.
        source_sizes, target_sizes
            Bytes of both; int64, on the device.
        actual_sizes, statuses
            Memory on the device for what came out: int64 and int32. A status of 0 is a success.
        temp
            Memory on the device, of `temp_bytes`.
        stream
            The CUDA stream's handle.
        """
        arguments = [_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _Options, _POINTER]
        function = self._function(codec, "Async", [*arguments, _POINTER])
        status = function(
            sources.data_ptr(),
            source_sizes.data_ptr(),
            target_sizes.data_ptr(),
            actual_sizes.data_ptr(),
            len(sources),
            temp.data_ptr(),
            temp.nbytes,
            targets.data_ptr(),
            _Options(),
            statuses.data_ptr(),
            stream,
        )
        self._check(function.__name__, status)

    def _function(self, codec: str, name: str, arguments: list[Any]) -> Any:
        function = getattr(self._library, f"nvcompBatched{ALGORITHMS[codec]}Decompress{name}")
        function.argtypes = arguments
        return function

    def _check(self, name: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{name} returned {status}; nvcomp/shared_types.h says what it means")


def _libraries(package: Path) -> list[Path]:
    return sorted(file for folder in ("lib64", "lib") for file in (package / folder).glob("libnvcomp.so.*"))
