#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "base/log.h"
#include "text/utf8.h"

namespace millrace::text {

namespace {

// White space as Unicode's White_Space property defines it. PCRE2's \s also matches U+180E, which the tokenizers'
// regular expression engines do not.
constexpr std::string_view kUnicodeSpaces =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// Returns the pattern with \s and \S expanded (\S only outside classes).
std::string spell_out_spaces(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_class) {
      out += kUnicodeSpaces;
    } else if (escaped == 's' || escaped == 'S') {
      out.append(escaped == 's' ? "[" : "[^").append(kUnicodeSpaces).append("]");
    } else {
      out.append({c, escaped});
    }
  }
  return out;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Regex = std::unique_ptr<pcre2_code, FreeCode>;
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

/// Replaces each byte that belongs to no valid character by a control character, so that a regular expression
/// can scan the text and offsets do not change.
std::string mask_invalid(std::string_view text) {
  std::string masked(text);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.kind != Utf8Kind::character) masked.replace(at, step.bytes, step.bytes, '\x01');
    at += step.bytes;
  }
  return masked;
}

/// Splits each of `pieces` (given by their ends) at the matches of `code`.
void cut(const pcre2_code* code, std::string_view text, const std::vector<std::uint32_t>& pieces,
         std::vector<std::uint32_t>& ends, pcre2_match_data* data, pcre2_match_context* context) {
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  std::uint32_t begin = 0;
  for (const std::uint32_t end : pieces) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data()) + begin;
    const PCRE2_SIZE length = end - begin;
    PCRE2_SIZE at = 0, done = 0;
    while (at < length) {
      int matched = pcre2_match(code, subject, length, at, PCRE2_NO_UTF_CHECK, data, context);
      if (matched < 0 &&
          matched != PCRE2_ERROR_NOMATCH) {  // the JIT's stack was too small: retry interpreted, which uses the heap
        matched = pcre2_match(code, subject, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
      }
      if (matched == PCRE2_ERROR_NOMATCH) break;
      // Our patterns match any text, so PCRE2 ran out of memory. Going on would produce wrong tokens.
      if (matched < 0) throw std::bad_alloc();
      if (range[1] <= range[0]) break;  // no pattern of ours has an empty match
      if (range[0] > done) ends.push_back(begin + static_cast<std::uint32_t>(range[0]));
      ends.push_back(begin + static_cast<std::uint32_t>(range[1]));
      at = done = range[1];
    }
    if (done < length) ends.push_back(end);
    begin = end;
  }
}

}  // namespace

// The patterns are interpreted and, from the first long text on, also compiled to machine code. That runs several
// times as fast but takes 256 KB, which short prompts under a small budget do not need.
struct PreTokenizer::Patterns {
  static constexpr std::size_t kLongText = 32768;  // bytes

  std::vector<Regex> interpreted;
  std::once_flag once;
  std::vector<Regex> compiled;

  const std::vector<Regex>& for_text(std::size_t bytes) {
    if (bytes < kLongText) return interpreted;
    std::call_once(once, [&] {
      for (const Regex& code : interpreted) {
        compiled.emplace_back(pcre2_code_copy(code.get()));
        // Without a JIT in this build of PCRE2 or on this processor the copy is interpreted too, with the same matches.
        if (compiled.back()) (void)pcre2_jit_compile(compiled.back().get(), PCRE2_JIT_COMPLETE);
      }
    });
    const bool complete =
        std::all_of(compiled.begin(), compiled.end(), [](const Regex& code) { return code != nullptr; });
    return complete ? compiled : interpreted;
  }
};

PreTokenizer::PreTokenizer(std::unique_ptr<Patterns> patterns) : patterns_(std::move(patterns)) {}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

Expected<PreTokenizer> PreTokenizer::make(const PreTokenizerFamily& family) {
  auto patterns = std::make_unique<Patterns>();
  for (const std::string_view source : family.patterns) {
    const std::string pattern = spell_out_spaces(source);
    int code_error = 0;
    PCRE2_SIZE offset = 0;
    Regex code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code_error, &offset, nullptr));
    if (!code) {
      return error(Code::internal, "PCRE2 refuses a pre-tokenizer's pattern at {} (error {}); please report this",
                   offset, code_error);
    }
    patterns->interpreted.push_back(std::move(code));
  }
  return PreTokenizer(std::move(patterns));
}

void PreTokenizer::split(std::string_view text, std::vector<std::uint32_t>& ends) const {
  ends.clear();
  if (text.empty()) return;
  ends.push_back(static_cast<std::uint32_t>(text.size()));
  std::string masked;
  if (!is_valid_utf8(text)) {
    masked = mask_invalid(text);
    text = masked;
  }
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(pcre2_match_context_create(nullptr));
  if (!data || !context) throw std::bad_alloc();
  // Our patterns backtrack a few times per character at most, so the limit must not stop them on long texts.
  pcre2_set_match_limit(context.get(), std::numeric_limits<std::uint32_t>::max());
  std::vector<std::uint32_t> pieces;
  for (const Regex& code : patterns_->for_text(text.size())) {
    pieces.swap(ends);
    ends.clear();
    cut(code.get(), text, pieces, ends, data.get(), context.get());
  }
}

}  // namespace millrace::text
