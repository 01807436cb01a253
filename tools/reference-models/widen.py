"""A GGUF file with its F16 weights as F32, by Python alone: a program that rounds what it multiplies with F16 weights
to F16 rounds nothing there. Tensors of other types stay as they are."""

import struct

ALIGNMENT = 32
F32, F16 = 0, 1  # ids of tensor types
STRING, ARRAY = 8, 9  # ids of key types
VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by id of key type


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def numbers(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def string(self):
        (size,) = self.numbers("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            item, count = self.numbers("IQ")
            for _ in range(count):
                self.skip_value(item)
        else:
            self.at += VALUE_BYTES[kind]


def _tensors(reader, count):
    """[(name, dims, type, offset)]"""
    tensors = []
    for _ in range(count):
        name = reader.string()
        (rank,) = reader.numbers("I")
        dims = reader.numbers(f"{rank}Q")
        tensors.append((name, dims, *reader.numbers("IQ")))
    return tensors


def widened(data):
    """The bytes of a file of gguf.py, widened."""
    reader = Reader(data)
    magic, version, tensor_count, key_count = reader.numbers("4sIQQ")
    if (magic, version) != (b"GGUF", 3):
        raise ValueError("no GGUF file of version 3")
    for _ in range(key_count):
        name = reader.string()
        if name == b"general.alignment":
            raise ValueError("an alignment of its own")
        (kind,) = reader.numbers("I")
        reader.skip_value(kind)
    keys_end = reader.at
    tensors = _tensors(reader, tensor_count)
    start = -(-reader.at // ALIGNMENT) * ALIGNMENT
    ends = [offset for *_, offset in tensors[1:]] + [len(data) - start]  # they follow each other in the file
    parts, payloads, offset = [data[:keys_end]], [], 0
    for (name, dims, kind, at), end in zip(tensors, ends):
        payload = data[start + at : start + end]
        if kind == F16:
            count = 1
            for dim in dims:
                count *= dim
            payload = struct.pack(f"<{count}f", *struct.unpack_from(f"<{count}e", payload))
            kind = F32
        payload += b"\0" * (-len(payload) % ALIGNMENT)
        parts += [struct.pack("<Q", len(name)), name, struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)]
        payloads.append(payload)
        offset += len(payload)
    header = b"".join(parts)
    return header + b"\0" * (-len(header) % ALIGNMENT) + b"".join(payloads)
