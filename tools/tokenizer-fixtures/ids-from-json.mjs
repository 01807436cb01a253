// node ids-from-json.mjs FOLDER tokenizer.json PRE TEXTS.inp > NAME.out
// The ids that @huggingface/tokenizers (in FOLDER/node_modules) gives each text with a published tokenizer.json, a text a
// line, special tokens taken as text. PRE as for vocabulary-from-json.mjs.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { looksSpecial } from "./vocabulary-from-json.mjs";

/** A function from texts to ids; `specials` says whether special tokens are found in them. */
export function encoderFromJson(folder, path, pre, specials) {
  const { Tokenizer } = createRequire(join(resolve(folder), "index.js"))("@huggingface/tokenizers");
  const json = JSON.parse(readFileSync(path, "utf8"));
  const config = JSON.parse(readFileSync(join(dirname(path), "tokenizer_config.json"), "utf8"));
  const added = json.added_tokens.filter(({ content, special }) => {
    if (special || looksSpecial(content)) return specials && (special || pre !== "gemma4");
    return pre !== "gemma4"; // files of that model have no added tokens besides the special ones
  });
  const tokenizer = new Tokenizer({ ...json, added_tokens: added }, config);
  return (text) => tokenizer.encode(text, { add_special_tokens: false }).ids;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder, path, pre, inputs] = process.argv.slice(2);
  const encode = encoderFromJson(folder, path, pre, false);
  const texts = readFileSync(inputs, "utf8").split("\n__ggml_vocab_test__\n").slice(0, -1);
  for (const text of texts) console.log(encode(text).map((id) => ` ${id}`).join(""));
}
