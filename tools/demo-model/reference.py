"""Turns the reference logits that train.py wrote into the plain binary that the tests read.

    python3 reference.py CHECKPOINT_DIR/reference_logits.npz OUT.bin

Needs nothing beyond Python. The format of OUT.bin stands in tests/data/reference/README.md.
"""

import ast
import struct
import sys
import zipfile

MAGIC = b"MRLOGITS"
VERSION = 1


def read_npy(data):
    """(dtype text, shape, payload) of one array in numpy's .npy format, versions 1 to 3, C order."""
    if data[:6] != b"\x93NUMPY":
        raise ValueError("not an .npy array")
    length_bytes = 2 if data[6] == 1 else 4
    begin = 8 + length_bytes
    end = begin + int.from_bytes(data[8:begin], "little")
    header = ast.literal_eval(data[begin:end].decode("latin-1"))
    if header["fortran_order"]:
        raise ValueError("column-major arrays are not read")
    return header["descr"], header["shape"], data[end:]


def read_prompts(path):
    """(text, tokens as int32 bytes, logits as float32 bytes, token count, vocabulary) of each prompt."""
    with zipfile.ZipFile(path) as archive:
        count = sum(name.startswith("logits_") for name in archive.namelist())
        for j in range(count):
            text_type, _, text = read_npy(archive.read(f"text_{j}.npy"))
            tokens_type, (token_count,), tokens = read_npy(archive.read(f"tokens_{j}.npy"))
            logits_type, (rows, vocabulary), logits = read_npy(archive.read(f"logits_{j}.npy"))
            if text_type[:2] != "<U" or tokens_type != "<i4" or logits_type != "<f4" or rows != token_count:
                raise ValueError(f"prompt {j}: unexpected types or shapes")
            yield text.decode("utf-32-le").rstrip("\0"), tokens, logits, token_count, vocabulary


def pack(prompts):
    prompts = list(prompts)
    parts = [MAGIC, struct.pack("<II", VERSION, len(prompts))]
    for text, tokens, logits, token_count, vocabulary in prompts:
        encoded = text.encode()
        padding = -len(encoded) % 4
        parts.append(struct.pack("<III", len(encoded), token_count, vocabulary))
        parts += [encoded, b"\0" * padding, tokens, logits]
    return b"".join(parts)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: reference.py CHECKPOINT_DIR/reference_logits.npz OUT.bin")
    with open(sys.argv[2], "wb") as out:
        out.write(pack(read_prompts(sys.argv[1])))


if __name__ == "__main__":
    main()
