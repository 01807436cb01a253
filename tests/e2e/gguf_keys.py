"""Gives a copy of a GGUF file more metadata, or one more tensor."""
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


def value(of):
    """A key's value: a text, or an unsigned number."""
    return struct.pack("<I", 8) + string(of) if isinstance(of, str) else struct.pack("<II", 4, of)


class Layout:
    """Where keys, the list of tensors and their data end or begin; `found`: a tensor's name to its columns, rows, type and offset."""

    def __init__(self, data):
        _, _, tensors, self.keys = struct.unpack_from("<IIQQ", data, 0)
        at = 24
        for _ in range(self.keys):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
            at = skip_value(data, at + 4, struct.unpack_from("<I", data, at)[0])
        self.end_of_keys = at
        self.found = {}
        for _ in range(tensors):
            length = struct.unpack_from("<Q", data, at)[0]
            name = data[at + 8:at + 8 + length].decode()
            at += 8 + length
            dimensions = struct.unpack_from("<I", data, at)[0]
            shape = struct.unpack_from(f"<{dimensions}Q", data, at + 4)
            at += 4 + 8 * dimensions
            kind, offset = struct.unpack_from("<IQ", data, at)
            at += 12
            self.found[name] = (shape[0], shape[1] if dimensions > 1 else 1, kind, offset)
        self.end_of_tensors = at
        self.data = (at + 31) // 32 * 32


def with_keys(source, target, keys, tensor=None):
    """`tensor`: a name and rows of float32 numbers. Tensor data keeps its order and is aligned anew, to 32 bytes."""
    data = source.read_bytes()
    layout = Layout(data)
    more = b"".join(string(key) + value(of) for key, of in keys.items())
    body = data[layout.data:]
    entry = b""
    if tensor:
        name, rows = tensor
        body += b"\0" * (-len(body) % 32)
        entry = string(name) + struct.pack("<IQQIQ", 2, len(rows[0]), len(rows), 0, len(body))
        body += b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    header = (data[:8] + struct.pack("<QQ", len(layout.found) + bool(tensor), layout.keys + len(keys)) + data[24:layout.end_of_keys] + more
              + data[layout.end_of_keys:layout.end_of_tensors] + entry)
    target.write_bytes(header + b"\0" * (-len(header) % 32) + body)
