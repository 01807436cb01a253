#include "app/store/manifest.h"

#include <ctime>

#include "app/store/digest.h"
#include "app/store/recipe.h"
#include "base/json_nesting.h"

namespace millrace::store {
namespace {

using nlohmann::json;

json body_of(const Manifest& manifest) {
  json files = json::array();
  for (const ModelFile& file : manifest.files) {
    json entry = {{"name", file.name}, {"bytes", file.bytes}};
    if (!file.sha256.empty()) entry["sha256"] = file.sha256;
    if (!file.path.empty()) entry["path"] = file.path;
    files.push_back(std::move(entry));
  }
  return {{"version", 1},
          {"format", manifest.format},
          {"files", std::move(files)},
          {"parameters", manifest.parameters},
          {"system", manifest.system},
          {"template", manifest.chat_template},
          {"license", manifest.license},
          {"messages", manifest.messages}};
}

Expected<ModelFile> parse_file(const json& entry) {
  ModelFile file;
  file.name = entry.at("name").get<std::string>();
  file.bytes = entry.at("bytes").get<std::uint64_t>();
  file.sha256 = entry.value("sha256", "");
  file.path = entry.value("path", "");
  const bool one_home = file.path.empty() ? is_sha256(file.sha256) : file.path.front() == '/';
  if (!is_safe_file_name(file.name) || !one_home)
    return error(Code::corrupt, "an entry of its files is damaged; pull or create the model again");
  return file;
}

}  // namespace

bool is_safe_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::uint64_t Manifest::bytes() const {
  std::uint64_t total = 0;
  for (const ModelFile& file : files) total += file.bytes;
  return total;
}

std::string Manifest::digest() const {
  return sha256_of(body_of(*this).dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string to_json(const Manifest& manifest) {
  json whole = body_of(manifest);
  whole["modified"] = manifest.modified;
  whole["from"] = manifest.from;
  return whole.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Expected<Manifest> parse_manifest(std::string_view text, const Name& name) {
  if (nests_too_deep(text)) return error(Code::corrupt, "it nests too deep; pull or create the model again");
  try {
    const json whole = json::parse(text);
    Manifest manifest;
    manifest.name = name;
    manifest.format = whole.at("format").get<std::string>();
    for (const json& entry : whole.at("files")) {
      MR_ASSIGN_OR_RETURN(ModelFile file, parse_file(entry));
      manifest.files.push_back(std::move(file));
    }
    if (manifest.files.empty()) return error(Code::corrupt, "it names no files; pull or create the model again");
    manifest.modified = whole.value("modified", "");
    manifest.from = whole.value("from", "");
    manifest.parameters = whole.value("parameters", json::object());
    manifest.system = whole.value("system", "");
    manifest.chat_template = whole.value("template", "");
    manifest.license = whole.value("license", "");
    manifest.messages = whole.value("messages", json::array());
    if (!manifest.parameters.is_object() || !check_messages(manifest.messages).ok())
      return error(Code::corrupt, "its parameters or messages are damaged; pull or create the model again");
    return manifest;
  } catch (const json::exception& bad) {
    return error(Code::corrupt, "it cannot be read ({}); pull or create the model again", bad.what());
  }
}

std::string now_rfc3339() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace millrace::store
