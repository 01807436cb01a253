// The one interface a model calls. Weights are handles, activations are handles; where either lies, and who computes,
// is the executor's affair (CPU now; CUDA and split, both at once, behind the same interface).
//
// A pass: begin_pass(batch), the model's ops in order, end_pass(). The first failure (a read error, a cancelled pass)
// sticks: later ops do nothing and end_pass() returns it, so that a model's layer reads like the paper. Each weight
// handle is used at most once a pass except norms and the tied head; matrices are fetched tile by tile as they are used
// and never twice in a pass, however many rows the batch has.
//
// Activations are float32 [rows, cols], rows = the batch's rows (or the rows that want logits), in named buffers sized
// once by prepare(). Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/sequence.h"
#include "residency/weight_store.h"

namespace millrace::exec {

using residency::WeightRef;

/// A named buffer of activations. Only the executor knows where it lies.
struct Act {
  std::int32_t buffer = -1;  // index into PassShape::buffers
};

/// What passes of a model may need at most; the activation peak is computed from it, not guessed.
struct PassShape {
  struct Buffer {
    std::string name;
    std::int64_t cols;
    bool logit_rows_only = false;
    bool whole_pass = false;  // what a layer's blocks hand on: the residual stream
  };
  std::vector<Buffer> buffers;
  std::int64_t max_rows = 0;   // tokens in a pass
  std::int64_t work_rows = 0;  // rows that go through a block at once, the others after them, before the next block
                               // comes: so large is a buffer that is not of the whole pass. 0: all. The CUDA executor's
  std::int64_t max_sequences = 1;
  std::int64_t max_logit_rows = 0;
  std::int64_t vocab = 0;         // rows of the head: the logits are [max_logit_rows, vocab]
  std::int64_t widest_input = 0;  // largest cols of any product's input
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t max_positions = 0;                                     // context
  std::int64_t experts = 0, top_k = 0, expert_ff = 0, model_dim = 0;  // 0 for dense models
};

struct Rope {
  std::span<const float> inv_freq;  // [rotary / 2], scaling already applied; outlives the executor
  std::int64_t rotary = 0;          // dimensions rotated
  bool neox = false;                // pairs (i, i + rotary/2) instead of (2i, 2i + 1)
  float magnitude = 1;              // multiplies cos and sin (YaRN's attention factor)
};

struct Attention {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  std::int64_t window = 0;  // 0: all keys
};

struct Product {
  Act out;
  WeightRef weight;
  WeightRef bias;  // none() if there is none; float32 [weight rows]
};

struct Experts {
  std::int32_t first_unit = 0;  // experts of the layer are units [first_unit, first_unit + count)
  std::int32_t count = 0;
  std::int32_t top_k = 0;
  std::int32_t gate_part = 0, up_part = 1, down_part = 2;
  bool normalize = true;  // weights of the chosen experts are divided by their sum
  float scale = 1;
};

/// Logits of the rows that asked for them, in batch order, in host memory until the next begin_pass.
struct Logits {
  const float* data = nullptr;  // [rows, vocab]
  std::int64_t rows = 0, vocab = 0;
};

/// The largest logits of a row, in descending order (ties: the smaller id), in host memory until the next begin_pass.
struct TopLogits {
  std::span<const float> logits;
  std::span<const std::int32_t> ids;
  bool finite = true;  // every logit of the row is
};

/// Time and bytes of an executor since it was made, for `bench` and `--explain`.
struct ExecCounters {
  std::uint64_t passes = 0, rows = 0;
  std::uint64_t weight_wait_ns = 0;  // waiting for tiles
  std::uint64_t pass_ns = 0;
  std::uint64_t weight_bytes = 0;             // read by kernels, where the weight store does not count them
  std::uint64_t host_bytes = 0, host_ns = 0;  // of a GPU's pass: weights that the processor computed with, and how long
};

class Ops {
 public:
  virtual ~Ops() = default;

  /// Bytes that prepare(shape) will reserve. Pure.
  virtual std::uint64_t activation_bytes(const PassShape& shape) const = 0;
  /// Sizes every buffer. Errors: out_of_budget.
  virtual Status prepare(const PassShape& shape) = 0;

  /// REQUIRES: prepared, rows <= max_rows, sequences reserved for their positions; `batch` lives until end_pass().
  /// `cancelled` (may be empty) is asked between ops and between tiles; true makes the pass end with Code::cancelled.
  /// The executor begins and ends the store's pass, too.
  virtual void begin_pass(const kv::Batch& batch, std::function<bool()> cancelled) = 0;
  /// Ok, or the first failure. A failed pass leaves no trace in any result.
  virtual Status end_pass() = 0;
  virtual bool failed() const = 0;  // for models that want to leave their loop early

  virtual void embed(Act out, WeightRef table) = 0;                        // rows of the batch's tokens, decoded
  virtual void rms_norm(Act out, Act x, WeightRef weight, float eps) = 0;  // out may be x
  virtual void rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps) = 0;  // each head, in place
  virtual void add(Act x, Act y) = 0;                                                          // x += y
  /// Products of one input with several weights (Q, K, V), the input prepared once.
  virtual void matmul(std::span<const Product> products, Act x) = 0;
  void matmul(Act out, WeightRef weight, Act x) {
    const Product product{out, weight, {}};
    matmul(std::span(&product, 1), x);
  }
  /// out = silu(x * gate^T) * (x * up^T)
  virtual void matmul_swiglu(Act out, WeightRef gate, WeightRef up, Act x) = 0;
  virtual void rope(Act x, std::int64_t heads, std::int64_t head_dim, const Rope& rope) = 0;
  virtual void store_kv(std::int64_t layer, Act k, Act v) = 0;  // at each row's position
  virtual void attention(Act out, Act q, std::int64_t layer, const Attention& attention) = 0;
  /// out = sum over the chosen experts, in the router's order, of weight * expert(x). The router's choice: softmax over
  /// x * router^T, top_k (ties: the smaller index). Experts on their way are computed when they come; results are
  /// stored and then summed in the router's order.
  virtual void moe(Act out, Act x, WeightRef router, std::int64_t layer, const Experts& experts) = 0;
  /// Keeps only the rows that want logits. `out` is a logit_rows_only buffer.
  virtual void select_logit_rows(Act out, Act x) = 0;
  /// Head product into the logits of the pass; x is a logit_rows_only buffer.
  virtual void logits(WeightRef head, Act x) = 0;
  virtual Logits last_logits() const = 0;

  /// Between begin_pass and end_pass: whether this pass must call hidden().
  virtual bool wants_hidden() const = 0;
  /// x, a buffer of the whole pass, holds the final states of all rows, behind the last norm; no later op of the pass
  /// writes it. They can be read until the next begin_pass.
  virtual void hidden(Act x) = 0;
  /// Rows [first, first + rows) of them into out [rows, cols of x]. Errors: internal (the last pass failed, or had no
  /// such rows), io_error.
  virtual Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const = 0;

  /// How many of a row's largest logits the executor finds by itself; 0: none, it always brings all of them.
  virtual std::int64_t top_logits_limit() const { return 0; }
  /// For the passes to come: bring the largest logits of each row only, and last_logits() has no data.
  /// REQUIRES: top_logits_limit() > 0.
  virtual void bring_top_logits_only(bool /*only*/) {}
  /// REQUIRES: the last pass brought them.
  virtual TopLogits last_top_logits(std::int64_t /*row*/) const { return {}; }

  virtual ExecCounters counters() const = 0;
  virtual std::string describe() const = 0;  // "cpu avx512, 2 threads"
  /// Executors of one name give the same bits, whenever they were built: it changes when an order of sums does.
  virtual std::string_view numerics() const = 0;
};

struct CpuOptions {
  kernels::Isa isa = kernels::Isa::plain;
  /// embed() reads the rows it needs straight from the file. REQUIRED unless the embedding unit is at home in RAM: set
  /// it to plan.embedding_rows_from_disk, and where a tied head streams the embedding through the ring.
  bool embedding_rows_from_disk = false;
};

/// Bytes that prepare(shape) of the CPU executor reserves. Pure, so that a plan can be made before there is a store.
std::uint64_t cpu_activation_bytes(const PassShape& shape, int threads, const CpuOptions& options);

/// `store`, `pool` and `budget` outlive the executor.
std::unique_ptr<Ops> make_cpu_ops(residency::WeightStore& store, ThreadPool& pool, residency::Budget& budget,
                                  const CpuOptions& options);

}  // namespace millrace::exec
