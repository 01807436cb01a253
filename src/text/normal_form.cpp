#include "text/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "text/utf8.h"

namespace millrace::text {

namespace {

struct Free {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

/// Returns true if normalisation can change the character or its predecessor. May return true for others.
bool may_change(char32_t c) {
  if (c < 0x300 || (c >= 0x1E00 && c <= 0x1EFF) || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3)) {
    return false;
  }
  if (c >= 0x1160 && c <= 0x11FF) return true;  // vowels and final consonants of Hangul
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  const bool mark = property->category == UTF8PROC_CATEGORY_MN || property->category == UTF8PROC_CATEGORY_MC ||
                    property->category == UTF8PROC_CATEGORY_ME;
  const bool decomposes = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
  return mark || decomposes;
}

void append_composed(std::string_view run, std::string& out) {
  utf8proc_uint8_t* bytes = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()), static_cast<utf8proc_ssize_t>(run.size()),
                   &bytes, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(bytes);
  if (size < 0) {  // out of memory
    out += run;
  } else {
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  }
}

}  // namespace

bool may_be_decomposed(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

std::string compose(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  // A run extends from an unchanged character to the last one behind it that may change; the rest is copied.
  std::size_t done = 0, before = 0, at = 0;
  bool in_run = false, begins = false;  // `begins`: the character at `before` may begin a run
  while (at < text.size()) {
    const Utf8Step step = next_utf8(text.substr(at));
    const bool whole = step.kind == Utf8Kind::character;
    const bool changes =
        whole && static_cast<unsigned char>(text[at]) >= 0xCC && may_change(decode_utf8(text.substr(at, step.bytes)));
    if (changes && !in_run) {
      const std::size_t begin = begins ? before : at;
      out += text.substr(done, begin - done);
      done = begin;
    } else if (!changes && in_run) {
      append_composed(text.substr(done, at - done), out);
      done = at;
    }
    in_run = changes;
    before = at;
    begins = whole;
    at += step.bytes;
  }
  if (in_run) {
    append_composed(text.substr(done), out);
  } else {
    out += text.substr(done);
  }
  return out;
}

}  // namespace millrace::text
