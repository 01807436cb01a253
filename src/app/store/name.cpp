#include "app/store/name.h"

#include <algorithm>

namespace millrace::store {
namespace {

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

/// "user/repo/resolve/main/folder/file.gguf" as browsers show it: the file's name becomes the tag, and "user/repo" is
/// left.
std::string_view split_file(std::string_view text, Name& name) {
  constexpr std::string_view ending = ".gguf";
  const auto user = text.find('/');
  const auto repo = user == std::string_view::npos ? user : text.find('/', user + 1);
  if (name.tag_given || repo == std::string_view::npos || !text.ends_with(ending)) return text;
  std::string_view file = text.substr(text.rfind('/') + 1);
  file.remove_suffix(ending.size());
  constexpr std::string_view part = "-00001-of-00003";  // any part stands for all
  if (const auto of = file.rfind("-of-"); of != std::string_view::npos && of + 9 == file.size() && of >= 6)
    file.remove_suffix(part.size());
  name.tag = file;
  name.tag_given = true;
  return text.substr(0, repo);
}

}  // namespace

bool is_safe_part(std::string_view part) {
  if (part.empty() || part.size() > 128 || part.front() == '.' || part.front() == '-') return false;
  return std::all_of(part.begin(), part.end(),
                     [](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
}

bool is_hub_address(std::string_view text) {
  return text.starts_with("hf.co/") || text.starts_with("huggingface.co/") || text.starts_with("https://") ||
         text.starts_with("http://");
}

std::string Name::text() const { return (user.empty() ? repo : repository()) + ":" + tag; }

Expected<Name> parse_name(std::string_view text) {
  const std::string_view whole = text;
  for (const std::string_view scheme : {"https://", "http://"})
    if (text.starts_with(scheme)) text.remove_prefix(scheme.size());
  if (const auto query = text.find('?'); query != std::string_view::npos) text = text.substr(0, query);
  for (const std::string_view hub : {"hf.co/", "huggingface.co/"})
    if (text.starts_with(hub)) text.remove_prefix(hub.size());
  Name name;
  if (const auto colon = text.rfind(':'); colon != std::string_view::npos) {
    name.tag = text.substr(colon + 1);
    name.tag_given = true;
    text = text.substr(0, colon);
  }
  text = split_file(text, name);
  if (const auto slash = text.find('/'); slash != std::string_view::npos) {
    name.user = text.substr(0, slash);
    text = text.substr(slash + 1);
  }
  name.repo = text;
  const bool user_ok = name.user.empty() ? whole.find('/') == std::string_view::npos || text.data() == whole.data()
                                         : is_safe_part(name.user);
  if (!user_ok || !is_safe_part(name.repo) || !is_safe_part(name.tag))
    return error(Code::invalid_argument, "'{}' is no model name; write user/repo:QUANT or name:tag",
                 whole.substr(0, 200));
  return name;
}

}  // namespace millrace::store
