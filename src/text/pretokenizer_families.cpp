#include <algorithm>

#include "text/pretokenizer.h"

namespace millrace::text {

namespace {

using Patterns = std::string_view[];
using Names = std::string_view[];

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

constexpr Patterns kDefault = {R"([\p{P}\$\+<=>\^~\|]+)",
                               R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                               R"(\p{N}+)", R"([0-9][0-9][0-9])"};

constexpr Names kGpt2Names = {"gpt-2", "mpt", "olmo", "phi-2", "jais", "exaone4", "mellum", "trillion", "gigachat"};
constexpr Names kLlama3Names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"};
constexpr Names kLlama3MergedNames = {"dbrx", "smaug-bpe"};
constexpr Names kQwen2Names = {"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"};
constexpr Names kQwen35Names = {"qwen35"};
constexpr Names kDeepSeekLlmNames = {"deepseek-llm"};
constexpr Names kDeepSeekCoderNames = {"deepseek-coder"};
constexpr Names kStarcoderNames = {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"};
constexpr Names kFalconNames = {"falcon"};
constexpr Names kDefaultNames = {"default"};

constexpr PreTokenizerFamily kFamilies[] = {
    {kGpt2Names, kGpt2},
    {kLlama3Names, kLlama3, true, true},
    {kLlama3MergedNames, kLlama3},
    {kQwen2Names, kQwen2},
    {kQwen35Names, kQwen35},
    {kDeepSeekLlmNames, kDeepSeekLlm},
    {kDeepSeekCoderNames, kDeepSeekCoder},
    {kStarcoderNames, kDigitsThenGpt2},
    {kFalconNames, kFalcon},
    {kDefaultNames, kDefault},
};

}  // namespace

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
