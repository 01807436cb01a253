"""Writes GGUF files, version 3: what the reference checkpoints need of the format, with numpy alone."""

import struct

import numpy as np

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10  # ids of key types
TENSOR_F32, TENSOR_F16, TENSOR_I32, TENSOR_I64, TENSOR_MXFP4 = 0, 1, 26, 27, 39  # ids of tensor types
MXFP4_BLOCK = 32
MXFP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # E2M1; bit 3 of a code is the sign


def _string(text):
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _scalar(value):
    """(type id, bytes) of one value. Python's int is written as uint32, or as int32 where it is negative."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return (U32, struct.pack("<I", value)) if value >= 0 else (I32, struct.pack("<i", value))
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    return STRING, _string(value)


def _value(value):
    if not isinstance(value, list):
        return _scalar(value)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):  # int32, as converters write them
        kind, parts = I32, [struct.pack("<i", item) for item in value] if max(value, default=0) < 2**31 else None
        if parts is None:
            kind, parts = U64, [struct.pack("<Q", item) for item in value]
    else:
        kinds, parts = zip(*(_scalar(item) for item in value))
        kind = kinds[0]
        if any(other != kind for other in kinds):
            raise ValueError(f"a list of several types: {value}")
    return ARRAY, struct.pack("<IQ", kind, len(parts)) + b"".join(parts)


def exactly_f16(values):
    half = values.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), values):
        raise ValueError("values that F16 does not hold exactly")
    return half


def _mxfp4_codes(blocks):
    """Of the nearest values: exponents [blocks, 1], by each block's largest value, and magnitude codes [blocks, 32]."""
    largest = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), 1e-6)
    exponents = np.ceil(np.log2(largest / MXFP4_VALUES[-1]))
    return exponents, np.abs(np.abs(blocks / np.exp2(exponents))[..., None] - MXFP4_VALUES).argmin(axis=-1)


def round_to_mxfp4(values):
    """The nearest values that MXFP4 holds; its blocks run along the last axis."""
    blocks = values.reshape(-1, MXFP4_BLOCK)
    exponents, codes = _mxfp4_codes(blocks)
    return (np.sign(blocks) * MXFP4_VALUES[codes] * np.exp2(exponents)).reshape(values.shape).astype(np.float32)


def exactly_mxfp4(values):
    """Blocks of 17 bytes: the scale's exponent + 127, then codes of elements i (low nibble) and i + 16 (high)."""
    if not np.array_equal(round_to_mxfp4(values), values):
        raise ValueError("values that MXFP4 does not hold exactly")
    blocks = values.reshape(-1, MXFP4_BLOCK)
    exponents, codes = _mxfp4_codes(blocks)
    nibbles = (codes | np.where(blocks < 0, 8, 0)).astype(np.uint8)
    half = MXFP4_BLOCK // 2
    return np.concatenate([(exponents + 127).astype(np.uint8), nibbles[:, :half] | (nibbles[:, half:] << 4)], axis=1)


def _payload(values, kind):
    if kind in (TENSOR_I32, TENSOR_I64):
        return np.ascontiguousarray(values, dtype=np.int32 if kind == TENSOR_I32 else np.int64).tobytes()
    values = np.ascontiguousarray(values, dtype=np.float32)
    if kind == TENSOR_F32:
        return values.tobytes()
    if kind == TENSOR_F16:
        return exactly_f16(values).tobytes()
    if kind == TENSOR_MXFP4:
        return exactly_mxfp4(values).tobytes()
    raise ValueError(f"tensor type {kind}")


def pack(keys, tensors):
    """A whole file as bytes. keys: {name: value}; tensors: [(name, float array in C order, tensor type id)]. An array
    of shape [rows, columns] is written with GGUF's dimensions columns, rows. Values that the type does not hold
    exactly are refused."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    for name, value in keys.items():
        kind, encoded = _value(value)
        parts += [_string(name), struct.pack("<I", kind), encoded]
    payloads, offset = [], 0
    for name, values, kind in tensors:
        payload = _payload(values, kind)
        payload += b"\0" * (-len(payload) % ALIGNMENT)
        dims = values.shape[::-1]
        parts += [_string(name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)]
        payloads.append(payload)
        offset += len(payload)
    header = b"".join(parts)
    return header + b"\0" * (-len(header) % ALIGNMENT) + b"".join(payloads)
