#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <limits>
#include <utility>

#include "base/log.h"
#include "text/utf8.h"

namespace millrace::text {

namespace {

// White space as Unicode's White_Space property has it. PCRE2's own \s also takes U+180E, which the tokenizers' regular
// expression engines do not.
constexpr std::string_view kSpaces =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// The pattern with \s and \S (the latter only outside of classes) spelled out.
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
      out += kSpaces;
    } else if (escaped == 's' || escaped == 'S') {
      out.append(escaped == 's' ? "[" : "[^").append(kSpaces).append("]");
    } else {
      out.append({c, escaped});
    }
  }
  return out;
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

/// `text` with each byte that is no part of a character replaced by a control character, so that a regular expression
/// can run over it and offsets stay what they are.
std::string mask_invalid(std::string_view text) {
  std::string masked(text);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.kind != Utf8Kind::character) masked.replace(at, step.bytes, step.bytes, '\x01');
    at += step.bytes;
  }
  return masked;
}

}  // namespace

struct PreTokenizer::Pattern {
  pcre2_code* code = nullptr;
  Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { pcre2_code_free(code); }

  void split(std::string_view text, const std::vector<std::uint32_t>& pieces, std::vector<std::uint32_t>& ends,
             pcre2_match_data* data, pcre2_match_context* context) const;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

Expected<PreTokenizer> PreTokenizer::make(const PreTokenizerFamily& family) {
  PreTokenizer made;
  for (const std::string_view source : family.patterns) {
    const std::string pattern = spell_out_spaces(source);
    int code_error = 0;
    PCRE2_SIZE offset = 0;
    auto compiled = std::make_unique<Pattern>();
    compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code_error, &offset, nullptr);
    if (compiled->code == nullptr) {
      return error(Code::internal, "PCRE2 refuses a pre-tokenizer's pattern at {} (error {}); please report this",
                   offset, code_error);
    }
    // Without a JIT in this build of PCRE2 or on this processor the interpreter gives the same matches, slower.
    (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
    made.patterns_.push_back(std::move(compiled));
  }
  return made;
}

void PreTokenizer::Pattern::split(std::string_view text, const std::vector<std::uint32_t>& pieces,
                                  std::vector<std::uint32_t>& ends, pcre2_match_data* data,
                                  pcre2_match_context* context) const {
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  std::uint32_t begin = 0;
  for (const std::uint32_t end : pieces) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data()) + begin;
    const PCRE2_SIZE length = end - begin;
    PCRE2_SIZE at = 0, done = 0;
    while (at < length) {
      int matched = pcre2_match(code, subject, length, at, PCRE2_NO_UTF_CHECK, data, context);
      if (matched < 0 && matched != PCRE2_ERROR_NOMATCH) {  // the JIT's small stack: the interpreter uses the heap
        matched = pcre2_match(code, subject, length, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
      }
      if (matched < 0) {
        if (matched != PCRE2_ERROR_NOMATCH)
          log::error("PCRE2 gave up on a text of {} bytes (error {})", length, matched);
        break;
      }
      if (range[1] <= range[0]) break;  // none of our patterns matches nothing
      if (range[0] > done) ends.push_back(begin + static_cast<std::uint32_t>(range[0]));
      ends.push_back(begin + static_cast<std::uint32_t>(range[1]));
      at = done = range[1];
    }
    if (done < length) ends.push_back(end);
    begin = end;
  }
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
  if (!data || !context) return;  // out of memory: the text stays one piece
  // The patterns are ours and never try more than a few times a character; a long text is no reason to give up.
  pcre2_set_match_limit(context.get(), std::numeric_limits<std::uint32_t>::max());
  std::vector<std::uint32_t> pieces;
  for (const auto& pattern : patterns_) {
    pieces.swap(ends);
    ends.clear();
    pattern->split(text, pieces, ends, data.get(), context.get());
  }
}

}  // namespace millrace::text
