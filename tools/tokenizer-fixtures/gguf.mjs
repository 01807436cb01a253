// Reads and writes the metadata of a GGUF v3 file without tensors. Source: the GGUF specification.
import { readFileSync, writeFileSync } from "node:fs";

export const TYPE = { u8: 0, i8: 1, u16: 2, i16: 3, u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9, u64: 10, i64: 11, f64: 12 };

/** Metadata as a Map from key to {type, value}; an array's value is {type, values}. Strings are Buffers. */
export function readMetadata(path) {
  const bytes = readFileSync(path);
  let at = 8;
  const u32 = () => ((at += 4), bytes.readUInt32LE(at - 4));
  const u64 = () => ((at += 8), Number(bytes.readBigUInt64LE(at - 8)));
  const string = () => {
    const length = u64();
    at += length;
    return bytes.subarray(at - length, at);
  };
  const scalar = {
    [TYPE.u8]: () => bytes[at++],
    [TYPE.bool]: () => bytes[at++] !== 0,
    [TYPE.u32]: u32,
    [TYPE.i32]: () => ((at += 4), bytes.readInt32LE(at - 4)),
    [TYPE.f32]: () => ((at += 4), bytes.readFloatLE(at - 4)),
    [TYPE.u64]: u64,
    [TYPE.string]: string,
  };
  const value = (type) => {
    if (type !== TYPE.array) return scalar[type]();
    const inner = u32();
    const count = u64();
    return { type: inner, values: Array.from({ length: count }, () => scalar[inner]()) };
  };
  at += 8; // tensors: there are none
  const count = u64();
  const metadata = new Map();
  for (let i = 0; i < count; ++i) {
    const key = string().toString();
    const type = u32();
    metadata.set(key, { type, value: value(type) });
  }
  return metadata;
}

export function writeMetadata(path, metadata) {
  const parts = [];
  const u32 = (x) => {
    const b = Buffer.alloc(4);
    b.writeUInt32LE(x);
    parts.push(b);
  };
  const u64 = (x) => {
    const b = Buffer.alloc(8);
    b.writeBigUInt64LE(BigInt(x));
    parts.push(b);
  };
  const string = (x) => {
    const b = Buffer.from(x);
    u64(b.length);
    parts.push(b);
  };
  const scalar = {
    [TYPE.u8]: (x) => parts.push(Buffer.from([x])),
    [TYPE.bool]: (x) => parts.push(Buffer.from([x ? 1 : 0])),
    [TYPE.u32]: u32,
    [TYPE.i32]: (x) => {
      const b = Buffer.alloc(4);
      b.writeInt32LE(x);
      parts.push(b);
    },
    [TYPE.f32]: (x) => {
      const b = Buffer.alloc(4);
      b.writeFloatLE(x);
      parts.push(b);
    },
    [TYPE.u64]: u64,
    [TYPE.string]: string,
  };
  parts.push(Buffer.from("GGUF"));
  u32(3);
  u64(0);
  u64(metadata.size);
  for (const [key, { type, value }] of metadata) {
    string(key);
    u32(type);
    if (type !== TYPE.array) {
      scalar[type](value);
      continue;
    }
    u32(value.type);
    u64(value.values.length);
    for (const element of value.values) scalar[value.type](element);
  }
  writeFileSync(path, Buffer.concat(parts));
}
