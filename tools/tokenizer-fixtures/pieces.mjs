// node pieces.mjs TEXTS.inp... > pieces.out
// How the pre-tokenizers of each family cut texts, by JavaScript's regular expressions: an implementation independent of
// PCRE2. A line a family and text: the family's name, then the lengths of the pieces in bytes of UTF-8.
import { readFileSync } from "node:fs";

const gpt2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
const casedLetters = [
  String.raw`A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}`,
  String.raw`\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}`,
  String.raw`\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}`,
  String.raw`\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}`,
  String.raw`\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}`,
  String.raw`\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}`,
  String.raw`\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}`,
  String.raw`\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}`,
  String.raw`\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}`,
  String.raw`\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}`,
  String.raw`\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}`,
  String.raw`\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}`,
  String.raw`\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}`,
  String.raw`\u{1e900}-\u{1e943}`,
].join("");
const cjk = /[\u{800}-\u{9fa5}\u{ac00}-\u{d7ff}]+/gu;
const suffixes = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]";
const rest = String.raw`[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const upper = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`;
const lower = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
/** Words that end where small letters give way to capitals, by two classes of letters; an optional suffix. */
const cased = (big, small, suffix) =>
  ["*" + small + "+", "+" + small + "*"].map((tail) => String.raw`[^\r\n\p{L}\p{N}]?${big}${tail}${suffix}`).join("|");
const slashes = String.raw`| ?[^\s\p{L}\p{N}]+[\r\n\/]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const asciiMark = "[!\"#$%&'()*+,\\-.\\/:;<=>?@\\[\\\\\\]^_`{|}~]";
const markOrWord = new RegExp(
  String.raw`${asciiMark}[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+${rest}`,
  "gu",
);
const qwen2 = new RegExp(String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+${rest}`, "gu");
const notHan = (letters) => String.raw`[${letters}--\p{sc=Han}]`;
const families = {
  "gpt-2": [gpt2],
  "llama-bpe": [new RegExp(String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+${rest}`, "gu")],
  qwen2: [qwen2],
  qwen35: [
    new RegExp(String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+${rest}`, "gu"),
  ],
  "deepseek-llm": [
    /[\r\n]/gu,
    new RegExp(`\\s?[${casedLetters}]+`, "gu"),
    /\s?[!-\/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+/gu,
    /\s+$/gu,
    cjk,
    /\p{N}+/gu,
  ],
  "deepseek-coder": [/[\r\n]/gu, /\s?\p{L}+/gu, /\s?\p{P}+/gu, cjk, /\p{N}/gu],
  "deepseek-v3": [/\p{N}{1,3}/gu, /[一-龥\u3040-ゟ゠-ヿ]+/gu, markOrWord],
  "gpt-4o": [new RegExp(String.raw`${cased(upper, lower, `(?:${suffixes})?`)}|\p{N}{1,3}${slashes}`, "gu")],
  tekken: [new RegExp(String.raw`${cased(upper, lower, "")}|\p{N}${slashes}`, "gu")],
  glm4: [new RegExp(String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+${rest}`, "gu")],
  "kimi-k2": [
    new RegExp(
      String.raw`\p{sc=Han}+|${cased(notHan(upper), notHan(lower), `(?:${suffixes})?`)}|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+${rest}`,
      "gv",
    ),
  ],
  "seed-coder": [
    new RegExp(
      String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`,
      "gu",
    ),
  ],
  bailingmoe: [
    new RegExp(
      String.raw`'(?:[sdmtSDMT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
      "gu",
    ),
  ],
  "exaone-moe": [
    new RegExp(
      String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n\/]?|\s*[\r\n]|\s+(?!\S)|\s+`,
      "gu",
    ),
  ],
  afmoe: [
    /\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))/gu,
    /[一-鿿㐀-䶿\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+/gu,
    markOrWord,
  ],
  youtu: [
    /[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+/gu,
    new RegExp(String.raw`${cased(upper, lower, `(?:${suffixes})?`)}|\p{N}${slashes}`, "gu"),
  ],
  laguna: [/[^\n]+|\n+/gu, qwen2],
  minicpm5: [
    /\p{N}{1,3}/gu,
    new RegExp(String.raw`${suffixes}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+${rest}`, "gu"),
  ],
  starcoder: [/\p{N}/gu, gpt2],
  falcon: [/[\p{P}$+<=>^~|`]+/gu, gpt2, /[0-9][0-9][0-9]/gu],
  default: [/[\p{P}$+<=>^~|]+/gu, gpt2, /\p{N}+/gu, /[0-9][0-9][0-9]/gu],
};

/** The pieces that matches of `pattern` and the gaps between them cut `text` into. */
function cut(text, pattern) {
  const pieces = [];
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) pieces.push(text.slice(at, match.index));
    pieces.push(match[0]);
    at = match.index + match[0].length;
  }
  if (at < text.length) pieces.push(text.slice(at));
  return pieces;
}

const texts = process.argv.slice(2).flatMap((path) => readFileSync(path, "utf8").split("\n__ggml_vocab_test__\n").slice(0, -1));
for (const [name, patterns] of Object.entries(families)) {
  for (const text of texts) {
    const pieces = patterns.reduce((parts, pattern) => parts.flatMap((part) => cut(part, pattern)), [text]);
    console.log([name, ...pieces.filter(Boolean).map((piece) => Buffer.byteLength(piece))].join(" "));
  }
}
