// node vocabulary-from-json.mjs TOKENIZER.json PRE OUT.gguf
// Writes a GGUF that holds nothing but the vocabulary and merges of a byte-level BPE tokenizer.json; BOS and EOS from the
// tokenizer_config.json beside it.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { TYPE, writeMetadata } from "./gguf.mjs";

const [json, pre, out] = process.argv.slice(2);
const { model, added_tokens: added } = JSON.parse(readFileSync(json, "utf8"));
const tokens = [];
const types = [];
for (const [text, id] of Object.entries(model.vocab)) [tokens[id], types[id]] = [text, 1];
for (const { id, content, special } of added) [tokens[id], types[id]] = [content, special ? 3 : 4];
for (let id = 0; id < tokens.length; ++id) {
  if (tokens[id] === undefined) [tokens[id], types[id]] = [`[PAD${id}]`, 5];
}
const merges = model.merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge));
const config = JSON.parse(readFileSync(join(dirname(json), "tokenizer_config.json"), "utf8"));
const specialIds = ["bos", "eos"].flatMap((name) => {
  const text = config[`${name}_token`]?.content ?? config[`${name}_token`];
  return text ? [[`tokenizer.ggml.${name}_token_id`, { type: TYPE.u32, value: tokens.indexOf(text) }]] : [];
});
const array = (type, values) => ({ type: TYPE.array, value: { type, values } });
writeMetadata(
  out,
  new Map([
    ["general.architecture", { type: TYPE.string, value: "none" }],
    ["tokenizer.ggml.model", { type: TYPE.string, value: "gpt2" }],
    ["tokenizer.ggml.pre", { type: TYPE.string, value: pre }],
    ["tokenizer.ggml.tokens", array(TYPE.string, tokens)],
    ["tokenizer.ggml.token_type", array(TYPE.i32, types)],
    ["tokenizer.ggml.merges", array(TYPE.string, merges)],
    ...specialIds,
  ]),
);
console.log(`${out}: ${tokens.length} tokens, ${merges.length} merges`);
