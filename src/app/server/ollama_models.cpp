// Ollama's model management: version, tags, show, ps.
#include <set>

#include "app/generate/fields.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/ollama_request.h"
#include "app/store/recipe.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

Json details(const ModelInfo& info) {
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", info.architecture},
          {"families", Json::array({info.architecture})},
          {"parameter_size", info.parameter_size},
          {"quantization_level", info.quantization}};
}

void version(Context&, const Request&, Response& response) {
  reply(response, {{"version", kOllamaVersion}, {"millrace", MILLRACE_VERSION}});
}

void tags(Context& context, const Request&, Response& response) {
  const auto listed = context.catalog.list(&Connection::current().memory());
  if (!listed.ok()) return fail(Api::ollama, response, listed.status());
  Json models = Json::array();
  for (const ModelInfo& info : *listed) {
    models.push_back({{"name", info.name},
                      {"model", info.name},
                      {"modified_at", rfc3339(info.modified)},
                      {"size", info.bytes + info.mmproj_bytes + info.adapter_bytes},
                      {"digest", info.digest},
                      {"details", details(info)}});
  }
  reply(response, {{"models", std::move(models)}});
}

/// A model that was used by several names is running by each of them.
std::vector<std::pair<engine::ModelManager::Running, std::string>> by_name(
    const std::vector<engine::ModelManager::Running>& all) {
  std::vector<std::pair<engine::ModelManager::Running, std::string>> rows;
  for (const auto& running : all)
    for (const std::string& name : running.names) rows.emplace_back(running, name);
  return rows;
}

void ps(Context& context, const Request&, Response& response) {
  Json models = Json::array();
  std::set<std::string> told;  // a name that is gone has given way to another one of its file
  for (const auto& [running, given] : by_name(context.models.running())) {
    const engine::ModelManager::Loaded& loaded = *running.loaded;
    const engine::Engine& engine = loaded.service->engine();
    const auto info = info_of(context, loaded, given);
    const std::string name = info.ok() ? info->name : given;
    if (!told.insert(name).second) continue;
    const residency::Budget* vram = engine.vram_budget();
    const std::uint64_t in_vram = vram != nullptr ? vram->reserved_bytes() : 0;
    Json one = {{"name", name},
                {"model", name},
                {"size", vram != nullptr ? in_vram : engine.budget().reserved_bytes()},
                {"digest", info.ok() ? info->digest : std::string()},
                {"details", info.ok() ? details(*info) : Json::object()},
                {"expires_at", rfc3339(running.expires_at.value_or(std::chrono::system_clock::now() +
                                                                   std::chrono::hours(24 * 365 * 100)))},
                {"size_vram", in_vram},
                {"context_length", engine.context_tokens()}};
    Json residency = Json::array();
    for (const auto& row : engine.plan().rows)
      residency.push_back({{"tier", row.tier},
                           {"what", row.what},
                           {"executor", row.executor},
                           {"units", row.units},
                           {"bytes", row.bytes}});
    one["residency"] = std::move(residency);
    models.push_back(std::move(one));
  }
  reply(response, {{"models", std::move(models)}});
}

std::string license_of(const ModelInfo& info, const FileTexts& file) {
  if (!info.license.empty()) return info.license;
  const auto found = file.metadata.find("general.license");
  return found != file.metadata.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string parameter_lines(const Json& parameters) {
  std::string out;
  for (const auto& [key, value] : parameters.items()) {
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& one : list) out += fmt::format("{:<30} {}\n", key, one.dump());
  }
  if (!out.empty()) out.pop_back();
  return out;
}

/// Names the model, not its file: where that lies is nobody's business on the network.
std::string modelfile_of(const ModelInfo& info) {
  store::Recipe recipe;
  recipe.from = info.name;
  recipe.parameters = nlohmann::json::parse(info.parameters.dump());
  recipe.system = info.system;
  recipe.chat_template = info.chat_template;
  recipe.license = info.license;
  recipe.messages = nlohmann::json::parse(info.messages.dump());
  return store::to_text(recipe);
}

void show(Context& context, const Request& request, Response& response) {
  const auto body = read_body(request);
  if (!body.ok()) return fail(Api::ollama, response, body.status());
  const auto name = ollama_model(*body);
  if (!name.ok()) return fail(Api::ollama, response, name.status());
  const auto info = context.catalog.find(*name, &Connection::current().memory());
  if (!info.ok()) return fail(Api::ollama, response, info.status());
  auto file = context.catalog.texts(*info, Connection::current().memory());
  if (!file.ok()) return fail(Api::ollama, response, file.status());
  const std::string& chat_template = info->chat_template.empty() ? file->chat_template : info->chat_template;
  Json capabilities = Json::array({info->embeds ? "embedding" : "completion"});
  // Where a template knows nothing of tools, the system's message tells of them.
  if (!info->embeds && !chat_template.empty()) capabilities.push_back("tools");
  if (chat_template.find("think") != std::string::npos) capabilities.push_back("thinking");
  vision::MmprojFolders folders;
  if (!context.models.mmproj_of(info->path, folders).empty()) capabilities.push_back("vision");
  Json out = {{"license", license_of(*info, *file)},
              {"modelfile", modelfile_of(*info)},
              {"parameters", parameter_lines(info->parameters)},
              {"template", chat_template},
              {"details", details(*info)},
              {"capabilities", std::move(capabilities)},
              {"modified_at", rfc3339(info->modified)}};
  out["model_info"] = std::move(file->metadata);
  out["digest"] = info->digest;
  if (!info->system.empty()) out["system"] = info->system;
  for (const engine::AdapterOptions& adapter : info->adapters) out["adapters"].push_back(adapter.name);
  reply(response, out);
}

}  // namespace

void add_ollama_model_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Get("/api/version", on(version));
  context.http.Get("/api/tags", on(tags));
  context.http.Get("/api/ps", on(ps));
  context.http.Post("/api/show", on(show));
}

}  // namespace millrace::server
