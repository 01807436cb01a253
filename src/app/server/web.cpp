// The page at "/" for browsers, and what it shows of the machine.
#include <algorithm>

#include "app/server/context.h"
#include "app/web/page.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

void front(Context&, const Request& request, Response& response) {
  response.set_header("Vary", "Accept");
  if (request.get_header_value("Accept").find("text/html") == std::string::npos)
    return response.set_content("Ollama is running", "text/plain");
  response.set_header(
      "Content-Security-Policy",
      "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'");
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_content(std::string(web::index_html()), "text/html; charset=utf-8");
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

Json live_of(engine::Engine& engine, const std::string& name, const residency::Rates& rates) {
  const engine::LoadCounters load = engine.load();
  const residency::StoreCounters store = engine.store_counters();
  const exec::ExecCounters exec = engine.executor().counters();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {{"model", name},
          {"executor", engine.executor().describe()},
          {"time_ns", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()},
          {"tiers", tiers(engine, rates)},
          {"experts", expert_rows(engine)},
          {"hits", store.hits},
          {"misses", store.misses},
          {"stall_ns", std::max(store.stall_ns, exec.weight_wait_ns)},
          {"passes", exec.passes},
          {"pass_ns", exec.pass_ns},
          {"live", load.live},
          {"queued", load.queued},
          {"max_sequences", load.max_sequences},
          {"last_rows", load.last_rows},
          {"kv_blocks", load.kv_blocks},
          {"kv_blocks_cached", load.kv_blocks_cached},
          {"kv_blocks_bound", load.kv_blocks_bound},
          {"shared_tokens", load.shared_tokens},
          {"memory", engine.budget().reserved_bytes()}};
}

void live(Context& context, const Request&, Response& response) {
  Json models = Json::array();
  for (const auto& running : context.models.running()) {
    const engine::ModelManager::Loaded& loaded = *running.loaded;
    // Between passes, by the thread that runs them: what is in memory changes within one.
    loaded.service->run([&](engine::Engine& engine) {
      models.push_back(live_of(engine, loaded.name, context.options.models.engine.rates));
    });
  }
  reply(response, {{"models", std::move(models)}});
}

}  // namespace

void add_web_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Get("/", on(front));
  context.http.Get("/api/millrace/live", on(live));
  context.http.Get("/app.js", [](const Request&, Response& response) {
    response.set_content(std::string(web::app_js()), "text/javascript; charset=utf-8");
  });
  context.http.Get("/style.css", [](const Request&, Response& response) {
    response.set_content(std::string(web::style_css()), "text/css; charset=utf-8");
  });
}

}  // namespace millrace::server
