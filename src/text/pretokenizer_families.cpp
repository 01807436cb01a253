#include <algorithm>

#include "text/pretokenizer.h"

namespace millrace::text {

namespace {

using Patterns = std::string_view[];
using Names = std::string_view[];

// Contractions in either case, used by most families.
#define MR_SUFFIX R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))"
// An optional mark or space, then capitals and small letters: a word ends where small letters are followed by
// capitals. Letters without case and combining marks count as both.
#define MR_CAPITALS R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define MR_SMALL R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define MR_LEAD R"([^\r\n\p{L}\p{N}]?)"
// Line ends and other white space; a last space goes with the word after it.
#define MR_SPACE R"(\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr Patterns kGpt2 = {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

constexpr Patterns kDigitsThenGpt2 = {R"(\p{N})",
                                      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

constexpr Patterns kLlama3 = {
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr Patterns kQwen2 = {R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// As qwen2, with combining marks as part of words.
constexpr Patterns kQwen35 = {
    R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// The letters of scripts with case, as the DeepSeek LLM tokenizer lists them.
constexpr std::string_view kDeepSeekWord =
    R"(\s?[)"
    R"(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1})"
    R"(\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5})"
    R"(\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a})"
    R"(\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b})"
    R"(\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc})"
    R"(\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107})"
    R"(\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134})"
    R"(\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4})"
    R"(\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787})"
    R"(\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a})"
    R"(\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2})"
    R"(\x{118a0}-\x{118df}\x{1e900}-\x{1e943})"
    R"(]+)";

constexpr std::string_view kCjk = R"([\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+)";

// The trailing white space of a piece, found without trying every suffix of every run of spaces.
constexpr std::string_view kTrailingSpace = R"((?<!\s)\s++\z)";

constexpr Patterns kDeepSeekLlm = {
    R"([\r\n])",
    kDeepSeekWord,
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)",
    kTrailingSpace,
    kCjk,
    R"(\p{N}+)"};

constexpr Patterns kDeepSeekCoder = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, R"(\p{N})"};

constexpr Patterns kFalcon = {R"([\p{P}\$\+<=>\^~\|`]+)",
                              R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                              R"([0-9][0-9][0-9])"};

// Words, separated by opening brackets, white space and marks.
constexpr Patterns kBloom = {R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)"};

constexpr Patterns kDefault = {R"([\p{P}\$\+<=>\^~\|]+)",
                               R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                               R"(\p{N}+)", R"([0-9][0-9][0-9])"};

constexpr std::string_view kKanaAndHan = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";

// ASCII punctuation joins the letters that follow.
constexpr std::string_view kPunctuationOrWord =
    R"([!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" MR_SPACE;

constexpr Patterns kDeepSeek3 = {R"(\p{N}{1,3})", kKanaAndHan, kPunctuationOrWord};

constexpr Patterns kGpt4o = {MR_LEAD MR_CAPITALS "*" MR_SMALL "+(?:" MR_SUFFIX ")?|" MR_LEAD MR_CAPITALS "+" MR_SMALL
                                                 "*(?:" MR_SUFFIX
                                                 ")?"
                                                 R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" MR_SPACE};

constexpr Patterns kTekken = {MR_LEAD MR_CAPITALS "*" MR_SMALL "+|" MR_LEAD MR_CAPITALS "+" MR_SMALL
                                                  "*"
                                                  R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" MR_SPACE};

// The characters of script Han, in ranges: older versions of PCRE2 know the property by another name. Where the
// published expression intersects classes ("&&[^\p{Han}]"), the class here is the complement of all the rest.
#define MR_HAN                                                                                       \
  R"(\x{2e80}-\x{2e99}\x{2e9b}-\x{2ef3}\x{2f00}-\x{2fd5}\x{3005}\x{3007}\x{3021}-\x{3029})"          \
  R"(\x{3038}-\x{303b}\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{fa6d}\x{fa70}-\x{fad9})"         \
  R"(\x{16fe2}\x{16fe3}\x{16ff0}\x{16ff1}\x{20000}-\x{2a6df}\x{2a700}-\x{2b739}\x{2b740}-\x{2b81d})" \
  R"(\x{2b820}-\x{2cea1}\x{2ceb0}-\x{2ebe0}\x{2f800}-\x{2fa1d}\x{30000}-\x{3134a}\x{31350}-\x{323af})"
#define MR_CAPITALS_NO_HAN R"([^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C})" MR_HAN "]"
#define MR_SMALL_NO_HAN R"([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C})" MR_HAN "]"

constexpr Patterns kKimiK2 = {"[" MR_HAN "]+|" MR_LEAD MR_CAPITALS_NO_HAN "*" MR_SMALL_NO_HAN "+(?:" MR_SUFFIX
                              ")?|" MR_LEAD MR_CAPITALS_NO_HAN "+" MR_SMALL_NO_HAN "*(?:" MR_SUFFIX
                              R"()?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" MR_SPACE};

constexpr Patterns kSeedCoder = {MR_SUFFIX R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" MR_SPACE};

constexpr Patterns kBailing = {R"('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N})"
                               R"(| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};

// Words separated by single spaces form one piece. Possessive, so it never backtracks.
constexpr Patterns kExaoneMoe = {MR_SUFFIX R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N})"
                                           R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"};

// Digits in groups of three from the right; only the first group of a number looks ahead to its end.
constexpr Patterns kAfmoe = {
    R"((?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3})",
    R"([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f})"
    R"(\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f})"
    R"(\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+)",
    kPunctuationOrWord};

constexpr Patterns kYoutu = {
    R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c})"
    R"(\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)",
    MR_LEAD MR_CAPITALS "*" MR_SMALL "+(?:" MR_SUFFIX ")?|" MR_LEAD MR_CAPITALS "+" MR_SMALL "*(?:" MR_SUFFIX
                        ")?"
                        R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" MR_SPACE};

constexpr Patterns kLaguna = {R"([^\n]+|\n+)",
                              MR_SUFFIX R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" MR_SPACE};

constexpr Patterns kMiniCpm5 = {R"(\p{N}{1,3})",
                                MR_SUFFIX R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)" MR_SPACE};

#undef MR_SUFFIX
#undef MR_CAPITALS
#undef MR_SMALL
#undef MR_LEAD
#undef MR_SPACE
#undef MR_HAN
#undef MR_CAPITALS_NO_HAN
#undef MR_SMALL_NO_HAN

constexpr Names kGpt2Names = {"gpt-2",       "mpt",         "phi-2",    "jais",     "exaone4",
                              "a.x-4.0",     "mellum",      "trillion", "gigachat", "granite-docling",
                              "roberta-bpe", "jina-v1-en",  "jina-es",  "jina-de",  "jina-v2-es",
                              "jina-v2-de",  "jina-v2-code"};
constexpr Names kGpt2ComposedNames = {"olmo", "modern-bert"};
constexpr Names kLlama3Names = {"llama-bpe", "llama3",  "llama-v3", "falcon3",
                                "falcon-h1", "pixtral", "lfm2",     "midm-2.0"};
constexpr Names kLlama3MergedNames = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"};
constexpr Names kQwen2Names = {"qwen2"};
constexpr Names kQwen2LikeNames = {"deepseek-r1-qwen", "stablelm2", "hunyuan",   "megrez",
                                   "grok-2",           "kormo",     "solar-open"};
constexpr Names kQwen35Names = {"qwen35"};
constexpr Names kDeepSeekLlmNames = {"deepseek-llm"};
constexpr Names kDeepSeekCoderNames = {"deepseek-coder"};
constexpr Names kDeepSeek3Names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"};
constexpr Names kGpt4oNames = {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"};
constexpr Names kTekkenNames = {"tekken"};
constexpr Names kKimiK2Names = {"kimi-k2"};
constexpr Names kSeedCoderNames = {"seed-coder"};
constexpr Names kBailingNames = {"bailingmoe", "bailingmoe2", "llada-moe"};
constexpr Names kExaoneMoeNames = {"exaone-moe"};
constexpr Names kAfmoeNames = {"afmoe"};
constexpr Names kYoutuNames = {"youtu"};
constexpr Names kLagunaNames = {"laguna"};
constexpr Names kMiniCpm5Names = {"minicpm5"};
constexpr Names kStarcoderNames = {"starcoder", "refact", "command-r",  "smollm",
                                   "codeshell", "exaone", "minerva-7b", "mellum2"};
constexpr Names kFalconNames = {"falcon"};
constexpr Names kBloomNames = {"bloom", "poro-chat", "gpt3-finnish"};
constexpr Names kDefaultNames = {"default"};

constexpr PreTokenizerFamily kFamilies[] = {
    {kGpt2Names, kGpt2},
    {kGpt2ComposedNames, kGpt2, {.composes = true}},
    {kLlama3Names, kLlama3, {.whole_words_first = true, .adds_bos = true}},
    {kLlama3MergedNames, kLlama3},
    {kQwen2Names, kQwen2, {.composes = true}},
    {kQwen2LikeNames, kQwen2},
    {kQwen35Names, kQwen35, {.composes = true}},
    {kDeepSeekLlmNames, kDeepSeekLlm},
    {kDeepSeekCoderNames, kDeepSeekCoder},
    {kDeepSeek3Names, kDeepSeek3},
    {kGpt4oNames, kGpt4o, {.whole_words_first = true}},
    {kTekkenNames, kTekken, {.whole_words_first = true, .adds_bos = true}},
    {kKimiK2Names, kKimiK2},
    {kSeedCoderNames, kSeedCoder},
    {kBailingNames, kBailing},
    {kExaoneMoeNames, kExaoneMoe},
    {kAfmoeNames, kAfmoe},
    {kYoutuNames, kYoutu, {.whole_words_first = true}},
    {kLagunaNames, kLaguna},
    {kMiniCpm5Names, kMiniCpm5, {.whole_words_first = true}},
    {kStarcoderNames, kDigitsThenGpt2},
    {kFalconNames, kFalcon},
    {kBloomNames, kBloom},
    {kDefaultNames, kDefault},
};

}  // namespace

std::span<const PreTokenizerFamily> pretokenizer_families() { return kFamilies; }

const PreTokenizerFamily* find_pretokenizer(std::string_view name) {
  for (const PreTokenizerFamily& family : kFamilies) {
    if (std::find(family.names.begin(), family.names.end(), name) != family.names.end()) return &family;
  }
  return nullptr;
}

std::string known_pretokenizers() {
  std::string list;
  for (const PreTokenizerFamily& family : kFamilies) {
    for (const std::string_view name : family.names) {
      if (!list.empty()) list += ", ";
      list += name;
    }
  }
  return list;
}

}  // namespace millrace::text
