// The page at "/" for browsers, and what it shows of the machine.
#include <xxhash.h>

#include <algorithm>

#include "app/server/context.h"
#include "app/web/page.h"
#include "base/trace.h"
#include "residency/predict.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

/// Nothing from elsewhere, no script but the page's files, no markup made of strings but by DOMPurify: what a model
/// says is not trusted. A worker heeds the policy that its own file brings.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types dompurify millrace";
constexpr const char* kFilePolicy = "default-src 'none'; script-src 'self'; frame-ancestors 'none'";

const char* type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".woff2")) return "font/woff2";
  return name.ends_with(".js") ? "text/javascript; charset=utf-8" : "text/plain; charset=utf-8";
}

void send_file(const web::File& file, const Request& request, Response& response) {
  const std::string tag = fmt::format("\"{:016x}\"", XXH3_64bits(file.bytes.data(), file.bytes.size()));
  response.set_header("Content-Security-Policy", file.name.ends_with(".html") ? kPagePolicy : kFilePolicy);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cache-Control", "no-cache");
  response.set_header("ETag", tag);
  if (request.get_header_value("If-None-Match") == tag) {
    response.status = 304;
    return;
  }
  // As it lies: a body of its own would be compressed for seconds.
  response.set_content_provider(file.bytes.size(), type_of(file.name),
                                [bytes = file.bytes](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
                                  return sink.write(bytes.data() + offset, length);
                                });
}

void front(const Request& request, Response& response) {
  response.set_header("Vary", "Accept");
  if (request.get_header_value("Accept").find("text/html") == std::string::npos)
    return response.set_content("Ollama is running", "text/plain");
  for (const web::File& file : web::files())
    if (file.name == "index.html") send_file(file, request, response);
}

/// '1' for each expert of a layer whose bytes are all in memory.
Json expert_rows(const engine::Engine& engine) {
  const residency::UnitTable& units = engine.model().units();
  const bool all = engine.vram_budget() != nullptr;
  Json rows = Json::array();
  int layer = -1;
  for (std::size_t unit = 0; unit < units.units().size(); ++unit) {
    const residency::Unit& one = units.units()[unit];
    if (one.kind != residency::UnitKind::expert) continue;
    if (one.layer != layer) rows.push_back({{"layer", one.layer}, {"present", std::string()}});
    layer = one.layer;
    const auto tiles = units.tiles_of(static_cast<std::int32_t>(unit));
    bool present = true;
    for (std::int32_t tile = tiles.first; tile < tiles.last && !all; ++tile)
      present = present && engine.store().present(tile);
    rows.back()["present"].get_ref<std::string&>() += present ? '1' : '0';
  }
  return rows;
}

Json tiers(const engine::Engine& engine, const residency::Rates& rates) {
  const bool gpu = engine.vram_budget() != nullptr;
  const auto at_home = [&](const char* tier) {
    std::uint64_t bytes = 0;
    for (const auto& row : engine.plan().rows) bytes += row.tier == tier ? row.bytes : 0;
    return bytes;
  };
  const char* fast = gpu ? "vram" : "ram";
  return Json::array({{{"tier", fast},
                       {"moved", engine.store_counters().bytes_used},
                       {"ceiling", gpu ? rates.device_memory : rates.ram},
                       {"weights", at_home(fast)}},
                      {{"tier", "disk"},
                       {"moved", engine.storage().counters().bytes},
                       {"ceiling", rates.disk},
                       {"weights", at_home("disk")}}});
}

/// For 1, 2, ... conversations at once, each of them: what a measurement of so many is compared with. Empty: the rates
/// are not known.
Json speeds_side_by_side(const engine::Engine& engine, std::int64_t most) {
  constexpr std::int64_t kMostRows = 64;
  Json speeds = Json::array();
  for (std::int64_t n = 1; n <= std::clamp<std::int64_t>(most, 1, kMostRows); ++n) {
    const double all = residency::predict_tokens_per_second(engine.plan(), engine.rates(), {.sequences = n});
    if (all <= 0) return Json::array();
    speeds.push_back(all / static_cast<double>(n));
  }
  return speeds;
}

Json plan_of(const engine::Engine& engine, std::int64_t max_sequences) {
  const residency::Plan& plan = engine.plan();
  Json rows = Json::array();
  for (const auto& row : plan.rows)
    rows.push_back({{"tier", row.tier},
                    {"what", row.what},
                    {"executor", row.executor},
                    {"bound", row.bound},
                    {"bytes", row.bytes},
                    {"bytes_per_token", row.bytes_per_token},
                    {"milliseconds", row.milliseconds}});
  return {{"rows", std::move(rows)},
          {"tokens_per_second", plan.predicted_decode_tokens_per_second},
          {"tokens_per_second_side_by_side", speeds_side_by_side(engine, max_sequences)},
          {"hit_rate", plan.predicted_hit_rate},
          {"bound", plan.bound}};
}

/// By drafter; places as far as any was verified.
Json drafts_of(const engine::LoadCounters& load) {
  Json all = Json::array();
  for (const engine::DraftCounters& one : load.drafts) {
    Json drafted = Json::array(), right = Json::array();
    for (std::size_t place = 0; place < one.drafted_at.size() && one.drafted_at[place] > 0; ++place) {
      drafted.push_back(one.drafted_at[place]);
      right.push_back(one.right_at[place]);
    }
    all.push_back({{"drafter", one.drafter},
                   {"drafted", one.drafted},
                   {"right", one.right},
                   {"drafted_at", std::move(drafted)},
                   {"right_at", std::move(right)},
                   {"passes", one.passes},
                   {"seconds", one.seconds},
                   {"verify_seconds", one.verify_seconds}});
  }
  return all;
}

/// What a draft model could bring, where there is none; null where one was asked for, or could not be.
Json supposed_draft(const engine::Engine& engine, const engine::EngineOptions& options) {
  const engine::SpeculateOptions& speculate = options.speculate;
  const bool asked = !speculate.draft_model.empty() || speculate.within != engine::Within::none;
  if (asked || speculate.mode == engine::SpeculateOptions::Mode::off) return nullptr;
  if (options.part.cluster != nullptr || !options.device.gpus_beside.empty()) return nullptr;
  const double acceptance = speculate.acceptance;
  const engine::SupposedDraft draft = engine::suppose_draft(engine.plan(), engine.rates(), acceptance);
  return {{"bytes", draft.bytes},
          {"acceptance", acceptance},
          {"guesses", draft.forecast.drafts},
          {"tokens_per_second", draft.forecast.tokens_per_second}};
}

Json live_of(engine::Engine& engine, const std::string& name, const engine::EngineOptions& options) {
  const residency::Rates& rates = engine.rates();
  const engine::LoadCounters load = engine.load();
  const residency::StoreCounters store = engine.store_counters();
  const exec::ExecCounters exec = engine.executor().counters();
  return {{"model", name},
          {"executor", engine.executor().describe()},
          {"time_ns", Trace::now_ns()},
          {"tiers", tiers(engine, rates)},
          {"plan", plan_of(engine, load.max_sequences)},
          {"rates",
           {{"disk", rates.disk},
            {"ram", rates.ram},
            {"cpu_decode", rates.cpu_decode},
            {"host_to_device", rates.host_to_device},
            {"device_memory", rates.device_memory},
            {"machine", rates.machine},
            {"brief", rates.brief}}},
          {"experts", expert_rows(engine)},
          {"hits", store.hits},
          {"misses", store.misses},
          {"misses_a_pass", store.experts.steady_misses},
          {"stall_ns", std::max(store.stall_ns, exec.weight_wait_ns)},
          {"passes", exec.passes},
          {"pass_ns", exec.pass_ns},
          {"rows", load.rows},
          {"decode_tokens", load.decode_tokens},
          {"tokens_a_turn", load.tokens_a_turn()},
          {"drafts", drafts_of(load)},
          {"supposed_draft", supposed_draft(engine, options)},
          {"live", load.live},
          {"queued", load.queued},
          {"max_sequences", load.max_sequences},
          {"last_rows", load.last_rows},
          {"kv_blocks", load.kv_blocks},
          {"kv_blocks_cached", load.kv_blocks_cached},
          {"kv_blocks_bound", load.kv_blocks_bound},
          {"shared_tokens", load.shared_tokens},
          {"memory", engine.budget().reserved_bytes()},
          {"memory_cap", engine.budget().cap_bytes()},
          {"context_tokens", engine.context_tokens()}};
}

/// With ?history=1: and the last ten minutes of each model.
void live(Context& context, const Request& request, Response& response) {
  Json models = Json::array();
  for (const auto& running : context.models.running()) {
    const engine::ModelManager::Loaded& loaded = *running.loaded;
    // Between passes, by the thread that runs them: what is in memory changes within one.
    loaded.service->run(
        [&](engine::Engine& engine) { models.push_back(live_of(engine, loaded.name, context.options.models.engine)); });
  }
  Json body = {{"models", std::move(models)}};
  if (request.get_param_value("history") == "1") body["history"] = context.history.to_json();
  reply(response, body);
}

}  // namespace

void add_web_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Get("/", front);
  context.http.Get("/api/millrace/live", on(live));
  for (const web::File& file : web::files())
    context.http.Get(fmt::format("/page/{}", file.name),
                     [&file](const Request& request, Response& response) { send_file(file, request, response); });
}

}  // namespace millrace::server
