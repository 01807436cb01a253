// node vocabulary-from-json.mjs tokenizer.json PRE OUT.gguf
// A GGUF of metadata alone from a published tokenizer.json; special ids from the tokenizer_config.json beside it. PRE is
// the name of a pre-tokenizer; "llama" and "gemma4" make files of that tokenizer model instead (both want a
// tokenizer.json whose BPE works on characters, as Gemma's does).
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { TYPE, writeMetadata } from "./gguf.mjs";

/** Added tokens that their file does not call special, but that are. */
export const looksSpecial = (text) =>
  /^<\|.*\|>$|^<\uff5c.*\uff5c>$|^<unused.*>$/su.test(text) || ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].includes(text);

/** Tokens and types as files hold them: added ones that are special or look so are control tokens, the others
 * user-defined, with their spaces as spaces. In files of model "gemma4" those of them that the vocabulary has besides
 * are normal. */
function tokensAndTypes({ model, added_tokens: added }, pre) {
  const tokens = [];
  const types = [];
  for (const [text, id] of Object.entries(model.vocab)) {
    const byte = model.byte_fallback && /^<0x[0-9A-F]{2}>$/.test(text);
    [tokens[id], types[id]] = [text, byte ? 6 : text === model.unk_token ? 2 : 1];
  }
  for (const { id, content, special } of added) {
    if (pre === "gemma4" && !special && types[id] === 1) continue;
    const control = special || looksSpecial(content);
    [tokens[id], types[id]] = [control ? content : content.replaceAll("\u2581", " "), control ? 3 : 4];
  }
  for (let id = 0; id < tokens.length; ++id) {
    if (tokens[id] === undefined) [tokens[id], types[id]] = [`[PAD${id}]`, 5];
  }
  return { tokens, types };
}

/** SentencePiece's scores: a piece is as good as the first merge that makes it. */
function scores(model, tokens, merges) {
  const best = new Map();
  merges.forEach((merge, rank) => {
    const space = merge.indexOf(" ", 1);
    const made = merge.slice(0, space) + merge.slice(space + 1);
    if (!best.has(made)) best.set(made, -rank);
  });
  return tokens.map((token) => best.get(token) ?? -1e6);
}

export function vocabularyFromJson(json, pre, out) {
  const parsed = JSON.parse(readFileSync(json, "utf8"));
  const { tokens, types } = tokensAndTypes(parsed, pre);
  const merges = parsed.model.merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge));
  const config = JSON.parse(readFileSync(join(dirname(json), "tokenizer_config.json"), "utf8"));
  const specialIds = ["bos", "eos"].flatMap((name) => {
    const text = config[`${name}_token`]?.content ?? config[`${name}_token`];
    return text ? [[`tokenizer.ggml.${name}_token_id`, { type: TYPE.u32, value: tokens.indexOf(text) }]] : [];
  });
  const array = (type, values) => ({ type: TYPE.array, value: { type, values } });
  const ofCharacters = pre === "llama" || pre === "gemma4";
  writeMetadata(
    out,
    new Map([
      ["general.architecture", { type: TYPE.string, value: "none" }],
      ["tokenizer.ggml.model", { type: TYPE.string, value: ofCharacters ? pre : "gpt2" }],
      ...(ofCharacters
        ? [["tokenizer.ggml.add_space_prefix", { type: TYPE.bool, value: false }]]
        : [["tokenizer.ggml.pre", { type: TYPE.string, value: pre }]]),
      ["tokenizer.ggml.tokens", array(TYPE.string, tokens)],
      ["tokenizer.ggml.token_type", array(TYPE.i32, types)],
      pre === "llama"
        ? ["tokenizer.ggml.scores", array(TYPE.f32, scores(parsed.model, tokens, merges))]
        : ["tokenizer.ggml.merges", array(TYPE.string, merges)],
      ...specialIds,
    ]),
  );
  return `${out}: ${tokens.length} tokens, ${merges.length} merges`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(vocabularyFromJson(...process.argv.slice(2)));
