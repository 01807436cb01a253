#include "app/server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

namespace millrace::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// Families in the order of their first sample.
class Families {
 public:
  void counter(const char* name, const char* help, double value, Labels labels = {}) {
    ClientMetric metric;
    metric.counter.value = value;
    add(name, help, MetricType::Counter, std::move(metric), std::move(labels));
  }
  void gauge(const char* name, const char* help, double value, Labels labels = {}) {
    ClientMetric metric;
    metric.gauge.value = value;
    add(name, help, MetricType::Gauge, std::move(metric), std::move(labels));
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  void add(const char* name, const char* help, MetricType type, ClientMetric metric, Labels labels) {
    metric.label = std::move(labels);
    for (MetricFamily& family : families_) {
      if (family.name != name) continue;
      family.metric.push_back(std::move(metric));
      return;
    }
    families_.push_back({name, help, type, {std::move(metric)}});
  }
  std::vector<MetricFamily> families_;
};

void add_drafts(Families& out, const engine::DraftCounters& drafts, const Labels& of_model) {
  Labels labels = of_model;
  labels.push_back({"drafter", drafts.drafter});
  out.counter("millrace_draft_seconds_total", "Time spent guessing tokens", drafts.seconds, labels);
  out.counter("millrace_draft_passes_total", "Passes that verified guessed tokens", static_cast<double>(drafts.passes),
              labels);
  out.counter("millrace_verify_seconds_total", "What those took more than passes without guessed tokens",
              drafts.verify_seconds, labels);
  for (std::size_t place = 0; place < drafts.drafted_at.size() && drafts.drafted_at[place] > 0; ++place) {
    Labels at_place = labels;
    at_place.push_back({"place", std::to_string(place + 1)});
    out.counter("millrace_drafts_total", "Guessed tokens that passes verified",
                static_cast<double>(drafts.drafted_at[place]), at_place);
    out.counter("millrace_drafts_right_total", "Those of them that became part of an answer",
                static_cast<double>(drafts.right_at[place]), at_place);
  }
}

void add_model(Families& out, const engine::ModelManager::Loaded& loaded) {
  const Labels labels = {{"model", loaded.name}};
  const auto with = [&](const char* name, const char* value) {
    Labels more = labels;
    more.push_back({name, value});
    return more;
  };
  const engine::LoadCounters load = loaded.service->load();
  const engine::Engine& engine = loaded.service->engine();
  const residency::StoreCounters store = engine.store_counters();
  const storage::Counters disk = engine.storage().counters();
  const auto number = [](auto value) { return static_cast<double>(value); };
  out.gauge("millrace_queue_length", "Requests that wait for their turn", number(load.queued), labels);
  out.gauge("millrace_batch_sequences", "Requests in the present passes", number(load.live), labels);
  out.gauge("millrace_batch_rows", "Tokens in the last pass", number(load.last_rows), labels);
  out.gauge("millrace_pass_seconds", "Duration of the last pass", load.last_pass_seconds, labels);
  out.counter("millrace_passes_total", "Passes over the weights", number(load.passes), labels);
  out.counter("millrace_rows_total", "Tokens computed, of prompts and answers", number(load.rows), labels);
  out.counter("millrace_decode_rows_total", "Tokens computed for answers", number(load.decode_tokens), labels);
  out.counter("millrace_decode_turns_total", "Passes of decoding that requests took part in", number(load.decode_turns),
              labels);
  for (const engine::DraftCounters& drafts : load.drafts) add_drafts(out, drafts, labels);
  out.counter("millrace_shared_prompt_tokens_total", "Prompt tokens taken from the KV of earlier requests",
              number(load.shared_tokens), labels);
  out.counter("millrace_prompt_cache_tokens_total", "Prompt tokens taken from the KV on the disk",
              number(load.disk.tokens), labels);
  out.counter("millrace_prompt_cache_bytes_total", "KV moved between memory and the disk",
              number(load.disk.store.read_bytes), with("direction", "read"));
  out.counter("millrace_prompt_cache_bytes_total", "KV moved between memory and the disk",
              number(load.disk.store.written_bytes), with("direction", "written"));
  out.gauge("millrace_prompt_cache_files", "KV blocks on the disk, of all models", number(load.disk.store.files),
            labels);
  out.gauge("millrace_prompt_cache_bytes", "Their bytes", number(load.disk.store.bytes), labels);
  out.counter("millrace_requests_cancelled_total", "Requests whose client left", number(load.cancelled), labels);
  out.counter("millrace_preemptions_total", "Times a request gave its KV up and began again", number(load.preempted),
              labels);
  out.gauge("millrace_kv_blocks", "KV blocks in use", number(load.kv_blocks), labels);
  out.gauge("millrace_kv_blocks_cached", "KV blocks in use that are kept for later requests",
            number(load.kv_blocks_cached), labels);
  out.gauge("millrace_kv_blocks_bound", "KV blocks at most", number(load.kv_blocks_bound), labels);
  out.counter("millrace_tier_bytes_total", "Bytes of weights moved", number(disk.bytes), with("tier", "disk"));
  out.counter("millrace_tier_bytes_total", "Bytes of weights moved", number(store.bytes_used),
              with("tier", engine.vram_budget() != nullptr ? "vram" : "ram"));
  const double busy = number(disk.busy_ns) * 1e-9;
  out.gauge("millrace_tier_gigabytes_per_second", "Rate while bytes were moving",
            busy > 0 ? number(disk.bytes) / busy / 1e9 : 0, with("tier", "disk"));
  out.counter("millrace_expert_hits_total", "Experts found where they are computed with", number(store.hits), labels);
  out.counter("millrace_expert_misses_total", "Experts not found there", number(store.misses), labels);
  out.gauge("millrace_expert_misses_per_pass", "Experts not found in a pass, lately", store.experts.steady_misses,
            labels);
  out.counter("millrace_experts_learned_total", "Experts read ahead because earlier traffic used them",
              number(store.experts.learned), labels);
  out.counter("millrace_experts_learned_used_total",
              "Experts read ahead from earlier traffic and used before they were evicted",
              number(store.experts.learned_used), labels);
  for (std::size_t l = 0; l < store.experts.layers.size(); ++l) {
    const residency::LayerCounters& layer = store.experts.layers[l];
    const auto of_layer = with("layer", std::to_string(l).c_str());
    out.counter("millrace_layer_expert_hits_total", "Experts of a layer found in memory", number(layer.hits), of_layer);
    out.counter("millrace_layer_expert_misses_total", "Experts of a layer not found there", number(layer.misses),
                of_layer);
    out.counter("millrace_layer_expert_evictions_total", "Experts of a layer evicted", number(layer.evictions),
                of_layer);
    out.gauge("millrace_layer_experts_resident", "A layer's experts in slots", number(layer.resident), of_layer);
    out.gauge("millrace_layer_experts_working_set", "Experts of a layer used in 32 passes on end, at most",
              number(layer.long_working_set), of_layer);
  }
  for (std::size_t kind = 0; kind < residency::kGuesses; ++kind) {
    const residency::GuessCounters& guess = store.guesses.by_kind[kind];
    const auto by = with("by", std::string(residency::guess_name(static_cast<residency::Guess>(kind))).c_str());
    out.counter("millrace_guess_uses_total", "Uses of experts in layers that were guessed", number(guess.used), by);
    out.counter("millrace_guesses_total", "Experts that were guessed", number(guess.guessed), by);
    out.counter("millrace_guesses_right_total", "Experts that were guessed and used", number(guess.right), by);
  }
  out.counter("millrace_experts_read_ahead_total", "Experts read before they were asked for",
              number(store.guesses.read_ahead), labels);
  out.counter("millrace_experts_read_ahead_used_total", "Experts read ahead and used",
              number(store.guesses.read_ahead_used), labels);
  out.counter("millrace_stall_seconds_total", "Time spent waiting for weights", number(store.stall_ns) * 1e-9, labels);
  out.gauge("millrace_memory_bytes", "Memory granted by the budget", number(engine.budget().reserved_bytes()), labels);
}

}  // namespace

void Metrics::count_request(int status) {
  ++(status < 400 ? requests_ok_ : status < 500 ? requests_refused_ : requests_failed_);
}

void Metrics::count_run(const generate::Totals& totals) {
  const MutexLock lock(mutex_);
  ++runs_;
  prompt_tokens_ += static_cast<std::uint64_t>(totals.prompt_tokens);
  completion_tokens_ += static_cast<std::uint64_t>(totals.completion_tokens);
  prompt_seconds_ += totals.prompt_seconds;
  decode_seconds_ += totals.decode_seconds;
}

std::string Metrics::render(const engine::ModelManager& models) const {
  Families out;
  const auto running = models.running();
  out.counter("millrace_http_requests_total", "Requests answered", static_cast<double>(requests_ok_),
              {{"outcome", "ok"}});
  out.counter("millrace_http_requests_total", "Requests answered", static_cast<double>(requests_refused_),
              {{"outcome", "refused"}});
  out.counter("millrace_http_requests_total", "Requests answered", static_cast<double>(requests_failed_),
              {{"outcome", "failed"}});
  {
    const MutexLock lock(mutex_);
    out.counter("millrace_runs_total", "Answers finished", static_cast<double>(runs_));
    out.counter("millrace_prompt_tokens_total", "Prompt tokens of finished answers",
                static_cast<double>(prompt_tokens_));
    out.counter("millrace_completion_tokens_total", "Tokens of finished answers",
                static_cast<double>(completion_tokens_));
    out.counter("millrace_prompt_seconds_total", "Seconds spent on prompts", prompt_seconds_);
    out.counter("millrace_decode_seconds_total", "Seconds spent on answers", decode_seconds_);
  }
  out.gauge("millrace_models_loaded", "Models in memory", static_cast<double>(running.size()));
  for (const auto& one : running) add_model(out, *one.loaded);
  return out.text();
}

GuessCounts guesses_of(const engine::LoadCounters& load) {
  GuessCounts counts;
  for (const engine::DraftCounters& one : load.drafts) {
    counts.all += one.drafted;
    counts.right += one.right;
  }
  return counts;
}

}  // namespace millrace::server
