// The inside of the GPU's executor. See executor.h.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "device/device.h"
#include "exec/adapters.h"
#include "exec/fusion.h"
#include "exec/gpu/executor.h"
#include "exec/gpu/experts_share.h"
#include "exec/gpu/layout.h"
#include "exec/gpu/split.h"
#include "exec/gpu/state_runs.h"
#include "exec/router_ahead.h"
#include "kernels/gpu/gather.h"
#include "kernels/gpu/ops.h"

namespace millrace::exec {

/// Rows of a pass that are worked at once.
struct Window {
  std::int64_t first = 0, rows = 0;
  std::int64_t first_tile = 0, tiles = 0;  // of attention
  bool prompt = false;                     // rows of prompts, for matmul_prompt(); else none is one
  std::size_t first_states = 0;            // of StateRunTables::tables: one for each group with states
};

/// Where the executors of one program, each with rows of its own, store for each other (kernels/gpu/gather.h).
struct Peers {
  struct Device {
    std::byte* memory = nullptr;
    GpuLayout layout;
    const Program* programs = nullptr;  // two, as GpuExecutor::programs_
    kernels::gpu::GatherState* gather_state = nullptr;
    std::byte* gather_words = nullptr;  // GatherCall::Target::words

    std::byte* at(std::uint64_t offset) const { return memory + offset; }
    float* floats_at(std::uint64_t offset) const { return reinterpret_cast<float*>(at(offset)); }
  };
  std::vector<Device> devices;
  int index = 0;                    // this one's
  bool one_device = false;          // some of them are one
  bool through_host = false;        // no device writes to another's memory
  std::uint32_t* failed = nullptr;  // as this device sees it
};

class GpuExecutor final : public Executor {
 public:
  GpuExecutor(const residency::UnitTable& units, residency::DeviceWeights& weights, residency::Budget& vram,
              const GpuOptions& options, const GpuTraits& traits, device::Stream stream, std::string name);
  ~GpuExecutor() override;

  Status prepare(const Program& program, const PassLimits& limits) override;
  Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) override;
  std::int64_t cheap_rows() const override {
    return share_ != nullptr ? kSplitRows : expert_share_ != nullptr ? kExpertShareRows : kFewRows;
  }
  Logits last_logits() const override;
  Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const override {
    return read_handed(0, first, rows, out);
  }
  Status read_tap(std::int64_t tap, std::int64_t first, std::int64_t rows, float* out) const override {
    return read_handed(1 + tap, first, rows, out);
  }
  std::int64_t prompt_chunk() const override;
  std::int64_t top_logits_limit() const override { return kernels::gpu::kCandidates; }
  bool waits() const override;
  void meanwhile(const std::function<void()>& task) override { meanwhile_ = task; }
  void bring_top_logits_only(bool only) override { top_only_ = only; }
  void draw(std::span<const kernels::DrawRule> rules) override { draws_.assign(rules.begin(), rules.end()); }
  TopLogits last_top_logits(std::int64_t row) const override;
  ExecCounters counters() const override { return counters_; }
  std::string describe() const override;
  /// Of a program with gathers, once all of its executors are prepared: where the others' activations lie.
  Peers::Device as_peer(kernels::gpu::GatherState* state, std::byte* words) const {
    return {memory_.data(), layout_, programs_, state, words};
  }
  void join(Peers peers) { peers_ = std::move(peers); }
  // Of several whose experts flow: the executor of the first GPU leads, and the others follow it.
  /// Of all members, in order, so that the processor has whole biases. REQUIRES: this one leads.
  Status add_biases(const GpuExecutor& member);
  Status follow(ExpertShare& leaders);
  ExpertShare* expert_share() const { return expert_share_.get(); }
  /// Behind which job the next pass's come. Before it begins.
  void follow_from(std::uint32_t number) { followed_number_ = number; }
  Status takes_pictures(bool sees_ahead) const override;
  std::string_view numerics() const override { return numerics_; }
  /// Where all experts are in VRAM, none is nearer than another.

 private:
  // executor.cpp: the pass. rows.cpp: its rows. mixtures.cpp: its experts.
  Status begin_pass(const kv::Batch& batch);
  Status launch_all();
  bool failed() const { return !status_.ok(); }
  Status read_handed(std::int64_t number, std::int64_t first, std::int64_t rows, float* out) const;
  Status prepare_share();
  Status prepare_experts();
  Status prepare_launches();
  Status prepare_given();
  // adapters.cpp
  Status prepare_adapters();
  void fill_scales();
  Adapted adapted(WeightRef weight, bool before) const;
  /// Of the pass, where it is one alone.
  std::optional<std::size_t> only_adapter() const;
  bool adapts_shared_gates() const;
  /// Those of the present pass, in a window of prompts' rows or of others.
  const Launches& launches(bool prompt) const {
    const Adapted way = mixed_.empty() ? Adapted::no : adapts_before_ ? Adapted::before : Adapted::behind;
    const Class of = prompt ? kPrompt : split() ? kShared : kGenerated;
    return launches_[batch_->wants_hidden ? 1 : 0][static_cast<std::size_t>(way)][of];
  }
  Status upload_rows();
  void fill_rope(std::size_t index);
  void fill_shifted(const Rope& rope, const std::vector<float>& angles, float* out) const;
  void find_pictures();
  void fill_blocks();
  void fill_chosen();
  Status fill_seen();
  Status fill_sight(const Attention& attention, kernels::gpu::SeenKeys* out) const;
  bool is_prompt(std::int64_t row) const;
  std::int64_t end_of_window(std::int64_t first, std::int64_t end) const;
  void make_windows();
  void make_tiles(Window& window);
  Status make_states();
  void find_own_states();
  void fill_states();
  Status launch_pass();
  Status bring_results();
  /// Marks the end of a launch or copy on the stream, when traced.
  Status mark(const char* row, const char* name);
  Status tell_trace();
  bool few_rows() const { return rows_ <= kFewRows && !sees_ahead_; }
  /// Whether the processor does its share of the present pass.
  bool split() const { return split_; }
  /// Whether it computes with the experts that have no slot; else these cross in waves, where there are any.
  bool shares_experts() const { return options_.experts.slots != nullptr && rows_ <= kExpertShareRows; }
  bool brings_experts() const { return options_.experts.slots != nullptr && rows_ > kExpertShareRows; }
  Status begin_experts();
  /// Experts flow, to this GPU alone.
  bool has_all_experts() const { return options_.experts.slots != nullptr && options_.experts.slots->gpus() == 1; }
  bool follows_experts() const { return followed_ != nullptr; }
  bool leads_experts() const { return options_.experts.slots != nullptr && options_.experts.gpu == 0; }
  /// Whose results are taken in, and the number of the next job.
  ExpertShare& computing_share() const { return followed_ != nullptr ? *followed_ : *expert_share_; }
  std::uint32_t next_expert_job() { return followed_ != nullptr ? ++followed_number_ : expert_share_->next_number(); }
  void begin_guesses();
  /// How the router of the mixture behind this one is asked ahead; null: it is not.
  const RouterAhead* router_behind(const Experts& experts) const;

  // emitter.h: steps become launches.
  struct Emitter;
  Status emit();

  std::byte* at(std::uint64_t offset) const { return memory_.data() + offset; }
  template <typename T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  const residency::Part& part(WeightRef ref) const { return units_.part(ref); }
  const float* given_row(std::int64_t row) const {
    return reinterpret_cast<const float*>(given_host_.data()) + row * given_cols_;
  }
  const kv::Layout& kv_layout() const {
    return options_.blocks.layout ? *options_.blocks.layout : batch_->sequences.front()->layout();
  }

  const residency::UnitTable& units_;
  residency::DeviceWeights& weights_;
  residency::Budget& vram_;
  const GpuOptions options_;
  const GpuTraits traits_;
  device::Stream stream_;
  const std::string name_;
  const kernels::gpu::PromptProducts prompt_products_;
  const bool delta_chunks_;
  const std::string numerics_;

  Program programs_[2];  // of passes whose final states are not wanted, and wanted
  // Their launches, where rows go through no adapters, and by where these have their part (Adapted): of rows of
  // generated tokens, of such that the processor has a part in, and of prompts'.
  enum Class { kGenerated, kShared, kPrompt, kClasses };
  Launches launches_[2][3][kClasses];
  PassShape shape_;
  GpuLayout layout_;
  residency::Reservation reservation_;
  device::DeviceBuffer memory_;
  device::PinnedBuffer rows_host_, results_host_;
  device::PinnedBuffer given_host_;  // [max_rows, given_cols_], of a program that is handed states
  std::int64_t given_cols_ = 0;
  /// Rows [first, first + rows) of the pass, whose own states lie together in host memory.
  struct PictureRun {
    std::int64_t first = 0, rows = 0;
    const float* states = nullptr;  // [rows, picture_cols_]
  };
  std::vector<PictureRun> pictures_;  // of the present pass
  std::int64_t picture_cols_ = 0;     // of a picture's row, of all layers that take some
  std::uint64_t results_bytes_ = 0;
  std::unique_ptr<HostShare> share_;           // null: the GPU computes alone
  std::unique_ptr<ExpertShare> expert_share_;  // null: all experts are in VRAM
  ExpertShare* followed_ = nullptr;            // another executor's
  std::uint32_t followed_number_ = 0;
  device::DeviceBuffer followed_seen_;  // TakeInExpertsCall::seen
  // Of each layer's experts, in host memory for the processor: by first unit.
  struct ExpertBiases {
    std::vector<float> gate, up, down, inner_scale, up_scale, down_scale;
    std::int64_t down_rows = 0;  // those of so many rows of each expert have come
  };
  std::map<std::int32_t, ExpertBiases> expert_biases_;
  Peers peers_;  // none: the program has no gathers
  // Of each adapter, its memory in VRAM.
  std::vector<residency::Reservation> adapter_reservations_;
  std::vector<device::DeviceBuffer> adapter_memory_;
  std::set<std::pair<std::int32_t, std::int32_t>> biased_;  // by unit and part: weights whose products have a bias
  std::vector<RouterAhead> routers_;                        // of programs_[0], where experts may be guessed
  PrefetchTrial trial_;

  // The pass.
  const kv::Batch* batch_ = nullptr;
  const Program* program_ = nullptr;
  std::function<bool()> cancelled_;
  std::function<void()> meanwhile_;
  Status status_;
  PassRows pass_rows_;
  std::int64_t rows_ = 0, logit_rows_ = 0, position_bound_ = 0;
  bool sees_ahead_ = false;                   // some of its rows see keys behind their own
  std::vector<Attention> sights_;             // Program::sights()
  std::int64_t known_positions_ = INT64_MAX;  // of which the model has embeddings
  std::vector<float> slopes_;                 // Attention::slopes of the layers that have some
  std::vector<Window> windows_;               // all rows, in order
  StateRunTables states_;
  std::vector<bool> mixed_;     // mixed_in() of the pass
  bool adapts_before_ = false;  // adapters' part of products is made before them
  bool split_ = false;
  bool may_guess_ = false, guessing_ = false;
  bool top_only_ = false, brought_top_only_ = false;
  std::vector<kernels::DrawRule> draws_;  // of the pass's rows of logits; empty: nothing is drawn
  std::uint64_t pass_begin_ns_ = 0, pass_weight_bytes_ = 0;

  // Of each rope, angles by position, made as far as they were needed.
  std::vector<std::vector<float>> cos_sin_;  // [positions, rotary / 2, 2]

  // rows, those before the first of a prompt, logit rows, sequences, bound on positions, only the top logits, no draws,
  // final states of all rows, adapters
  using GraphKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::size_t, std::int64_t, bool, bool, bool,
                              std::vector<bool>>;
  struct Captured {
    device::RecordedPass graph;
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
