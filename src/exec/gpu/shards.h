// A model whose rows are shared out to several GPUs of one host (model::Shard), as one executor: each computes its rows
// of every pass from its own memory and over its own link, and what they make is gathered on all
// (kernels/gpu/gather.h). The bits are those of one GPU, because no sum is cut. Sequences have their blocks on all of
// them (exec/gpu/blocks.h). Thread-safety: one thread calls; each GPU but the first has a thread of its own behind it,
// and all of them ask whether the pass is cancelled.
#pragma once

#include <memory>
#include <vector>

#include "exec/gpu/executor.h"

namespace millrace::exec {

/// What one GPU has: its rows' units, weights, and program. All but the program outlive the executor.
struct GpuShard {
  const residency::UnitTable& units;
  residency::DeviceWeights& weights;
  residency::Budget& vram;
  const Program& program;
  GpuOptions options;  // with kv_layout and own_block; brings_results is set here. Where experts flow, with
                       // expert_gpu, and the first one's with pool, kernels and ram
};

/// What prepare() reserves for gathers: on each GPU, and of RAM where they go through the host.
struct GatherMemory {
  std::uint64_t vram_bytes = 0, ram_bytes = 0;
};
GatherMemory gather_memory(std::size_t gpus);

/// At least two. `ram` outlives the executor. prepare() takes any of the programs. through_host: GPUs write to the
/// host's memory, not to each other's; so also where they cannot. Errors: io_error.
Expected<std::unique_ptr<Executor>> make_sharded_executor(std::vector<GpuShard> shards, residency::Budget& ram,
                                                          bool through_host);

}  // namespace millrace::exec
