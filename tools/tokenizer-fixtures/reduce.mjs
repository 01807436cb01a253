// node reduce.mjs FULL.gguf TEXTS.inp OUT.gguf
// Keeps of a vocabulary what the texts of TEXTS.inp can touch, and the ids it had in full: the same ids come out.
//
// Why the same: a merge (or a SentencePiece pair) can only happen where the bytes of its result stand in the text. So
// tokens that are no part of any text, and merges that result in one, never take part. What stays keeps its order,
// hence its rank. Single bytes and control tokens stay in any case.
import { readFileSync } from "node:fs";
import { TYPE, readMetadata, writeMetadata } from "./gguf.mjs";

const [full, texts, out] = process.argv.slice(2);
const metadata = readMetadata(full);
const bytewise = metadata.get("tokenizer.ggml.model").value.toString() === "gpt2";

const byteOf = new Map();
for (let byte = 0, next = 256; byte < 256; ++byte) {
  const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  byteOf.set(String.fromCodePoint(printable ? byte : next++), byte);
}
const spelled = (text) => {
  if (!bytewise) return text.replaceAll(" ", "\u2581");
  const bytes = [...text].map((character) => byteOf.get(character));
  return bytes.includes(undefined) ? text : Buffer.from(bytes).toString("latin1");
};
const corpus = bytewise
  ? readFileSync(texts).toString("latin1")
  : readFileSync(texts, "utf8").replaceAll(" ", "\u2581").split("__ggml_vocab_test__\n").map((text) => "\u2581" + text).join("\n");

const tokens = metadata.get("tokenizer.ggml.tokens").value.values.map((token) => token.toString());
const types = metadata.get("tokenizer.ggml.token_type").value.values;
const kept = [];
tokens.forEach((token, id) => {
  const single = bytewise && [...token].length === 1 && byteOf.has(token);
  const always = types[id] === 2 || types[id] === 3 || types[id] === 6;
  if (single || always || corpus.includes(spelled(token)) || corpus.includes(token)) kept.push(id);
});
// Control tokens that no key names and no text holds are many in some vocabularies (reserved ones): the first 16 do.
const control = kept.filter((id) => types[id] === 3);
const dropped = new Set(control.slice(16));
const keep = kept.filter((id) => !dropped.has(id) || corpus.includes(tokens[id]));
const newId = new Map(keep.map((id, index) => [id, index]));
const names = new Set(keep.map((id) => tokens[id]));

const pick = (key) => {
  const entry = metadata.get(key);
  if (entry) entry.value.values = keep.map((id) => entry.value.values[id]);
};
pick("tokenizer.ggml.tokens");
pick("tokenizer.ggml.token_type");
pick("tokenizer.ggml.scores");
const merges = metadata.get("tokenizer.ggml.merges");
if (merges) {
  merges.value.values = merges.value.values.map(String).filter((merge) => {
    const space = merge.indexOf(" ", 1);
    return names.has(merge.slice(0, space) + merge.slice(space + 1));
  });
}
for (const [key, entry] of metadata) {
  if (!key.endsWith("_token_id")) continue;
  if (newId.has(entry.value)) entry.value = newId.get(entry.value);
  else metadata.delete(key);
}
metadata.delete("general.name");
metadata.set("millrace.test.original_ids", { type: TYPE.array, value: { type: TYPE.i32, values: keep } });
writeMetadata(out, metadata);
console.log(`${out}: ${keep.length} of ${tokens.length} tokens, ${merges ? merges.value.values.length : 0} merges`);
