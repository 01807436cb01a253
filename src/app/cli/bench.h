// What `millrace bench` measures, and how it is told. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "base/json.h"
#include "engine/decode_meter.h"

namespace millrace::cli {

struct BenchFlags {
  ModelFlags model;
  int prompt_tokens = 512, decode_tokens = 64, repetitions = 3, sequences = 1;
  std::string trace, routing = "model", squeeze;
  double accept = -1;
  bool json = false, hash = false, hash_prompt = false, warm = true, explain = false;
};

/// What one repetition measured.
struct BenchSample {
  double prompt_tok_s = 0, decode_tok_s = 0;
  double disk_bytes_s = 0;         // while reading
  double decode_disk_bytes = 0;    // a token
  double decode_weight_bytes = 0;  // a token
  double copied_bytes = 0;         // to a GPU, a token
  double hit_rate = -1;
  double stall_share = 0;
  double stages_ms = 0, between_ms = 0;  // of a pass that decodes, over several processes
};

/// Keys before a decoded token, on average.
inline std::int64_t decode_context(const BenchFlags& flags) { return flags.prompt_tokens + flags.decode_tokens / 2; }

/// Repetitions of the same work, on an engine that outlives this.
class Bench {
 public:
  Bench(engine::Engine& engine, const BenchFlags& flags, const Program& program)
      : engine_(engine), flags_(flags), program_(program), meter_(engine) {}

  /// Errors: those of the engine; cancelled.
  Status run();

  const std::vector<BenchSample>& samples() const { return samples_; }
  const residency::DecodeCost& cost() const { return meter_.cost(); }
  std::uint64_t hash() const { return hash_; }
  bool finite() const { return finite_; }

 private:
  Status repetition(std::uint64_t seed, BenchSample& sample);
  void fill(BenchSample& sample, const residency::StoreCounters& store_before, const storage::Counters& disk_before,
            double seconds) const;
  /// Of passes that decode alone: what a prompt brings across is for many rows.
  void fill_copied(BenchSample& sample, const residency::StoreCounters& before) const;
  void fill_stages(BenchSample& sample, const exec::ExecCounters& before) const;

  engine::Engine& engine_;
  const BenchFlags& flags_;
  const Program& program_;
  engine::DecodeMeter meter_;
  std::vector<BenchSample> samples_;
  std::uint64_t hash_ = 0;
  bool finite_ = true;
};

/// Medians of what was measured, beside what the plan predicted.
nlohmann::json bench_report(const engine::Engine& engine, const Bench& bench, const BenchFlags& flags,
                            const residency::Rates& rates);
/// A report in words.
void print_bench(const nlohmann::json& report);

}  // namespace millrace::cli
