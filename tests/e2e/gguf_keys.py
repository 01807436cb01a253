"""Gives a copy of a GGUF file more metadata."""
import struct


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def skip_value(data, at, kind):
    """The offset behind a value."""
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind == 9:
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip_value(data, at, inner)
        return at
    return at + {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}[kind]


def with_ids(source, target, ids):
    """`ids`: keys and unsigned numbers. Tensor data keeps its order and is aligned anew, to 32 bytes."""
    data = source.read_bytes()
    _, _, tensors, keys = struct.unpack_from("<IIQQ", data, 0)
    at = 24
    for _ in range(keys):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at = skip_value(data, at + 4, struct.unpack_from("<I", data, at)[0])
    end_of_keys = at
    for _ in range(tensors):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    more = b"".join(string(key) + struct.pack("<II", 4, number) for key, number in ids.items())
    header = data[:16] + struct.pack("<Q", keys + len(ids)) + data[24:end_of_keys] + more + data[end_of_keys:at]
    start = (at + 31) // 32 * 32
    target.write_bytes(header + b"\0" * (-len(header) % 32) + data[start:])
