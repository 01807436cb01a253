#include "convert/pretokenizer_match.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <random>
#include <utility>
#include <vector>

#include "convert/json_members.h"
#include "modelfile/escape.h"
#include "text/pretokenizer.h"

namespace millrace::convert {

using nlohmann::json;
using text::PreTokenizer;
using text::PreTokenizerFamily;

namespace {

// GPT-2's pattern, which "ByteLevel" applies unless it is told not to.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// A character of each kind that some pattern tells from others.
constexpr std::array<std::string_view, 40> kAtoms = {"a",
                                                     "S",
                                                     "t",
                                                     "LL",
                                                     "\xc7\x85",
                                                     "1",
                                                     "\xc2\xb2",
                                                     "\xd9\xa3",
                                                     "\xcc\x81",
                                                     "\xe4\xb8\xad",
                                                     "\xe3\x81\x82",
                                                     "\xed\x95\x9c",
                                                     "\xe3\x85\x8f",
                                                     "\xe3\x84\x85",
                                                     "\xe0\xb8\x81",
                                                     "\xd0\xb6",
                                                     "\xca\xb0",
                                                     "\xf0\xa0\x80\x80",  // Han beyond 16 bits
                                                     " ",
                                                     "  ",
                                                     "\n",
                                                     "\r\n",
                                                     "\t",
                                                     "\xc2\xa0",
                                                     "\xe3\x80\x80",
                                                     "'",
                                                     "/",
                                                     "!",
                                                     "_",
                                                     "`",
                                                     "$",
                                                     "+",
                                                     "\xe2\x80\x9c",
                                                     "\xef\xbc\x8c",
                                                     "\xe2\x82\xac",
                                                     "\xf0\x9f\x98\x80",
                                                     "\x01",
                                                     "<|",
                                                     "123",
                                                     "1234567"};

std::vector<std::string> probes() {
  std::vector<std::string> texts;
  for (const std::string_view a : kAtoms)
    for (const std::string_view b : kAtoms) {
      texts.push_back(std::string(a) + std::string(b));
      for (const std::string_view c : kAtoms) texts.push_back(std::string(a) + std::string(b) + std::string(c));
    }
  std::mt19937 random(1);  // the same each time
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int k = 0; k < 40; ++k) text += kAtoms[random() % kAtoms.size()];
    texts.push_back(std::move(text));
  }
  return texts;
}

Status unknown(std::string_view what, std::string_view kind) {
  return error(Code::unsupported, "tokenizer.json has a {} that this version does not know: '{}'", what,
               modelfile::escape(kind, 60));
}

/// A pattern of these characters themselves.
std::string literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// Patterns of one step, put behind `patterns`. Errors: unsupported.
Status add_patterns(const json& step, std::vector<std::string>& patterns, int depth) {
  const std::string type = text_of(step, "type");
  if (type == "Sequence" && depth < 4 && step.contains("pretokenizers") && step["pretokenizers"].is_array()) {
    for (const json& inner : step["pretokenizers"]) MR_RETURN_IF_ERROR(add_patterns(inner, patterns, depth + 1));
    return {};
  }
  if (type == "ByteLevel") {
    if (flag_of(step, "add_prefix_space", false)) return unknown("pre-tokenizer", "ByteLevel with add_prefix_space");
    if (flag_of(step, "use_regex", true)) patterns.emplace_back(kByteLevelPattern);
    return {};
  }
  if (type == "Digits") {
    patterns.emplace_back(flag_of(step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    return {};
  }
  if (type == "Punctuation") {
    patterns.emplace_back(text_of(step, "behavior") == "Contiguous" ? R"([\p{P}\$\+<=>\^~\|`]+)"
                                                                    : R"([\p{P}\$\+<=>\^~\|`])");
    return {};
  }
  if (type != "Split" || !step.contains("pattern")) return unknown("pre-tokenizer", type);
  const std::string behavior = text_of(step, "behavior");
  // What is between matches is removed and the matches stay, or both stay: of patterns that match everything the same.
  if (behavior != "Isolated" && !(behavior == "Removed" && flag_of(step, "invert", false)))
    return unknown("pre-tokenizer", "Split with behavior " + behavior);
  const std::string plain = text_of(step["pattern"], "String");
  patterns.push_back(plain.empty() ? text_of(step["pattern"], "Regex") : literal(plain));
  if (patterns.back().empty()) return unknown("pre-tokenizer", "Split without a pattern");
  return {};
}

/// Whether text is brought into form NFC first. Errors: unsupported (anything else).
Expected<bool> composes(const json& tokenizer) {
  const auto normalizer = tokenizer.find("normalizer");
  if (normalizer == tokenizer.end() || normalizer->is_null()) return false;
  const bool several = text_of(*normalizer, "type") == "Sequence" && normalizer->contains("normalizers");
  json steps = json::array({*normalizer});
  if (several) steps = json((*normalizer)["normalizers"]);
  bool found = false;
  for (const json& step : steps) {
    if (text_of(step, "type") != "NFC") return unknown("normalizer", text_of(step, "type"));
    found = true;
  }
  return found;
}

bool same_cuts(const PreTokenizer& a, const PreTokenizer& b, const std::vector<std::string>& texts) {
  std::vector<std::uint32_t> ours, theirs;
  return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
    a.split(text, ours);
    b.split(text, theirs);
    return ours == theirs;
  });
}

}  // namespace

Expected<std::string> match_pretokenizer(const json& tokenizer, std::string_view preferred) {
  std::vector<std::string> patterns;
  if (const auto step = tokenizer.find("pre_tokenizer"); step != tokenizer.end() && !step->is_null())
    MR_RETURN_IF_ERROR(add_patterns(*step, patterns, 0));
  MR_ASSIGN_OR_RETURN(const bool wants_composed, composes(tokenizer));
  const bool whole_words = tokenizer.contains("model") && flag_of(tokenizer["model"], "ignore_merges", false);
  const std::vector<std::string_view> views(patterns.begin(), patterns.end());
  auto theirs = PreTokenizer::make({{}, views, {}});
  if (!theirs.ok())
    return error(Code::unsupported, "tokenizer.json has a pre-tokenizer whose pattern this version cannot read: '{}'",
                 modelfile::escape(patterns.empty() ? "" : patterns.front(), 80));
  const std::vector<std::string> texts = probes();
  const PreTokenizerFamily* best = nullptr;
  int best_score = -1;
  for (const PreTokenizerFamily& family : text::pretokenizer_families()) {
    // The same patterns cut alike; whether others do takes 30,000 texts.
    if (!std::equal(family.patterns.begin(), family.patterns.end(), views.begin(), views.end())) {
      MR_ASSIGN_OR_RETURN(const PreTokenizer ours, PreTokenizer::make(family));
      if (!same_cuts(ours, *theirs, texts)) continue;
    }
    const bool named = std::find(family.names.begin(), family.names.end(), preferred) != family.names.end();
    const int score = (family.habits.composes == wants_composed ? 4 : 0) +
                      (family.habits.whole_words_first == whole_words ? 2 : 0) + (named ? 1 : 0);
    if (score <= best_score) continue;
    best = &family;
    best_score = score;
  }
  if (best == nullptr)
    return error(Code::unsupported,
                 "tokenizer.json cuts text in a way that no pre-tokenizer of this version does: '{}'",
                 modelfile::escape(patterns.empty() ? "not at all" : patterns.front(), 120));
  const bool named = std::find(best->names.begin(), best->names.end(), preferred) != best->names.end();
  return std::string(named ? preferred : best->names.front());
}

Expected<json> pretokenizer_json(std::string_view name) {
  const PreTokenizerFamily* family = text::find_pretokenizer(name);
  if (family == nullptr)
    return error(Code::unsupported, "the pre-tokenizer '{}' is not one that this version knows",
                 modelfile::escape(name, 60));
  json steps = json::array();
  for (const std::string_view pattern : family->patterns)
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pattern)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return json{{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace millrace::convert
