"""Weights in blocks made floats, and multiplied as the engine does it."""
from __future__ import annotations

import array
import contextlib
import ctypes
import math
from typing import TYPE_CHECKING, Any, Iterator, Protocol, Sequence, Union

from . import _library as c
from ._array import Array, _Owner
from .loader import _TYPES

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Lender(Protocol):
    def __dlpack__(self, *arguments: Any, **options: Any) -> Any: ...


Data = Union[Array, "Buffer", _Lender]  # memory with the processor, by the buffer protocol or DLPack
_NUMBERS = {"f": "F32", "e": "F16", "b": "I8", "h": "I16", "i": "I32", "q": "I64", "d": "F64"}
_SIMPLE = 0  # PyBUF_SIMPLE: the bytes, which lie together


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer: ctypes alone gives no address of memory that must not be written."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int], ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_PyBuffer)], None


@contextlib.contextmanager
def _bytes_of(view: memoryview) -> Iterator[tuple[int, int]]:
    """Address and count of its bytes. Raises BufferError where they do not lie together."""
    buffer = _PyBuffer()
    _get_buffer(view, buffer, _SIMPLE)
    try:
        yield buffer.buf or 0, buffer.len
    finally:
        _release_buffer(buffer)


def _view(data: Data) -> memoryview:
    if isinstance(data, Array):
        # Python before 3.12 has no float16 here: its bits.
        return data.view if data.format != "e" else memoryview(data._memory).cast("B").cast("h", data.shape)
    try:
        return memoryview(data)
    except TypeError:
        if not hasattr(data, "__dlpack__"):
            raise
    import numpy  # what reads DLPack

    return memoryview(numpy.from_dlpack(data))


def _format(data: Data, view: memoryview) -> str:
    """The format of one element, as struct names it on this machine; "B" for bytes."""
    return data.format if isinstance(data, Array) else view.format.lstrip("@=<")


def _floats(x: Data | Sequence[float]) -> memoryview:
    """A vector's numbers as float32: where they lie if that is what they are, else a copy."""
    if isinstance(x, (list, tuple)):
        return memoryview(array.array("f", x))
    view = _view(x)
    format = _format(x, view)
    if format == "e" or (isinstance(x, Array) and x.type not in (None, *_NUMBERS.values())):
        view, format = dequantize(x).view, "f"
    if view.ndim != 1:
        raise c.MillraceError("invalid_argument", f"x has {view.ndim} dimensions, and is to be a vector")
    if format != "f":
        return memoryview(array.array("f", view.tolist()))
    if view.c_contiguous:
        with _bytes_of(view) as (address, _):
            if address % 4 == 0:
                return view
    return memoryview(bytearray(view.tobytes())).cast("f")


def _type_id(data: Data, view: memoryview, type: str | int | None) -> int:
    """The type that was named, or the one that the data have of themselves."""
    name = data.type if isinstance(data, Array) else None
    name = type if type is not None else name or _NUMBERS.get(_format(data, view))
    if name is None:
        raise c.MillraceError("invalid_argument", 'of bytes the type must be given, such as type="Q4_K"')
    for id, (known, *_) in _TYPES.items():
        if name == id or (isinstance(name, str) and name.upper() == known):
            return id
    raise c.MillraceError("unsupported", f"tensor type {name!r} is not one that this version knows")


def _shape_of(view: memoryview, id: int, shape: Sequence[int] | None) -> tuple[int, ...]:
    """The shape that was given, or the data's own with the last axis counted in weights instead of bytes."""
    name, block, block_bytes, _ = _TYPES[id]
    if shape is None:
        own = view.shape or (1,)
        shape = (*own[:-1], own[-1] * view.itemsize // block_bytes * block)
    shape = tuple(shape)
    if not shape or min(shape) < 1:
        raise c.MillraceError("invalid_argument", f"a tensor of shape {shape}")
    if shape[-1] % block != 0 or math.prod(shape) // block * block_bytes != view.nbytes:
        raise c.MillraceError("invalid_argument", f"{view.nbytes} bytes are not a {name} tensor of shape {shape}, "
                              f"in blocks of {block} weights in {block_bytes} bytes")
    return shape


def _new(shape: tuple[int, ...]) -> Array:
    block, begin = ctypes.c_void_p(), ctypes.c_void_p()
    c.check(c.lib.millrace_loader_allocate(0, 4 * math.prod(shape), block, begin))
    return Array(begin.value or 0, shape, "f", _Owner(lambda: c.lib.millrace_free(block)))


def dequantize(data: Data, *, type: str | int | None = None, shape: Sequence[int] | None = None,
               threads: int = 0) -> Array:
    """What each weight is, in float32: dequantize(model.view_tensor(name)).

    data: a tensor from view_tensor, or anything with the buffer protocol or DLPack whose bytes lie together.
    type: its name or GGUF id; shape: [rows ..., weights of a row]. A tensor from view_tensor has both; of other data that
    are numbers by themselves the type is theirs, and without a shape the last axis is a row's bytes.
    Raises MillraceError: "unsupported" (no such type, or one of integers), "invalid_argument" (sizes that do not match).
    """
    view = _view(data)
    id = _type_id(data, view, type)
    shape = _shape_of(view, id, shape)
    out = _new(shape)
    with _bytes_of(view) as (address, size):
        c.check(c.lib.millrace_dequantize(id, address, size, math.prod(shape[:-1]), shape[-1], out._address, threads))
    return out


def gemv(weight: Data, x: Data | Sequence[float], *, type: str | int | None = None, shape: Sequence[int] | None = None,
         threads: int = 0) -> Array:
    """weight @ x as the engine computes it, [rows] in float32: gemv(model.view_tensor(name), x).

    weight: [rows, columns], given as to dequantize. x: [columns], of which float32 is taken where it lies. With weights
    in blocks x is rounded to 8-bit integers with a scale for each 32, as the engine has it. threads: 0: all processors.
    """
    view = _view(weight)
    id = _type_id(weight, view, type)
    shape = _shape_of(view, id, shape)
    vector = _floats(x)
    if len(shape) != 2 or len(vector) != shape[1]:
        raise c.MillraceError("invalid_argument", f"weight of shape {shape} times x of {len(vector)} numbers")
    y = _new(shape[:1])
    with _bytes_of(view) as (address, size), _bytes_of(vector) as (numbers, _):
        c.check(c.lib.millrace_gemv(id, address, size, *shape, numbers, y._address, threads))
    return y
