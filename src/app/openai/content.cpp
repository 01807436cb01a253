// A message's content as one text: plain, or parts of which some are files.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "app/openai/request.h"
#include "modelfile/escape.h"
#include "text/utf8.h"

namespace millrace::openai {
namespace {

/// The words of a file that lies in the request: its name and its text.
Expected<std::string> file_text(const Json& file, const char* where) {
  const std::string name = word(file, "filename"), data = word(file, "file_data");
  if (data.empty())
    return error(Code::invalid_argument, "{}: a file has to come with its text, in base64 as file_data", where);
  std::string_view encoded = data;
  if (encoded.starts_with("data:")) encoded.remove_prefix(std::min(encoded.find(',') + 1, encoded.size()));
  const std::optional<std::string> text = from_base64(encoded);
  if (!text) return error(Code::invalid_argument, "{}: the file_data of '{}' is not base64", where, name);
  if (text->starts_with("%PDF-") || text->find('\0') != std::string::npos || !text::is_valid_utf8(*text))
    return error(Code::invalid_argument, "{}: the file '{}' is no text in UTF-8; send what it says as text", where,
                 name);
  return fmt::format("<document>\n{}{}\n</document>\n", name.empty() ? "" : fmt::format("title: {}\n", name), *text);
}

Expected<std::string> part_text(const Json& part, const char* where) {
  const std::string type = word(part, "type");
  if (type == "input_file") return file_text(part, where);
  if (type == "file") return file_text(part.value("file", Json()), where);
  const auto text = part.is_object() ? part.find(type == "refusal" ? "refusal" : "text") : part.end();
  if (!part.is_object() || text == part.end() || !text->is_string())
    return error(Code::invalid_argument, "{}: a content part of type {} is not supported; send text", where, type);
  return text->get<std::string>();
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const auto place = kLetters.find(c);
    if (place == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<unsigned>(place);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 255u);
  }
  return out;
}

std::string note_of(std::string_view what) {
  return fmt::format("[{}: this model reads text only]", what.empty() ? "content" : modelfile::escape(what, 40));
}

Expected<std::string> content_text(const Json& content, const char* where, Unreadable others) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return error(Code::invalid_argument, "{}: content must be a text or a list of parts", where);
  std::string text;
  for (const Json& part : content) {
    Expected<std::string> one = part_text(part, where);
    if (!one.ok() && others == Unreadable::noted) one = note_of(word(part, "type"));
    MR_RETURN_IF_ERROR(one.status());
    text += *one;
  }
  return text;
}

}  // namespace millrace::openai
