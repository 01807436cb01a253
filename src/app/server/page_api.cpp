// What the page asks beside the three APIs: which models to begin with, how fast one will be here, and a search of the
// hub. None of it loads a model or changes anything.
#include <algorithm>

#include "app/generate/fields.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/store/hub.h"
#include "app/store/pull.h"
#include "app/store/suggestions.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "engine/machine_rates.h"
#include "residency/calibrate.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

/// What this server may use of the machine.
store::MachineRoom machine_room(const Context& context) {
  constexpr double kShare = 0.9;       // for weights; the rest is for context and others
  constexpr double kOfDriver = 0.8e9;  // of VRAM
  const engine::EngineOptions& options = context.options.models.engine;
  const device::MemoryLimits limits = device::memory_limits();
  std::uint64_t ram = options.memory.ram_bytes;
  if (ram == 0) ram = std::min(limits.available_bytes, limits.cgroup_bytes);
  store::MachineRoom room;
  room.ram_bytes = static_cast<double>(ram) * kShare;
  residency::Rates rates = options.planning.rates;
  if (const auto kept = residency::load_rates(context.options.store_root); kept.ok() && rates.disk <= 0) rates = *kept;
  room.ram_rate = rates.cpu_decode;
  room.disk_rate = rates.disk;
  const auto gpu = options.device.choice == engine::DeviceChoice::cpu || !device::gpus_are_for_auto()
                       ? Expected<device::Gpu>(error(Code::unsupported, "the CPU was asked for"))
                       : device::gpu(options.device.gpu);
  if (!gpu.ok()) return room;
  std::uint64_t vram = options.memory.vram_bytes;
  if (vram == 0) vram = gpu->total_bytes;
  room.vram_bytes = std::max(0.0, static_cast<double>(vram) * kShare - kOfDriver);
  room.vram_rate = rates.device_memory;
  return room;
}

void suggestions(Context& context, const Request&, Response& response) {
  const store::MachineRoom room = machine_room(context);
  Json models = Json::array();
  for (const store::Suggestion& one : store::suggest_models(room))
    models.push_back({{"name", one.name},
                      {"size", static_cast<std::uint64_t>(one.file_bytes)},
                      {"tokens_per_second", one.tokens_per_second},
                      {"tier", one.tier}});
  reply(response, {{"ram", static_cast<std::uint64_t>(room.ram_bytes)},
                   {"vram", static_cast<std::uint64_t>(room.vram_bytes)},
                   {"models", std::move(models)}});
}

/// A text of the request's body. Nothing where it was refused.
std::optional<std::string> text_of(const Request& request, Response& response, const char* field) {
  const auto body = read_body(request);
  if (!body.ok()) {
    fail(Api::ollama, response, body.status());
    return std::nullopt;
  }
  std::string text;
  generate::Fields fields(*body);
  fields.text(field, text);
  if (fields.status().ok() && text.empty()) fields.fail(field, "is required");
  if (!fields.status().ok()) {
    fail(Api::ollama, response, fields.status());
    return std::nullopt;
  }
  return text;
}

Json forecast(const std::string& model, bool loaded, std::int64_t context_tokens, const residency::Plan& plan) {
  return {{"model", model},
          {"loaded", loaded},
          {"context_tokens", context_tokens},
          {"tokens_per_second", plan.predicted_decode_tokens_per_second},
          {"bound", plan.bound}};
}

/// Of a model that is not loaded, from its file's header, as `millrace plan` finds it.
Expected<Json> plan_model(Context& context, const ModelInfo& info) {
  RequestMemory& memory = Connection::current().memory();
  engine::EngineOptions options = context.options.models.engine;
  options.model.path = info.path;
  if (!context.models.is_given(info.source())) {
    options.model.adapters = info.adapters;
    options.model.control.clear();
  }
  options.model.most_header_bytes = memory.cap_bytes() / 2;
  if (!memory.take(options.model.most_header_bytes)) return memory.refusal();
  options = engine::with_kept_rates(std::move(options));
  options.planning.find_rates = false;  // nothing is measured for a look
  const auto planned = engine::plan_only(options);
  memory.give_back(options.model.most_header_bytes);
  if (!planned.ok()) return planned.status();
  return forecast(info.name, false, planned->context_tokens, planned->plan);
}

void fit(Context& context, const Request& request, Response& response) {
  const auto model = text_of(request, response, "model");
  if (!model) return;
  const auto info = context.catalog.find_outline(*model);
  if (!info.ok()) return fail(Api::ollama, response, info.status());
  const std::string key = info->source().key();
  for (const auto& running : context.models.running()) {
    if (running.loaded->key != key) continue;
    const engine::Engine& engine = running.loaded->service->engine();
    return reply(response, forecast(info->name, true, engine.context_tokens(), engine.plan()));
  }
  const auto planned = plan_model(context, *info);
  if (!planned.ok()) return fail(Api::ollama, response, planned.status());
  reply(response, *planned);
}

void search(Context&, const Request& request, Response& response) {
  constexpr int kMostFound = 12;
  constexpr std::size_t kLongest = 100;
  const auto words = text_of(request, response, "query");
  if (!words) return;
  if (words->size() > kLongest)
    return fail(Api::ollama, response, error(Code::invalid_argument, "query: is longer than {} bytes", kLongest));
  store::PullOptions options = store::pull_options_from_environment();
  options.download.http.connect_seconds = options.download.http.stall_seconds = 10;
  options.download.http.memory = &Connection::current().memory();
  options.download.attempts = 1;
  const auto found = store::search_models(options.endpoint, *words, kMostFound, options.download);
  if (!found.ok()) return fail(Api::ollama, response, found.status());
  Json models = Json::array();
  for (const store::HubModel& one : *found) models.push_back({{"name", one.repository}, {"downloads", one.downloads}});
  reply(response, {{"models", std::move(models)}});
}

}  // namespace

void add_page_api_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Get("/api/millrace/suggestions", on(suggestions));
  context.http.Post("/api/millrace/fit", on(fit));
  context.http.Post("/api/millrace/search", on(search));
}

}  // namespace millrace::server
