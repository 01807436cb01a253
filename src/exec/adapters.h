// Low-rank adapters (LoRA) of a model's matrices. Where a matrix W [out, in] has one, products y = W x become
// y = W x + f * B (A x) with A [rank, in] and B [out, rank], f being the adapter's factor for W times the scale at
// which a row of the pass wants it. W itself stays as it is: several adapters are in memory at once, each row of a pass
// names those that it goes through (kv::BatchRow::mix), and a row that names none has the bits of a model without
// adapters.
//
// An adapter of the token embedding adds f * B a, a [rank] being its row of the token; of a head that is the same
// matrix it adds nothing. Source: Hu et al., LoRA (arXiv:2106.09685); names and shapes as in llama.cpp's adapter files.
// Thread-safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/host_memory.h"
#include "kv/sequence.h"
#include "residency/budget.h"
#include "residency/unit.h"
#include "tensor/dtype.h"

namespace millrace::exec {

/// The two matrices beside one weight: A of a dtype that products take as floats (F32, F16, BF16), B turned and in
/// float32, because sums of few long rows are many times as fast as dot products of many short ones.
struct LowRank {
  std::int64_t rank = 0;
  DType a_dtype = DType::f32;
  std::int32_t b_stride = 0;     // floats from a row of the turned B to the next
  const std::byte* a = nullptr;  // [rank, the weight's cols]; of the embedding [vocabulary, rank]
  const float* b = nullptr;      // [rank, the weight's rows]; of the embedding [rank, its cols]
  float factor = 1;              // alpha / rank
};

struct Adapter {
  std::string name;          // by which requests ask for it
  std::string path;          // of its file
  std::uint64_t digest = 0;  // of all that it changes: a file of other contents has another
  std::map<std::pair<std::int32_t, std::int32_t>, LowRank> matrices;  // by unit and part of the weight
  LowRank embedding;                                                  // rank 0: none
  residency::Reservation reservation;
  device::HostBuffer memory;  // what the matrices point to

  /// Null: none.
  const LowRank* find(residency::WeightRef weight) const {
    const auto found = matrices.find({weight.unit, weight.part});
    return found == matrices.end() ? nullptr : &found->second;
  }
};

using Adapters = std::vector<Adapter>;

/// How much of an adapter a mix has; 0: none.
float scale_in(const kv::AdapterMix& mix, std::size_t adapter);
/// Through which of the adapters, null being none, rows of the pass go; empty: through none at all. Errors: internal
/// (an adapter, or a mix, that is not there).
Expected<std::vector<bool>> mixed_in(const kv::Batch& batch, const Adapters* adapters);

}  // namespace millrace::exec
