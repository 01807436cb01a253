"""Memory that others may read without a copy: by the buffer protocol, and by DLPack (numpy, torch, jax ...)."""
from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any, Callable

_c = ctypes
# Buffer format -> DLPack's type code and bits.
_DLPACK = {"f": (2, 32), "e": (2, 16), "d": (2, 64), "b": (0, 8), "h": (0, 16), "i": (0, 32), "q": (0, 64), "B": (1, 8)}
_BYTES = {"f": 4, "e": 2, "d": 8, "b": 1, "h": 2, "i": 4, "q": 8, "B": 1}


class _DLTensor(_c.Structure):
    _fields_ = [("data", _c.c_void_p), ("device_type", _c.c_int32), ("device_id", _c.c_int32), ("ndim", _c.c_int32),
                ("code", _c.c_uint8), ("bits", _c.c_uint8), ("lanes", _c.c_uint16), ("shape", _c.POINTER(_c.c_int64)),
                ("strides", _c.POINTER(_c.c_int64)), ("byte_offset", _c.c_uint64)]


class _DLManagedTensor(_c.Structure):
    pass


_Deleter = _c.CFUNCTYPE(None, _c.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", _c.c_void_p), ("deleter", _Deleter)]

_lent: dict[int, tuple] = {}  # address of a managed tensor -> what must live as long as its reader


@_Deleter
def _give_back(managed) -> None:
    _lent.pop(_c.addressof(managed.contents), None)


_CapsuleDestructor = _c.CFUNCTYPE(None, _c.c_void_p)
_is_valid = _c.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [_c.c_void_p, _c.c_char_p], _c.c_int
_pointer_of = _c.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [_c.c_void_p, _c.c_char_p], _c.c_void_p
_new_capsule = _c.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = [_c.c_void_p, _c.c_char_p, _CapsuleDestructor], _c.py_object


@_CapsuleDestructor
def _drop(capsule) -> None:
    if _is_valid(capsule, b"dltensor"):  # nobody took it: who takes it renames it
        _lent.pop(_pointer_of(capsule, b"dltensor"), None)


class _Owner:
    """Calls `release` when the last view of the memory has gone."""

    def __init__(self, release: Callable[[], None]):
        self._release = release

    def __del__(self) -> None:
        self._release()


class Array:
    """Rows of numbers in memory of the library: `memoryview(array.view)`, `numpy.from_dlpack(array)`,
    `torch.from_dlpack(array)`, or by index. The memory lives as long as any of these. From Python 3.12 on,
    `memoryview(array)` and all else that takes buffers have it without `.view`. type: of a tensor in a file, "Q4_K"."""

    def __init__(self, address: int, shape: tuple[int, ...], format: str, owner: Any, type: str | None = None):
        self.shape = tuple(shape)
        self.format = format
        self.type = type
        count = 1
        for n in self.shape:
            count *= n
        self._memory = (_c.c_char * (count * _BYTES[format])).from_address(address)
        self._memory.owner = owner  # a view of it keeps it, and so its owner
        self._address = address

    @property
    def view(self) -> memoryview:
        flat = memoryview(self._memory).cast("B")
        if self.format == "e" and sys.version_info < (3, 12):
            raise BufferError("Python before 3.12 has no memoryview of float16; take dequantize(array), array.tolist() or "
                              "numpy.from_dlpack(array)")
        return flat.cast(self.format, self.shape) if self.format != "B" or len(self.shape) != 1 else flat

    def __buffer__(self, flags: int) -> memoryview:
        return self.view

    @property
    def nbytes(self) -> int:
        return len(self._memory)

    def tolist(self) -> list:
        if self.format != "e":
            return self.view.tolist()
        rows: list = [x for x, in struct.iter_unpack("=e", self._memory)]  # what every Python reads
        for n in reversed(self.shape[1:]):
            rows = [rows[i:i + n] for i in range(0, len(rows), n)]
        return rows

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index):
        return self.tolist()[index] if len(self.shape) > 1 or self.format == "e" else self.view[index]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the processor's memory

    def __dlpack__(self, *, stream: Any = None, **_: Any):
        code, bits = _DLPACK[self.format]
        shape = (_c.c_int64 * len(self.shape))(*self.shape)
        managed = _DLManagedTensor(_DLTensor(self._address, 1, 0, len(self.shape), code, bits, 1, shape, None, 0), None, _give_back)
        at = _c.addressof(managed)
        _lent[at] = (managed, shape, self._memory)
        return _new_capsule(at, b"dltensor", _drop)
