#include "app/cli/state.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "base/open_output.h"
#include "base/os/file.h"
#include "base/os/folder.h"
#include "base/os/user_folders.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostLines = 1000;
constexpr std::uint64_t kMostHistoryBytes = 8u << 20, kMostChatBytes = 64u << 20;
constexpr const char* kChatEnding = ".json";

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Expected<std::string> history_file() {
  MR_ASSIGN_OR_RETURN(const std::string folder, state_folder());
  return folder + "/history";
}

Expected<std::string> chat_file(const std::string& name) {
  const auto is_sign = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  if (name.empty() || name.size() > 64 || name[0] == '.' || !std::all_of(name.begin(), name.end(), is_sign))
    return error(Code::invalid_argument, "a name has letters, digits, '.', '_' and '-', 64 at most");
  MR_ASSIGN_OR_RETURN(const std::string folder, state_folder());
  return folder + "/chats/" + name + kChatEnding;
}

/// Its lines as JSON strings: a text of several lines is one.
std::vector<std::string> parse_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const Json line = Json(nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                                 text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false));
    if (line.is_string()) lines.push_back(line.get<std::string>());
    at = end + 1;
  }
  return lines;
}

/// A file of the user alone, whatever the umask.
bool write_private(const std::string& path, std::string_view text, os::File::Options options) {
  if (options.create == os::File::Create::never) options.create = os::File::Create::if_missing;
  options.owner_only = true;
  options.links = os::Links::stay;
  auto file = open_output(path, options);
  const bool good = file.ok() && file->set_owner_only().ok() && file->write(text).ok();
  return good && file->close().ok();
}

}  // namespace

Expected<std::string> state_folder() {
  std::string folder = os::user_folder(os::UserFolder::state);
  if (folder.empty())
    return error(Code::not_found, "no home directory to keep chats in: {}",
                 os::user_folder_hint(os::UserFolder::state));
  folder += "/millrace";
  std::error_code problem;
  const bool made = fs::create_directories(folder, problem);
  if (problem) return error(Code::io_error, "{}: {}", folder, problem.message());
  if (made) fs::permissions(folder, fs::perms::owner_all, problem);
  return folder;
}

std::vector<std::string> read_history() {
  const auto file = history_file();
  if (!file.ok()) return {};
  const auto text = residency::read_small_file(*file, kMostHistoryBytes);
  if (text.status().code() == Code::invalid_argument) {  // too long for any use
    (void)write_private(*file, "", {.empty = true});
    return {};
  }
  if (!text.ok()) return {};
  std::vector<std::string> lines = parse_lines(*text);
  if (lines.size() <= kMostLines) return lines;
  const bool shorten = lines.size() > 2 * kMostLines;
  lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kMostLines));
  if (!shorten) return lines;
  std::string kept;
  for (const std::string& line : lines) kept += dumped(line) + "\n";
  (void)write_private(*file, kept, {.empty = true});
  return lines;
}

void keep_in_history(const std::string& line) {
  if (line.empty() || line[0] == ' ') return;
  if (const auto file = history_file(); file.ok()) (void)write_private(*file, dumped(line) + "\n", {.append = true});
}

Status save_chat(const std::string& name, const SavedChat& chat) {
  MR_ASSIGN_OR_RETURN(const std::string path, chat_file(name));
  Json messages = Json::array();
  for (const text::Message& message : chat.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
    if (!message.reasoning.empty()) messages.back()["reasoning"] = message.reasoning;
  }
  for (const SavedPicture& picture : chat.pictures)
    messages[picture.message]["images"].push_back({{"path", picture.path}, {"sha256", picture.sha256}});
  const Json saved = {
      {"model", chat.model}, {"system", chat.system}, {"messages", std::move(messages)}, {"raw", chat.raw}};
  std::error_code problem;
  const fs::path folder = fs::path(path).parent_path();
  fs::create_directories(folder, problem);
  fs::permissions(folder, fs::perms::owner_all, problem);
  // Beside it first, so that a full disk leaves the old one.
  const std::string fresh = path + ".new";
  fs::remove(fresh, problem);
  if (!write_private(fresh, dumped(saved), {.create = os::File::Create::always_new}) ||
      (fs::rename(fresh, path, problem), problem))
    return error(Code::io_error, "{}: cannot be written", path);
  return {};
}

Expected<SavedChat> load_chat(const std::string& name) {
  MR_ASSIGN_OR_RETURN(const std::string path, chat_file(name));
  const auto text = residency::read_small_file(path, kMostChatBytes);
  if (text.status().code() == Code::not_found)
    return error(Code::not_found, "there is no chat '{}'; /list shows those that were saved", name);
  if (!text.ok()) return text.status();
  const Json saved = Json(nlohmann::json::parse(*text, nullptr, false));
  const auto word = [](const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  SavedChat chat{word(saved, "model"), word(saved, "system"), {}, word(saved, "raw")};
  const auto messages = saved.is_object() ? saved.find("messages") : saved.end();
  if (messages == saved.end() || !messages->is_array()) return error(Code::corrupt, "{}: is no saved chat", path);
  for (const Json& message : *messages) {
    if (word(message, "role").empty()) return error(Code::corrupt, "{}: is no saved chat", path);
    for (const Json& picture : message.value("images", Json::array()))
      chat.pictures.push_back({chat.messages.size(), word(picture, "path"), word(picture, "sha256")});
    chat.messages.push_back({word(message, "role"), word(message, "content"), word(message, "reasoning")});
  }
  return chat;
}

std::vector<std::string> saved_chats() {
  std::vector<std::string> names;
  const auto folder = state_folder();
  if (!folder.ok()) return names;
  const Status ignored = os::for_each_name(*folder + "/chats", [&](const std::string& name) {
    if (fs::path(name).extension() == kChatEnding) names.push_back(fs::path(name).stem().string());
  });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace millrace::cli
