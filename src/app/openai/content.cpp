// A message's content as one text: plain, or parts of which some are files.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "app/openai/request.h"
#include "base/base64.h"
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
    return error(Code::invalid_argument, "{}: the file '{}' is not text in UTF-8; send its content as text", where,
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

/// A text member where it lies: pictures are too large for copies. Empty where there is none.
std::string_view text_in(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get_ref<const std::string&>() : std::string_view();
}

}  // namespace

bool is_picture(const Json& part) {
  const std::string type = word(part, "type");
  return type == "image_url" || type == "input_image" || type == "image";
}

Picture picture_of(const Json& part, const std::string& where) {
  const std::string type = word(part, "type");
  if (const auto found = part.find("source"); type == "image" && found != part.end()) {  // Anthropic's
    const Json& source = *found;
    const std::string kind = word(source, "type"), of = fmt::format("{}.image.source.{}", where, kind);
    if (kind == "base64") return generate::picture_of_base64(type, of, text_in(source, "data"));
    if (kind == "url") return generate::picture_of_url(type, of, text_in(source, "url"));
    return {type,
            fmt::format("{}.image.source", where),
            {},
            error(Code::invalid_argument, "its source is of type '{}'; send base64", modelfile::escape(kind, 40))};
  }
  if (type == "input_image" && part.contains("file_id") && part["file_id"].is_string())
    return {type, where, {}, error(Code::invalid_argument, "no files are kept here; send its data as image_url")};
  const auto url = part.find("image_url");
  const bool nested = url != part.end() && url->is_object();
  return generate::picture_of_url(type, where, nested ? text_in(*url, "url") : text_in(part, "image_url"));
}

Expected<std::string> content_text(const Json& content, const char* where, Unreadable others,
                                   generate::Pictures* pictures) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return error(Code::invalid_argument, "{}: content must be a text or a list of parts", where);
  std::string text;
  for (const Json& part : content) {
    if (pictures != nullptr && is_picture(part)) {
      if (pictures->size() >= generate::kMostPictures)
        return error(Code::invalid_argument, "{}: more than {} pictures; send fewer", where, generate::kMostPictures);
      text += pictures->add(picture_of(part, where));
      continue;
    }
    Expected<std::string> one = part_text(part, where);
    if (!one.ok() && others == Unreadable::noted) one = note_of(word(part, "type"));
    MR_RETURN_IF_ERROR(one.status());
    text += *one;
  }
  return text;
}

}  // namespace millrace::openai
