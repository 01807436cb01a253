// Layers with a state: convolution, gated delta rule, selective scan.
#include <fmt/format.h>

#include "cuda_kernels/shapes.h"
#include "kernels/cuda/launchers.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

constexpr int kTaps = 4;
/// Qwen3.6-35B-A3B.
struct Delta {
  static constexpr int kKeyHeads = 16, kValueHeads = 32, kDim = 128;
  static constexpr int kChannels = (2 * kKeyHeads + kValueHeads) * kDim;
  static constexpr int kMatrices = kValueHeads * kDim * kDim;  // floats
};
/// Nemotron 30B-A3B's Mamba-2.
struct Mamba {
  static constexpr int kHeads = 64, kHeadDim = 64, kGroups = 8, kKeys = 128;
  static constexpr int kChannels = kHeads * kHeadDim + 2 * kGroups * kKeys;
  static constexpr int kMatrices = kHeads * kHeadDim * kKeys;
};

/// A block of states in memory a sequence and one that takes them behind the pass; a prompt's rows are cut into runs of
/// kChunkRows. floats: of a block.
StateRuns state_runs(Case& c, int rows, std::int64_t floats) {
  const bool prompt = rows == kPromptRows;
  std::vector<StateRun> runs;
  std::vector<std::int32_t> first = {0};
  for (int s = 0; s < (prompt ? 1 : rows); ++s) {
    const auto* const before = c.reads<float>(floats);
    auto* const after = c.writes<float>(floats);
    const int count = prompt ? rows / kChunkRows : 1;
    for (int i = 0; i < count; ++i) {
      StateRun run;
      run.before = reinterpret_cast<const std::byte*>(before);
      run.after = i + 1 == count ? reinterpret_cast<std::byte*>(after) : nullptr;
      run.rows = prompt ? kChunkRows : 1;
      run.first_row = prompt ? i * kChunkRows : s;
      run.sequence_row = prompt ? 0 : s;
      run.sequence_has_more = count > 1 ? 1 : 0;
      runs.push_back(run);
    }
    first.push_back(static_cast<std::int32_t>(runs.size()));
  }
  return {c.holds(runs), c.holds(first), static_cast<std::int32_t>(runs.size()),
          static_cast<std::int32_t>(first.size()) - 1};
}

ConvolveCall convolution(Case& c, const StateRuns& runs, int channels) {
  ConvolveCall call;
  call.runs = runs;
  call.weight = c.vector(std::int64_t{channels} * kTaps);
  call.silu = true;
  call.taps = kTaps;
  call.channels = channels;
  return call;
}

void time_convolutions(Suite& suite, int rows) {
  const auto time = [&](std::string_view name, int channels, int heads) {
    suite.time("convolve", name, rows, [=](Case& c) {
      const StateRuns runs = state_runs(c, rows, std::int64_t{kTaps - 1} * channels);
      ConvolveCall call = convolution(c, runs, channels);
      call.x = c.changes<float>(std::int64_t{rows} * channels);
      call.heads = heads;
      call.eps = 1e-6F;
      if (rows == kPromptRows)
        call.borders = c.room<float>(
            static_cast<std::int64_t>(convolve_workspace_bytes(runs.count, kTaps, channels) / sizeof(float)));
      return [=](cudaStream_t stream) { return convolve(call, stream); };
    });
  };
  time("35B-A3B, norms of queries and keys", Delta::kChannels, 2 * Delta::kKeyHeads);
  time("Nemotron 30B-A3B", Mamba::kChannels, 0);
}

DeltaRuleCall delta(Case& c, const StateRuns& runs, int rows) {
  DeltaRuleCall call;
  call.runs = runs;
  call.beta = c.reads<float>(std::int64_t{rows} * Delta::kValueHeads);
  call.decay = c.reads<float>(std::int64_t{rows} * Delta::kValueHeads);
  call.key_heads = Delta::kKeyHeads;
  call.value_heads = Delta::kValueHeads;
  call.key_dim = call.value_dim = Delta::kDim;
  call.scale = 0.088F;
  return call;
}
DeltaRuleCall delta_alone(Case& c, int rows) {
  DeltaRuleCall call = delta(c, state_runs(c, rows, Delta::kMatrices), rows);
  call.qkv = c.reads<float>(std::int64_t{rows} * Delta::kChannels);
  call.out = c.writes<float>(std::int64_t{rows} * Delta::kValueHeads * Delta::kDim);
  return call;
}

void time_deltas(Suite& suite, int rows) {
  suite.time("delta_rule", "35B-A3B", rows, [=](Case& c) {
    const DeltaRuleCall call = delta_alone(c, rows);
    return [=](cudaStream_t stream) { return delta_rule(call, stream); };
  });
  if (rows == kPromptRows) {
    if (!suite.lists() && !has_delta_chunks()) return;
    suite.time("delta_chunks", "35B-A3B", rows, [=](Case& c) {
      DeltaChunksCall call{delta_alone(c, rows), nullptr};
      call.workspace = c.room<std::byte>(static_cast<std::int64_t>(
          delta_chunks_workspace_bytes(call.rule.runs.count, Delta::kKeyHeads, Delta::kValueHeads, Delta::kDim)));
      // Of a chunk and a value head: with the state before and for it, T times differences, and P with them; of a key
      // head, keys with keys and with queries.
      constexpr double kState = 3.0 * kChunkRows * Delta::kDim * Delta::kDim;
      constexpr double kSquare = static_cast<double>(kChunkRows) * kChunkRows * Delta::kDim;
      c.multiplies_bf16(call.rule.runs.count *
                        (Delta::kValueHeads * (kState + 2 * kSquare) + Delta::kKeyHeads * 2 * kSquare));
      return [=](cudaStream_t stream) { return delta_chunks(call, stream); };
    });
    return;
  }
  suite.time("delta_step", "35B-A3B, to int8", rows, [=](Case& c) {
    constexpr std::int64_t kKept = std::int64_t{kTaps - 1} * Delta::kChannels;
    const int values = Delta::kValueHeads * Delta::kDim;
    DeltaStepCall call;
    const StateRuns runs = state_runs(c, rows, kKept + Delta::kMatrices);
    call.convolution = convolution(c, runs, Delta::kChannels);
    call.convolution.x = c.reads<float>(std::int64_t{rows} * Delta::kChannels);
    call.rule = delta(c, runs, rows);
    call.rule.offset = kKept * static_cast<std::int64_t>(sizeof(float));
    call.a = c.vector(Delta::kValueHeads);
    call.a_bias = c.vector(Delta::kValueHeads);
    call.eps = call.norm.eps = 1e-6F;
    call.norm.gate = c.reads<float>(std::int64_t{rows} * values);
    call.norm.weight = c.vector(Delta::kDim);
    call.norm.rows = rows;
    call.norm.heads = Delta::kValueHeads;
    call.norm.head_dim = Delta::kDim;
    call.norm.out_q8 = c.q8_room(rows, values);
    return [=](cudaStream_t stream) { return delta_step(call, stream); };
  });
}

void time_scans(Suite& suite, int rows) {
  suite.time("scan", "Nemotron 30B-A3B", rows, [=](Case& c) {
    ScanCall call;
    call.runs = state_runs(c, rows, Mamba::kMatrices);
    call.x = c.reads<float>(std::int64_t{rows} * Mamba::kChannels);
    call.step = c.reads<float>(std::int64_t{rows} * Mamba::kHeads);
    call.decay = c.reads<float>(std::int64_t{rows} * Mamba::kHeads);
    call.skip = c.vector(Mamba::kHeads);
    call.out = c.writes<float>(std::int64_t{rows} * Mamba::kHeads * Mamba::kHeadDim);
    call.heads = Mamba::kHeads;
    call.head_dim = Mamba::kHeadDim;
    call.groups = Mamba::kGroups;
    call.keys = Mamba::kKeys;
    return [=](cudaStream_t stream) { return scan(call, stream); };
  });
  suite.time("time_step", "Nemotron 30B-A3B", rows, [=](Case& c) {
    float* const decay = c.writes<float>(std::int64_t{rows} * Mamba::kHeads);
    float* const step = c.changes<float>(std::int64_t{rows} * Mamba::kHeads);
    const auto *const a = c.vector(Mamba::kHeads), *const bias = c.vector(Mamba::kHeads);
    return [=](cudaStream_t stream) { return time_step(decay, step, a, bias, rows, Mamba::kHeads, 1, 0, stream); };
  });
}

}  // namespace

void time_states(Suite& suite) {
  for (const int rows : kAllRows) {
    time_convolutions(suite, rows);
    time_deltas(suite, rows);
    time_scans(suite, rows);
  }
}

}  // namespace millrace::bench
