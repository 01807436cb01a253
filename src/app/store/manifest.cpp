#include "app/store/manifest.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <span>

#include "app/store/digest.h"
#include "app/store/recipe.h"
#include "base/json_nesting.h"
#include "base/os/calendar.h"

namespace millrace::store {
namespace {

using nlohmann::json;

json body_of(const Manifest& manifest) {
  json files = json::array();
  for (const ModelFile& file : manifest.files) {
    json entry = {{"name", file.name}, {"bytes", file.bytes}};
    if (!file.sha256.empty()) entry["sha256"] = file.sha256;
    if (!file.path.empty()) entry["path"] = file.path;
    if (file.adapter) entry["adapter"] = true;
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

Status check_file(const ModelFile& file) {
  const bool one_home = file.path.empty() ? is_sha256(file.sha256) : std::filesystem::path(file.path).is_absolute();
  if (!is_safe_file_name(file.name) || !one_home)
    return error(Code::corrupt, "an entry of its files is damaged; pull or create the model again");
  return {};
}

/// Errors: corrupt.
Status check_files(const std::vector<ModelFile>& files) {
  if (files.empty() || files.front().adapter)
    return error(Code::corrupt, "it names no files of a model; pull or create the model again");
  for (const ModelFile& file : files) MR_RETURN_IF_ERROR(check_file(file));
  return {};
}

ModelFile parse_file(const json& entry) {
  ModelFile file;
  file.name = entry.at("name").get<std::string>();
  file.bytes = entry.at("bytes").get<std::uint64_t>();
  file.sha256 = entry.value("sha256", "");
  file.path = entry.value("path", "");
  file.adapter = entry.value("adapter", false);
  return file;
}

/// SHA-256 of the text but for the lines that say when the model was made and of what. to_json() gives each member of
/// the whole a line that is indented by two spaces, and no text holds a line's end.
std::string digest_of(std::string_view text) {
  Sha256 hash;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    text.remove_prefix(line.size());
    if (!line.starts_with("  \"from\": ") && !line.starts_with("  \"modified\": "))
      hash.add(std::as_bytes(std::span(line.data(), line.size())));
  }
  return hash.hex();
}

/// Hears a manifest's text and keeps its files.
class OutlineReader final : public nlohmann::json_sax<json> {
 public:
  explicit OutlineReader(ManifestOutline& out) : out_(out) {}

  bool null() override { return true; }
  bool boolean(bool value) override {
    if (in_file() && key_ == "adapter") out_.files.back().adapter = value;
    return true;
  }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (in_file() && key_ == "bytes") out_.files.back().bytes = value;
    return true;
  }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t& value) override {
    if (depth_ == 1 && key_ == "modified") out_.modified = value.substr(0, kMostDateBytes);
    if (!in_file()) return true;
    ModelFile& file = out_.files.back();
    if (key_ == "name") file.name = value;
    if (key_ == "sha256") file.sha256 = value;
    if (key_ == "path") file.path = value;
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    key_ = name.substr(0, kMostKeyBytes);
    if (depth_ == 1) in_files_ = key_ == "files";
    return true;
  }
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_file()) out_.files.emplace_back();
    return true;
  }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  static constexpr std::size_t kMostKeyBytes = 16, kMostDateBytes = 64;
  bool in_file() const { return in_files_ && depth_ == 3; }  // of an entry itself, not below it

  ManifestOutline& out_;
  std::string key_;
  int depth_ = 0;
  bool in_files_ = false;  // the last key of the whole was "files"
};

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

std::string Manifest::digest() const { return digest_of(to_json(*this)); }

Expected<ManifestOutline> outline_of(std::string_view text) {
  ManifestOutline outline;
  OutlineReader reader(outline);
  const Status damaged = error(Code::corrupt, "it cannot be read; pull or create the model again");
  if (nests_too_deep(text) || !json::sax_parse(text.begin(), text.end(), &reader)) return damaged;
  MR_RETURN_IF_ERROR(check_files(outline.files));
  outline.digest = digest_of(text);
  return outline;
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
    for (const json& entry : whole.at("files")) manifest.files.push_back(parse_file(entry));
    MR_RETURN_IF_ERROR(check_files(manifest.files));
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
  const std::tm utc = os::utc_time(std::time(nullptr)).value_or(std::tm{});
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace millrace::store
