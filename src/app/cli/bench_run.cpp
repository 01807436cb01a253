// How `millrace bench` measures.
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "app/cli/bench.h"
#include "app/cli/progress.h"
#include "base/random.h"

namespace millrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Tokens that differ by repetition and sequence: repeating one prompt would flatter an expert cache.
std::vector<text::TokenId> random_prompt(int tokens, std::int32_t vocab, std::uint64_t seed) {
  std::vector<text::TokenId> ids(static_cast<std::size_t>(tokens));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  for (auto& id : ids) id = static_cast<text::TokenId>(next_random(state) % static_cast<std::uint64_t>(vocab));
  return ids;
}

/// Finds the passes in which every sequence decodes: prompts may end in different passes, and the first sequence to end
/// leaves a smaller batch behind.
class DecodeWindow {
 public:
  explicit DecodeWindow(int sequences) : sequences_(sequences) {}

  /// A sequence's prompt ended in the pass now running, which gives its first token.
  void prompt_ended() { ++in_decode_; }
  /// `decoded`: tokens of all sequences so far; `some_ended`: a sequence has all of its tokens.
  void pass_ended(engine::DecodeMeter& meter, std::int64_t decoded, bool some_ended) {
    if (ended_) return;
    if (begun_) {
      tokens_ = decoded - first_token_;
      end_ = Clock::now();
      meter.reached(tokens_);
    } else if (in_decode_ == sequences_) {
      begun_ = true;
      first_token_ = decoded;
      begin_ = end_ = Clock::now();
      meter.begin();
    }
    ended_ = some_ended;
  }
  /// Tokens a second of all sequences together; 0 if they never decoded side by side.
  double tokens_per_second() const {
    const double seconds = std::chrono::duration<double>(end_ - begin_).count();
    return tokens_ > 0 && seconds > 0 ? static_cast<double>(tokens_) / seconds : 0;
  }

 private:
  const int sequences_;
  int in_decode_ = 0;
  bool begun_ = false, ended_ = false;
  std::int64_t first_token_ = 0, tokens_ = 0;
  Clock::time_point begin_, end_;
};

/// Hashes the logits of one sequence in the order they are made.
struct Hasher {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{XXH3_createState(), XXH3_freeState};
  bool finite = true;
  Hasher() { XXH3_64bits_reset(state.get()); }
  void add(std::span<const float> logits) {
    XXH3_64bits_update(state.get(), logits.data(), logits.size_bytes());
    for (const float value : logits) finite = finite && std::isfinite(value);
  }
  std::uint64_t digest() const { return XXH3_64bits_digest(state.get()); }
};

}  // namespace

Status Bench::run() {
  const int rounds = flags_.repetitions + (flags_.warm ? 1 : 0);
  Progress progress("Measuring", Unit::items, program_.quiet);
  for (int round = 0; round < rounds; ++round) {
    progress.update(static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(rounds));
    BenchSample sample;
    MR_RETURN_IF_ERROR(repetition(static_cast<std::uint64_t>(flags_.warm ? round : round + 1), sample));
    if (flags_.warm && round == 0) continue;
    samples_.push_back(sample);
    meter_.end();
  }
  return {};
}

Status Bench::repetition(std::uint64_t seed, BenchSample& sample) {
  const auto store_before = engine_.store_counters();
  const auto disk_before = engine_.storage().counters();
  engine_.move_routing_on();  // one text's experts again would flatter a cache
  std::vector<Hasher> hashers(static_cast<std::size_t>(flags_.sequences));
  std::vector<engine::Engine::Id> ids;
  DecodeWindow window(flags_.sequences);
  exec::ExecCounters prompts_done;
  residency::StoreCounters store_after_prompts = store_before;
  for (int s = 0; s < flags_.sequences; ++s) {
    engine::Request request;
    request.prompt = random_prompt(flags_.prompt_tokens, engine_.tokenizer().vocab_size(),
                                   seed * 1000 + static_cast<std::uint64_t>(s));
    request.sampler.temperature = 0;
    request.max_tokens = std::max(1, flags_.decode_tokens);
    request.ignore_end_tokens = true;
    request.logits_of_prompt = flags_.hash_prompt;
    // Text that does not repeat itself: random weights soon do, which would flatter an expert cache.
    request.forced_tokens = random_prompt(flags_.decode_tokens, engine_.tokenizer().vocab_size(),
                                          seed * 1000 + static_cast<std::uint64_t>(s) + 500'000);
    request.drafts_right = flags_.accept;
    auto* hasher = &hashers[static_cast<std::size_t>(s)];
    if (flags_.hash || flags_.hash_prompt)
      request.on_logits = [hasher](std::int64_t, std::span<const float> logits) { hasher->add(logits); };
    request.on_prompt = [&](std::int64_t done, std::int64_t total) {
      if (done != total) return;
      window.prompt_ended();
      prompts_done = engine_.executor().counters();
      store_after_prompts = engine_.store_counters();
    };
    MR_ASSIGN_OR_RETURN(const auto id, engine_.submit(std::move(request)));
    ids.push_back(id);
  }
  const auto start = Clock::now();
  while (engine_.step()) {
    const bool some_ended =
        std::any_of(ids.begin(), ids.end(), [this](engine::Engine::Id id) { return engine_.finished(id); });
    window.pass_ended(meter_, static_cast<std::int64_t>(engine_.load().decode_tokens), some_ended);
    if (interrupted()) return error(Code::cancelled, "stopped");
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  double prompt_seconds = 0, decode_seconds = 0;
  std::int64_t decoded = 0;
  for (const auto id : ids) {
    auto result = engine_.take(id);
    if (result.finish == engine::Finish::error) return result.status;
    prompt_seconds = std::max(prompt_seconds, result.prompt_seconds);
    decode_seconds = std::max(decode_seconds, result.decode_seconds);
    decoded += static_cast<std::int64_t>(result.tokens.size()) - 1;
  }
  fill(sample, store_before, disk_before, seconds);
  fill_copied(sample, store_after_prompts);
  fill_stages(sample, prompts_done);
  if (prompt_seconds > 0) sample.prompt_tok_s = flags_.prompt_tokens * flags_.sequences / prompt_seconds;
  if (decode_seconds > 0 && decoded > 0) sample.decode_tok_s = static_cast<double>(decoded) / decode_seconds;
  if (flags_.sequences > 1 && window.tokens_per_second() > 0) sample.decode_tok_s = window.tokens_per_second();
  // The same seed gives the same logits: the first counted repetition's first sequence is the run's fingerprint.
  if (samples_.empty()) hash_ = hashers[0].digest();
  for (const auto& hasher : hashers) finite_ = finite_ && hasher.finite;
  return {};
}

void Bench::fill(BenchSample& sample, const residency::StoreCounters& store_before,
                 const storage::Counters& disk_before, double seconds) const {
  const auto store = engine_.store_counters();
  const auto disk = engine_.storage().counters();
  const double busy = static_cast<double>(disk.busy_ns - disk_before.busy_ns) * 1e-9;
  const double read = static_cast<double>(disk.bytes - disk_before.bytes);
  const double passes = static_cast<double>(store.passes - store_before.passes);
  if (busy > 0) sample.disk_bytes_s = read / busy;
  if (passes > 0) {
    // On a GPU, of what passes read: what comes to RAM to stay beside the first one is loading.
    const bool gpu = engine_.vram_budget() != nullptr;
    const auto streamed = static_cast<double>(store.bytes_from_disk - store_before.bytes_from_disk);
    sample.decode_disk_bytes = (gpu ? streamed : read) / passes;
    sample.decode_weight_bytes = static_cast<double>(store.bytes_used - store_before.bytes_used) / passes;
  }
  const auto leases = store.hits + store.misses - store_before.hits - store_before.misses;
  if (leases > 0) sample.hit_rate = static_cast<double>(store.hits - store_before.hits) / static_cast<double>(leases);
  sample.stall_share = static_cast<double>(store.stall_ns - store_before.stall_ns) * 1e-9 / seconds;
}

void Bench::fill_copied(BenchSample& sample, const residency::StoreCounters& before) const {
  const residency::StoreCounters after = engine_.store_counters();
  if (after.passes == before.passes) return;
  sample.copied_bytes = static_cast<double>(after.bytes_to_device - before.bytes_to_device) /
                        static_cast<double>(after.passes - before.passes);
}

void Bench::fill_stages(BenchSample& sample, const exec::ExecCounters& before) const {
  const exec::ExecCounters after = engine_.executor().counters();
  const double passes = static_cast<double>(after.passes - before.passes) * 1e6;
  if (passes <= 0) return;
  sample.stages_ms =
      static_cast<double>(after.pass_ns - before.pass_ns + after.elsewhere_ns - before.elsewhere_ns) / passes;
  sample.between_ms = static_cast<double>(after.between_ns - before.between_ns) / passes;
}

}  // namespace millrace::cli
