// The inside of the CUDA executor. See cuda_ops.h.
#pragma once

#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "device/cuda_runtime.h"
#include "exec/cuda_layout.h"
#include "exec/cuda_ops.h"
#include "exec/cuda_split.h"
#include "kernels/cuda/cuda_kernels.h"

namespace millrace::exec {

/// An op as it was called.
struct Step {
  enum class Kind : std::uint8_t {
    embed,
    rms_norm,
    rms_norm_heads,
    add,
    matmul,
    swiglu,
    rope,
    store_kv,
    attention,
    moe,
    select_rows,
    logits,
    hidden,
  };
  Kind kind;
  Act out, a, b;  // what it writes; what it reads. store_kv: a is k, b is v
  std::array<Product, 3> products{};
  int product_count = 0;
  WeightRef weight, weight2;  // norms, tables; swiglu: gate and up; moe: the router; logits: the head
  float eps = 0;
  std::int64_t heads = 0, head_dim = 0, layer = 0;
  Rope rope;
  Attention attention;
  Experts experts;

  bool reads(Act act) const { return (a.buffer == act.buffer || b.buffer == act.buffer) && act.buffer >= 0; }
  bool writes(Act act) const;
};

/// Rows of a pass that are worked at once.
struct Window {
  std::int64_t first = 0, rows = 0;
  std::int64_t first_tile = 0, tiles = 0;  // of attention
  bool prompt = false;                     // rows of prompts, for matmul_prompt(); else none is one
};

class CudaOps final : public Ops {
 public:
  CudaOps(const residency::UnitTable& units, residency::DeviceWeights& weights, residency::Budget& vram,
          const CudaOptions& options, device::Stream stream, std::string name);
  ~CudaOps() override;

  std::uint64_t activation_bytes(const PassShape& shape) const override { return cuda_activation_bytes(shape); }
  Status prepare(const PassShape& shape) override;
  void begin_pass(const kv::Batch& batch, std::function<bool()> cancelled) override;
  Status end_pass() override;
  bool failed() const override { return !status_.ok(); }

  void embed(Act out, WeightRef table) override;
  void rms_norm(Act out, Act x, WeightRef weight, float eps) override;
  void rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps) override;
  void add(Act x, Act y) override;
  using Ops::matmul;
  void matmul(std::span<const Product> products, Act x) override;
  void matmul_swiglu(Act out, WeightRef gate, WeightRef up, Act x) override;
  void rope(Act x, std::int64_t heads, std::int64_t head_dim, const Rope& rope) override;
  void store_kv(std::int64_t layer, Act k, Act v) override;
  void attention(Act out, Act q, std::int64_t layer, const Attention& attention) override;
  void moe(Act out, Act x, WeightRef router, std::int64_t layer, const Experts& experts) override;
  void select_logit_rows(Act out, Act x) override;
  void logits(WeightRef head, Act x) override;
  Logits last_logits() const override;
  bool wants_hidden() const override { return batch_ != nullptr && batch_->wants_hidden; }
  void hidden(Act x) override;
  Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const override;
  std::int64_t top_logits_limit() const override { return kernels::cuda::kCandidates; }
  void bring_top_logits_only(bool only) override { top_only_ = only; }
  TopLogits last_top_logits(std::int64_t row) const override;
  ExecCounters counters() const override { return counters_; }
  std::string describe() const override;
  std::string_view numerics() const override { return numerics_; }

 private:
  // cuda_ops.cpp: the pass.
  Step& record(Step::Kind kind);
  void fail(Status status);
  Status make_room_for_mixed_swiglu();
  Status prepare_share();
  Status upload_rows();
  void fill_rope(const Rope& rope);
  bool is_prompt(std::int64_t row) const;
  void make_windows();
  void make_tiles(Window& window);
  Status launch_pass();
  Status bring_results();
  /// Marks the end of a launch or copy on the stream, when traced.
  Status mark(const char* row, const char* name);
  Status tell_trace();
  bool few_rows() const { return rows_ <= kFewRows; }
  /// Whether the processor does its share of the present pass.
  bool split() const { return share_ != nullptr && rows_ <= kSplitRows; }

  // cuda_emitter.h: steps become launches.
  struct Emitter;
  Status emit();

  std::byte* at(std::uint64_t offset) const { return memory_.data() + offset; }
  template <typename T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  const residency::Part& part(WeightRef ref) const { return units_.part(ref); }

  const residency::UnitTable& units_;
  residency::DeviceWeights& weights_;
  residency::Budget& vram_;
  const CudaOptions options_;
  device::Stream stream_;
  const std::string name_;
  const bool prompt_products_;
  const std::string numerics_;

  PassShape shape_;
  CudaLayout layout_;
  residency::Reservation reservation_, extra_reservation_;
  device::DeviceBuffer memory_, up_scratch_;
  device::PinnedBuffer rows_host_, results_host_;
  std::uint64_t results_bytes_ = 0;
  std::unique_ptr<HostShare> share_;  // null: the GPU computes alone

  // The pass.
  const kv::Batch* batch_ = nullptr;
  std::function<bool()> cancelled_;
  Status status_;
  std::vector<Step> steps_;
  std::size_t step_count_ = 0;  // steps_ keeps its memory
  PassRows pass_rows_;
  std::int64_t rows_ = 0, logit_rows_ = 0, position_bound_ = 0;
  std::vector<Window> windows_;  // all rows, in order
  bool top_only_ = false, brought_top_only_ = false;
  Act hidden_;  // of the last pass
  std::uint64_t pass_begin_ns_ = 0, pass_weight_bytes_ = 0;

  // RoPE's angles by position, made as far as they were needed.
  std::vector<float> cos_sin_;  // [positions, rotary / 2, 2]
  const float* rope_key_ = nullptr;
  std::int64_t rotary_ = 0;

  // rows, those before the first of a prompt, logit rows, sequences, bound on positions, only the top logits, final
  // states of all rows
  using GraphKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::size_t, std::int64_t, bool, bool>;
  struct Captured {
    device::Graph graph;
    std::uint64_t weight_bytes = 0;
  };
  std::map<GraphKey, Captured> graphs_;
  ExecCounters counters_;

  struct Mark {
    device::Event end;
    const char *row = nullptr, *name = nullptr;
  };
  std::vector<Mark> marks_;
  std::size_t mark_count_ = 0;  // marks_ keeps its events
};

}  // namespace millrace::exec
