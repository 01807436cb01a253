// What a cluster would do with a model: which host has which layers, what each holds in RAM and reads from its disk,
// and how fast that is. Nothing is loaded, and the hosts need not be there: their rates were measured by each
// (`millrace calibrate --out`), or are supposed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/paper.h"
#include "residency/predict.h"

namespace millrace::engine {

using ClusterHost = Machine;

struct ClusterNetwork {
  double seconds = 0;           // until a short message is there
  double bytes_per_second = 0;  // of a long one
};

struct ClusterStage {
  std::size_t host = 0;  // its place among the hosts
  model::Stage layers;
  std::uint64_t weight_bytes = 0;  // the embedding's among them, which is the first host's
  residency::Plan plan;
  residency::PassTime one, group;  // a pass of a row; of the rows that a pass has of several sequences
};

struct ClusterPlan {
  std::vector<ClusterStage> stages;  // of hosts that have layers
  double border_seconds = 0;         // of a row, all borders and the logits' way back
  double one_tokens_per_second = 0;  // of a sequence by itself
  std::int64_t sequences = 1;
  double tokens_per_second = 0;  // of so many, all together
  std::int64_t context_tokens = 0;

  /// "0-10,11-21": the layers of each host that has some.
  std::string stages_flag() const;
};

/// Layers go to the hosts in their order, the first being rank 0. For one sequence (options.max_sequences) hosts that
/// would slow it down have none; for several, all work at once, and the slowest stage is as fast as it can be.
/// All have a GPU or none. Errors: those of plan_only(); invalid_argument (rates are missing, a GPU is); unsupported
/// (see check_cluster_options(); GPUs, and built without CUDA).
Expected<ClusterPlan> plan_cluster(const EngineOptions& options, std::span<const ClusterHost> hosts,
                                   const ClusterNetwork& network);

}  // namespace millrace::engine
