// The GPU's executor: runs a program on one GPU, with weights in its memory or streamed to it, and with the CPU's help
// if weights are placed for that (split.h).
//
// The steps that become one launch are chosen when passes are prepared (exec/fusion.h); a pass puts the launches on one
// stream. A decode step is recorded once per shape and replayed: one upload of the pass's rows, one launch, one
// read-back. Thread-safety: only the thread that created it calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/thread_pool.h"
#include "base/trace.h"
#include "exec/executor.h"
#include "residency/gpu/experts.h"
#include "residency/gpu/weights.h"

namespace millrace::exec {

/// The CPU's share of layers in RAM, if the weights have one. All members are set or none; they outlive the executor.
struct ProcessorShare {
  ThreadPool* pool = nullptr;
  const kernels::Table* kernels = nullptr;
  residency::Budget* ram = nullptr;
};

/// A mixture's experts if they are not all in VRAM. Requires all of ProcessorShare.
struct ExpertSlotUse {
  residency::DeviceExperts* slots = nullptr;  // null: all experts are in VRAM
  // Which of their GPUs this is. Where there are several, others begin and end the passes of `slots`, and the executor
  // of the first GPU alone hands rows out to the processor.
  std::size_t gpu = 0;
  Prefetch prefetch = Prefetch::off;  // of experts that are guessed, from the disk to RAM
};

/// Of a program that other devices compute, too (exec/gpu/shards.h): the blocks of sequences lie there on the first
/// of them, in its layout; here in this one's, at the address that `own_block` says. Empty: in that of sequences.
struct SharedBlocks {
  std::optional<kv::Layout> layout;
  std::function<const std::byte*(std::size_t group, const std::byte* block)> own_block;
};

/// What rows of a pass may name.
struct RowSources {
  const Routing* routing = nullptr;  // chooses in the routers' place, in passes of limits that say so; may be null
  const std::vector<Adapter>* adapters = nullptr;  // that rows may go through (exec/adapters.h); null: none
};

struct GpuOptions {
  int device = 0;
  bool graphs = true;
  bool fuse = true;  // off: a step a launch, for tests that compare
  // Rows of prompts go through products of their own where the device has them (kernels::gpu::matmul_prompt), several
  // times as fast, and of another rounding than those of generated tokens.
  bool prompt_products = true;
  ProcessorShare processor;
  DType kv_dtype = DType::f16;  // of the sequences
  ExpertSlotUse experts;
  RowSources rows;
  SharedBlocks blocks;
  bool brings_results = true;  // to host memory
  bool aside = false;          // its passes are between those of another executor of the weights, and need only VRAM's
  Trace* trace = nullptr;      // if set, passes are not replayed as graphs, and every launch and copy is timed into it
};

/// The properties of the device and of its KV that decide what the executor can do.
struct GpuTraits {
  DType kv_dtype = DType::f16;
  std::uint64_t block_shared_bytes = 0;  // device::Gpu
};

/// The layout that sequences on a GPU keep: keys and values in as many channels a head as its attention takes, zeros
/// behind the model's own. What no head of attention is large enough for stays as it is. Pure.
kv::Layout gpu_kv_layout(const Program& program);
/// pass_shape() of the program in that layout.
PassShape gpu_pass_shape(const Program& program, const residency::UnitTable& units, const PassLimits& limits);

/// Checks that the GPU's executor can run a program, so that a model is refused before its weights are loaded;
/// prepare() checks it, too. Pure: needs no GPU. Errors: unsupported, naming the step and what to do.
Status check_gpu(const Program& program, const residency::UnitTable& units, const GpuTraits& traits);

/// Whether the executor can compute adapters of these weights, and of the embedding. Pure. Errors: unsupported, naming
/// the weight and what to do.
Status check_gpu_adapters(const Program& program, const residency::UnitTable& units,
                          const std::vector<WeightRef>& weights, bool embedding);

/// Executor::prompt_chunk() for a GPU that computes prompts in chunks. Pure.
std::int64_t gpu_prompt_chunk(const Program& program);

/// The RAM that prepare() reserves for the CPU's share of experts. Pure.
std::uint64_t expert_share_bytes(const PassShape& shape, const kernels::Table& kernels, int threads);

/// The device memory that prepare() reserves, in bytes, but for adapters. Pure.
std::uint64_t gpu_activation_bytes(const PassShape& shape);

/// `units`, `weights` and `vram` outlive the executor. Sequences of its batches have their blocks on the device.
/// Errors: io_error.
Expected<std::unique_ptr<Executor>> make_gpu_executor(const residency::UnitTable& units,
                                                      residency::DeviceWeights& weights, residency::Budget& vram,
                                                      const GpuOptions& options);

}  // namespace millrace::exec
