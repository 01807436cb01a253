#include "app/server/live_history.h"

#include <algorithm>
#include <optional>

#include "app/server/metrics.h"
#include "base/carry_on.h"
#include "base/trace.h"

namespace millrace::server {
namespace {

std::int64_t steady_ns() { return static_cast<std::int64_t>(Trace::now_ns()); }

constexpr std::int64_t kMemoryNs = 600'000'000'000;

/// The executor's counters are its thread's, so an idle model, whose thread sleeps, is left alone: `before` holds
/// still.
LiveSample take_sample(const engine::ModelManager::Loaded& loaded, const LiveSample* before) {
  LiveSample sample;
  const engine::LoadCounters load = loaded.service->load();
  sample.load_passes = load.passes;
  if (before != nullptr && before->load_passes == load.passes) {
    sample = *before;
    sample.time_ns = steady_ns();
    return sample;
  }
  loaded.service->run([&](engine::Engine& engine) {
    const residency::StoreCounters store = engine.store_counters();
    const exec::ExecCounters exec = engine.executor().counters();
    sample.passes = exec.passes;
    sample.pass_ns = exec.pass_ns;
    sample.stall_ns = std::max(store.stall_ns, exec.weight_wait_ns);
    sample.used_bytes = store.bytes_used;
    sample.disk_bytes = engine.storage().counters().bytes;
    const engine::LoadCounters now = engine.load();
    sample.rows = now.rows;
    sample.decode_tokens = now.decode_tokens;
    const GuessCounts guesses = guesses_of(now);
    sample.guesses = guesses.all;
    sample.right_guesses = guesses.right;
    sample.time_ns = steady_ns();
  });
  return sample;
}

/// The first sample of a load, all counters 0, so that the history includes what happened before the first look.
LiveSample at_load(const engine::ModelManager::Loaded& loaded) {
  const std::chrono::nanoseconds ago = engine::ModelManager::Clock::now() - loaded.loaded_at;
  LiveSample sample;
  sample.time_ns = steady_ns() - std::max<std::int64_t>(ago.count(), 0);  // the clock may have been set back
  return sample;
}

}  // namespace

LiveHistory::LiveHistory(engine::ModelManager& models) : models_(models), thread_([this] { work(); }) {}

void LiveHistory::end() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  wake_.notify_all();
}

void LiveHistory::stop() {
  end();
  if (thread_.joinable()) thread_.join();
}

void LiveHistory::work() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (wake_.wait_for(mutex_, kEvery, [this]() MR_REQUIRES(mutex_) { return stopped_; })) return;
    }
    carry_on("live history", [this] { sample_all(); });
  }
}

void LiveHistory::sample_all() {
  for (const auto& one : models_.running()) {
    const void* const load = one.loaded.get();
    std::optional<LiveSample> before;
    {
      const MutexLock lock(mutex_);
      if (stopped_) return;
      const auto found = past_.find(one.loaded->name);
      if (found != past_.end() && found->second.load == load) before = found->second.samples.back();
    }
    // Between two passes, which may take long: nothing is locked meanwhile.
    const LiveSample now = take_sample(*one.loaded, before ? &*before : nullptr);
    if (now.time_ns == 0) continue;  // the model is being unloaded
    const MutexLock lock(mutex_);
    Past& past = past_[one.loaded->name];
    if (past.load != load) past = {load, {at_load(*one.loaded)}};
    add(now, past.samples);
  }
  const MutexLock lock(mutex_);
  forget_old();
}

void LiveHistory::add(const LiveSample& now, std::deque<LiveSample>& samples) {
  // A silence is its two ends.
  const std::size_t count = samples.size();
  if (count >= 2 && samples[count - 1].passes == now.passes && samples[count - 2].passes == now.passes)
    samples.pop_back();
  samples.push_back(now);
  if (samples.size() > kMostSamples) samples.pop_front();
}

void LiveHistory::forget_old() {
  const std::int64_t oldest = steady_ns() - kMemoryNs;
  for (auto it = past_.begin(); it != past_.end();) {
    auto& samples = it->second.samples;
    while (!samples.empty() && samples.front().time_ns < oldest) samples.pop_front();
    it = samples.empty() ? past_.erase(it) : std::next(it);
  }
}

nlohmann::json LiveHistory::to_json() const {
  nlohmann::json all = nlohmann::json::array();
  const MutexLock lock(mutex_);
  for (const auto& [model, past] : past_) {
    nlohmann::json samples = nlohmann::json::array();
    for (const LiveSample& one : past.samples)
      samples.push_back({{"time_ns", one.time_ns},
                         {"passes", one.passes},
                         {"pass_ns", one.pass_ns},
                         {"stall_ns", one.stall_ns},
                         {"rows", one.rows},
                         {"decode_tokens", one.decode_tokens},
                         {"guesses", one.guesses},
                         {"right_guesses", one.right_guesses},
                         {"moved", {one.used_bytes, one.disk_bytes}}});
    all.push_back({{"model", model}, {"samples", std::move(samples)}});
  }
  return all;
}

}  // namespace millrace::server
