"""Files into memory at the disk's speed, and the tensors of a GGUF file where they lie in it."""
from __future__ import annotations

import ctypes
import dataclasses
import struct
from typing import Any, Iterator

from . import _library as c
from ._array import Array, _Owner

# GGUF type id -> name, elements and bytes of a block, buffer format where an element is a number by itself.
_TYPES = {0: ("F32", 1, 4, "f"), 1: ("F16", 1, 2, "e"), 2: ("Q4_0", 32, 18, ""), 3: ("Q4_1", 32, 20, ""),
          6: ("Q5_0", 32, 22, ""), 7: ("Q5_1", 32, 24, ""), 8: ("Q8_0", 32, 34, ""), 10: ("Q2_K", 256, 84, ""),
          11: ("Q3_K", 256, 110, ""), 12: ("Q4_K", 256, 144, ""), 13: ("Q5_K", 256, 176, ""), 14: ("Q6_K", 256, 210, ""),
          16: ("IQ2_XXS", 256, 66, ""), 17: ("IQ2_XS", 256, 74, ""), 18: ("IQ3_XXS", 256, 98, ""),
          19: ("IQ1_S", 256, 50, ""), 20: ("IQ4_NL", 32, 18, ""), 21: ("IQ3_S", 256, 110, ""), 22: ("IQ2_S", 256, 82, ""),
          23: ("IQ4_XS", 256, 136, ""), 24: ("I8", 1, 1, "b"), 25: ("I16", 1, 2, "h"), 26: ("I32", 1, 4, "i"),
          27: ("I64", 1, 8, "q"), 28: ("F64", 1, 8, "d"), 29: ("IQ1_M", 256, 56, ""), 30: ("BF16", 1, 2, "h"),
          34: ("TQ1_0", 256, 54, ""), 35: ("TQ2_0", 256, 66, ""), 39: ("MXFP4", 32, 17, ""), 40: ("NVFP4", 64, 36, ""),
          41: ("Q1_0", 128, 18, ""), 42: ("Q2_0", 64, 18, "")}
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Loader:
    """Reads of one file, many at once: io_uring with O_DIRECT where that works, else what comes next to it."""

    def __init__(self, path: str, *, backend: str = "auto", queue_depth: int = 0, request_bytes: int = 0):
        options = c.defaults(c.LoaderOptions, "millrace_loader_options_init")
        options.backend, options.queue_depth, options.request_bytes = backend.encode(), queue_depth, request_bytes
        self._handle = ctypes.c_void_p()
        c.check(c.lib.millrace_loader_open(str(path).encode(), options, self._handle))

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            c.lib.millrace_loader_close(handle)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    @property
    def backend(self) -> str:
        """What was chosen, such as "io_uring+O_DIRECT"."""
        return c.lib.millrace_loader_backend(self._handle).decode()

    @property
    def file_bytes(self) -> int:
        return c.lib.millrace_loader_file_bytes(self._handle)

    def read(self, offset: int = 0, size: int | None = None) -> Array:
        """[size] bytes from `offset` on, in memory of their own, to which they go without a copy."""
        size = self.file_bytes - offset if size is None else size
        block, begin = ctypes.c_void_p(), ctypes.c_void_p()
        c.check(c.lib.millrace_loader_allocate(offset, size, block, begin))
        array = Array(begin.value or 0, (size,), "B", _Owner(lambda: c.lib.millrace_free(block)))
        number = ctypes.c_uint64()
        c.check(c.lib.millrace_loader_enqueue(self._handle, offset, size, begin, 1, number))
        c.check(c.lib.millrace_loader_submit(self._handle))
        c.check(c.lib.millrace_loader_wait(self._handle, number))
        return array


def load_file(path: str, *, backend: str = "auto") -> Array:
    """A whole file: `memoryview(load_file(path).view)`, or numpy.from_dlpack(load_file(path))."""
    with Loader(path, backend=backend) as loader:
        return loader.read()


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str  # as GGUF tools print it, "Q4_K"
    shape: tuple[int, ...]  # rows first: the last is what a row has
    offset: int  # in the file
    nbytes: int
    format: str  # of the buffer protocol; "" for blocks


class _Reader:
    """Fields of a GGUF header, with bounds."""

    def __init__(self, data: memoryview):
        self._data, self.at = data, 0

    def scalar(self, format: str) -> Any:
        try:
            (value,) = struct.unpack_from(format, self._data, self.at)
        except struct.error:
            raise c.MillraceError("corrupt", "the file ends within its header") from None
        self.at += struct.calcsize(format)
        return value

    def text(self) -> str:
        length = self.scalar("<Q")
        if length > len(self._data) - self.at:
            raise c.MillraceError("corrupt", "the file ends within its header")
        value = bytes(self._data[self.at:self.at + length])
        self.at += length
        return value.decode(errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == 8:
            return self.text()
        if kind == 9 and depth < 4:
            kind, count = self.scalar("<I"), self.scalar("<Q")
            if count > len(self._data):
                raise c.MillraceError("corrupt", "a list is longer than the file")
            return [self.value(kind, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise c.MillraceError("corrupt", f"metadata of an unknown kind {kind}")
        return self.scalar(_SCALARS[kind])


class ModelFile:
    """A GGUF file in memory, its tensors where they lie."""

    def __init__(self, path: str, *, backend: str = "auto"):
        self._path = str(path)
        self._file = load_file(path, backend=backend)
        reader = _Reader(self._file.view)
        if reader.scalar("<I") != 0x46554747 or reader.scalar("<I") not in (2, 3):
            raise c.MillraceError("corrupt", f"{path}: is no GGUF file of version 2 or 3")
        tensors, pairs = reader.scalar("<Q"), reader.scalar("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = reader.text()
            self.metadata[key] = reader.value(reader.scalar("<I"))
        rows = [(reader.text(), [reader.scalar("<Q") for _ in range(self._dimensions(reader))], reader.scalar("<I"), reader.scalar("<Q"))
                for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise c.MillraceError("corrupt", f"{path}: an alignment of {alignment!r}")
        begin = -(-reader.at // alignment) * alignment
        self._tensors = {row[0]: self._tensor(*row, begin) for row in rows}

    def _dimensions(self, reader: _Reader) -> int:
        count = reader.scalar("<I")
        if count > 8:
            raise c.MillraceError("corrupt", f"{self._path}: a tensor of {count} dimensions")
        return count

    def _tensor(self, name: str, dims: list[int], kind: int, offset: int, begin: int) -> Tensor:
        if kind not in _TYPES:
            raise c.MillraceError("unsupported", f"{self._path}: {name} is of type {kind}, which is not known")
        dtype, block, block_bytes, format = _TYPES[kind]
        count = 1
        for n in dims:
            count *= n
        if (dims and dims[0] % block != 0) or begin + offset + count // block * block_bytes > self._file.nbytes:
            raise c.MillraceError("corrupt", f"{self._path}: {name} ends after the file, or within a block")
        return Tensor(name, dtype, tuple(reversed(dims)), begin + offset, count // block * block_bytes, format)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._tensors.values())

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def view_tensor(self, name: str) -> Array:
        """A tensor where it lies in the file's memory, without a copy. Blocks, and bfloat16's numbers, have no format that
        others know: blocks come as [rows ..., bytes of a row], bfloat16 as its bits in int16; dequantize makes floats of
        both."""
        tensor = self._tensors[name]
        shape = tensor.shape
        if not tensor.format:
            _, block, block_bytes, _ = next(row for row in _TYPES.values() if row[0] == tensor.dtype)
            shape = (*shape[:-1], shape[-1] // block * block_bytes)
        return Array(self._file._address + tensor.offset, shape, tensor.format or "B", self._file, tensor.dtype)
