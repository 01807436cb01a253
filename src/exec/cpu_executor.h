// The CPU executor: runs steps with the CPU's kernels on the thread pool, and leases weights tile by tile.
//
// All activations are in one buffer (CpuLayout). A matrix is computed in waves: the executor waits for the first piece
// and adds the following ones as long as they are in memory, so that several small matrices cost one barrier, and a
// large matrix is computed while the disk reads its next piece. No result depends on the division into waves.
// Thread-safety: one thread calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/host_memory.h"
#include "exec/adapters.h"
#include "exec/cpu_layout.h"
#include "exec/executor.h"
#include "exec/expert_choice.h"
#include "exec/host_rows.h"
#include "exec/input_observer.h"
#include "exec/piece_index.h"
#include "exec/router_ahead.h"

namespace millrace::exec {

struct SeenKeys;

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(residency::WeightStore& store, ThreadPool& pool, residency::Budget& budget, const CpuOptions& options);

  Status prepare(const Program& program, const PassLimits& limits) override;
  Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) override;
  Status takes_pictures(bool /*sees_ahead*/) const override { return {}; }
  Logits last_logits() const override;
  Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const override {
    return read_handed(0, first, rows, out);
  }
  Status read_tap(std::int64_t tap, std::int64_t first, std::int64_t rows, float* out) const override {
    return read_handed(1 + tap, first, rows, out);
  }
  ExecCounters counters() const override { return counters_; }
  std::string describe() const override;
  std::string_view numerics() const override { return "cpu 1"; }

 private:
  /// The input of products: rows of float activations and, if one of the dtypes needs it, their int8 form.
  struct Input {
    const float* x = nullptr;  // [rows, cols]
    std::int64_t cols = 0;
    kernels::Q8Rows q8;
    std::uint64_t name = 0;  // of what q8 holds
    std::int64_t rows = 0;
    const std::int32_t* index = nullptr;  // row r of a product reads row index[r]; `rows` counts the product's rows
  };

  /// What a product does to its output y [rows, weight rows].
  enum class Effect {
    store,     // y = x w^T
    gate,      // y = activation(y) * (x w^T): y holds the gate's products
    gated,     // y = activation(x w^T) * (x up^T), both by the same thread
    activate,  // y = activation(x w^T) * 1
  };

  /// The output of a weight's product.
  struct Target {
    WeightRef weight;
    float* y = nullptr;
    std::int64_t y_stride = 0;
    Gate gate;  // what a pair goes through; the bias of a single product. Biases begin at the weight's first row
  };

  /// Contiguous rows of a weight, computed in tasks of task_rows.
  struct Job {
    Effect effect = Effect::store;
    Gate gate;  // biases begin at the job's first row
    kernels::MatmulArgs args;
    const std::byte* up = nullptr;  // gated: rows like args.weight
    DType up_dtype = DType::f32;
    std::int64_t task_rows = 0, first_task = 0;
  };

  // cpu_executor.cpp: the pass.
  void begin_pass(const kv::Batch& batch);
  void end_pass();
  void do_step(const Step& step);
  bool failed() const { return !status_.ok(); }
  Status read_handed(std::int64_t number, std::int64_t first, std::int64_t rows, float* out) const;
  bool ready();  // false: an earlier op failed, and this one does nothing
  void fail(Status status);
  std::int64_t rows_of(Act act) const;
  std::int64_t cols_of(Act act) const { return program_.buffer(act).cols; }
  float* data(Act act) const { return at<float>(layout_.buffers[static_cast<std::size_t>(act.buffer)]); }
  template <typename T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  std::byte* thread_memory(int thread) const {
    return memory_.data() + layout_.threads + static_cast<std::uint64_t>(thread) * layout_.thread_bytes;
  }
  const residency::Part& part(WeightRef ref) const { return store_.units().part(ref); }
  void for_rows(std::int64_t rows, std::int64_t floats_a_row,
                FunctionRef<void(std::int64_t begin, std::int64_t end)> work);
  void embed(const Step& step);
  Status check_tokens(const residency::Part& table, const Step& step) const;
  void embed_pictures(Act out);
  void add_picture(Act x, std::int64_t first);
  void merge_rows(Act out, Act x, bool by_channel);
  void mean_rows(Act out, Act x);
  void clamp(Act x, float least, float most);
  void standardize(Act x, WeightRef bias, WeightRef scale);

  void largest(Act out, Act x);

  // cpu_streams.cpp: several residual streams, and what layers of such models do.
  void cap(Act x, float most);
  void statistical_top_k(Act x, float deviations);
  void match_rms(Act x, Act like, float least);
  void add_streams(const Step& step);
  void gate_streams(const Step& step);
  void weigh_streams(const Step& step);

  void rms_norm(Act out, Act x, WeightRef weight, float eps);
  void layer_norm(Act out, Act x, WeightRef weight, WeightRef bias, float eps);
  void rms_norm_heads(Act x, WeightRef weight, std::int64_t head_dim, float eps);
  void add(Act x, Act y, float factor);
  void scale(Act x, WeightRef scalar, float factor, WeightRef bias);
  void copy(Act out, Act x);
  void take_given(Act out);
  void join(Act out, Act x, Act y);
  void activate(Act x, kernels::Activation activation, const std::optional<kernels::Xielu>& xielu);
  void gate(Act x, Act all, std::int64_t layer, kernels::Activation activation, float limit);
  void select_logit_rows(Act out, Act x);
  void logits(WeightRef head, WeightRef bias, Act x, float factor, float cap);
  void scale(float* x, std::int64_t rows, std::int64_t cols, float factor);
  const float* vector_of(WeightRef ref, std::int64_t cols, int scratch);
  void embed_from_file(float* out, WeightRef table, const residency::Part& weight, RowOf of);
  void embed_from_memory(float* out, WeightRef table, const residency::Part& weight, RowOf of);

  // cpu_lease.cpp: waves of leases.
  Expected<residency::Lease> take_lease(std::int32_t tile);
  std::optional<residency::Lease> try_lease(std::int32_t tile);
  const std::byte* lease_now(const Piece& piece);
  const std::byte* lease_if_ready(const Piece& piece);
  const std::byte* held_bytes(const Piece& piece) const;
  bool wait_for(residency::Lease& lease);
  void keep_last_lease();
  void drop_leases() { leases_.clear(); }

  // cpu_matmul.cpp.
  void show(std::span<const WeightRef> weights, const Input& input) const;
  void matmul(std::span<const Product> products, Act x);
  void matmul_gated(Act out, WeightRef gate, WeightRef up, Act x, kernels::Activation activation, float limit);
  Input prepare_input(Act x, bool quantize);
  void run_products(std::span<const Target> targets, const Input& input, Effect effect);
  bool try_gated(const Target& gate, WeightRef up, const Input& input);
  void gated(const Target& gate, WeightRef up, const Input& input);
  Job make_job(WeightRef ref, const std::byte* bytes, std::int64_t row_begin, std::int64_t row_end,
               const Target& target, const Input& input, Effect effect) const;
  std::int64_t cut_jobs();
  void run_jobs();
  void run_task(const Job& job, std::int64_t begin, std::int64_t end, int thread) const;
  void add_bias(Act x, WeightRef bias);

  // cpu_adapters.cpp: what rows' adapters add to products.
  Status begin_mixes(const kv::Batch& batch);
  bool adapts(WeightRef weight) const;
  bool adapts_experts(const Experts& experts) const;
  void adapt(std::span<const Target> targets, const Input& input, const std::int32_t* pass_rows);
  void adapt_embedding(float* out, std::int64_t cols);
  void adapt_gated(const Target& gate, WeightRef up, const Input& input, const std::int32_t* pass_rows);
  std::int64_t gather_adapted(std::size_t adapter, const Input& input, const std::int32_t* pass_rows);
  void add_low_rank(std::span<const Target> targets, const Input& input, const Adapter& adapter, std::int64_t rows);
  struct LowRows {
    const float* small = nullptr;  // [rows, rank]
    std::int64_t rows = 0;
    std::int64_t begin = 0, end = 0;  // of B
  };
  void add_up(const LowRank& low, const LowRows& of, float* out, std::int64_t stride) const;

  // cpu_heads.cpp.
  struct HeadProduct;
  struct HeadRows;
  void matmul_heads(Act out, WeightRef weight, Act x, std::int64_t heads, HeadWeights form);
  void for_heads(const HeadProduct& product, std::size_t most, FunctionRef<void(const HeadRows&)> take,
                 FunctionRef<void()> run);
  void multiply_heads(const HeadProduct& product);
  void add_rows_of_heads(const HeadProduct& product);
  void add_rows_of_head(const HeadProduct& product, const HeadRows& of, int thread) const;

  // cpu_attention.cpp.
  struct AttentionCall;
  struct AttentionPair;
  void temper(Act x, const Temperature& temperature);
  void rope(Act x, std::int64_t heads, std::int64_t head_dim, int rope, bool back);
  void store_kv(std::int64_t layer, Act k, Act v);
  void store_latent(std::int64_t layer, Act c, Act rotated);
  void attention(Act out, Act q, std::int64_t layer, const Attention& attention, Act selected);
  void attend_to_all(AttentionCall& call);
  const float* rope_table(int rope);
  std::int32_t shift_of(std::int64_t row, std::uint8_t axis) const;
  double place_of(std::int64_t row, const Rope& rope, std::int64_t angle) const;
  const std::int32_t* find_newest(std::int64_t window);
  const std::int32_t* find_seen_ahead();
  const std::int32_t* find_segments();
  const std::int32_t* find_chunk_ends(std::int64_t chunk);
  std::int64_t make_attention_tiles(std::int64_t tile_rows, bool by_blocks, bool segments, std::int64_t most_keys);
  AttentionPair attention_pair(const AttentionCall& call, std::int64_t index, std::int64_t slot) const;
  kernels::AttentionArgs chunk_args(const AttentionCall& call, const AttentionPair& pair, std::int64_t chunk) const;
  void attend_chunk(const AttentionCall& call, const AttentionPair& pair, std::int64_t chunk, int thread) const;
  void merge_chunks(const AttentionCall& call, const AttentionPair& pair) const;
  /// Computes all chunks of `pairs` pairs and merges them. pair_of(i, slot) returns a pair whose results go to that
  /// slot; attend(pair, chunk, thread) computes one chunk.
  template <typename PairOf, typename Attend>
  void run_pairs(const AttentionCall& call, std::int64_t pairs, const PairOf& pair_of, const Attend& attend);

  // cpu_selected.cpp.
  void store_index(std::int64_t layer, Act key);
  void select(Act out, Act q, Act weights, std::int64_t layer, const Indexer& indexer);
  struct IndexQueries;
  void score_keys(const IndexQueries& queries, std::int64_t row, std::int64_t chunk, float* scores, int thread) const;
  std::vector<std::int64_t> rows_beyond(std::int64_t keys, std::int64_t ratio = 1) const;
  void attend_to_selected(AttentionCall& call, Act selected);
  void select_blocks(Act out, Act q, std::int64_t layer, const Indexer& indexer);
  void score_blocks(const IndexQueries& queries, std::int64_t row, std::int64_t chunk, float* scores) const;
  void attend_to_blocks(AttentionCall& call, const std::int32_t* chosen, const std::vector<std::int64_t>& rows);
  void attend_block_chunk(const AttentionCall& call, const AttentionPair& pair, const std::int32_t* chosen,
                          std::int64_t chunk) const;
  std::int64_t most_blocks(const Indexer& indexer) const;
  void attend_to_shared_blocks(AttentionCall& call, const std::int32_t* chosen, const std::vector<std::int64_t>& rows);
  void attend_shared_chunk(const AttentionCall& call, const AttentionPair& pair, const std::int32_t* chosen,
                           std::int64_t chunk, int thread) const;
  void attend_gathered_chunk(const AttentionCall& call, const AttentionPair& pair, const SeenKeys& keys,
                             std::int64_t chunk, int thread) const;
  AttentionPair gathered_pair(const AttentionCall& call, const SeenKeys& keys, std::int64_t row,
                              std::int64_t slot) const;

  // cpu_compressed.cpp.
  void compress(const Step& step);
  void make_row(const Step& step, const kv::BatchRow& row, const float* norm) const;
  SeenKeys keys_of(const AttentionCall& call, std::int64_t row, const std::int32_t* chosen) const;
  void attend_to_rows(AttentionCall& call, Act selected);

  // cpu_ngrams.cpp.
  void begin_ngrams();
  void end_ngrams();
  void find_ngrams(const Step& step);
  void embed_ngrams(const Step& step);

  // cpu_states.cpp.
  struct StateRun;
  std::vector<StateRun> state_runs(std::int64_t layer);
  const float* kept_vector_of(WeightRef ref, std::int64_t cols, int scratch);
  void pick_heads(Act out, Act x, std::int64_t heads, std::int64_t head_dim, std::int64_t first);
  void multiply(Act x, Act y);
  void sigmoid_gate(Act x, Act gate);
  void softplus_gate(Act x, Act gate);
  void l2_norm_heads(Act x, std::int64_t heads, std::int64_t head_dim, float eps);
  void convolve(Act out, Act x, WeightRef taps, std::int64_t layer, const Convolution& convolution);
  void convolve_dilated(Act out, Act x, const std::vector<StateRun>& runs, std::int64_t layer,
                        const Convolution& convolution, const kernels::ConvolutionArgs& args);
  void time_step(Act decay, Act step, WeightRef a, WeightRef bias, float bound);
  void scan(Act out, Act x, Act step, Act decay, std::int64_t layer, WeightRef skip, const Scan& scan);
  void selective_scan(const Step& step);
  void delta_rule(Act out, Act qkv, Act beta, Act decay, std::int64_t layer, const DeltaRule& rule);

  // cpu_moe.cpp.
  struct MoeCall;
  void moe(Act out, Act x, Act routed, WeightRef router, std::int64_t layer, const Experts& experts);
  void score(Act routed, WeightRef router, const Experts& experts);
  void route(const Experts& experts, std::int64_t rows);
  void bring_experts_of_tokens(const Experts& experts);
  void reroute(std::int64_t layer, const Experts& experts);
  void bring_biases(const Experts& experts);
  void bring_biases_of(const Experts& experts, WeightRef ref, std::int64_t cols, std::uint64_t to);
  void sort_by_expert(const Experts& experts, std::int64_t rows);
  void combine(float* out, std::int64_t rows, std::int64_t cols, std::int64_t top_k);
  bool single_tile(std::int32_t unit) const;
  void run_experts(const MoeCall& call, std::size_t index);
  void lease_experts(const MoeCall& call);
  std::size_t gather_wave(const MoeCall& call);
  void run_wave(const MoeCall& call, std::size_t members);
  void show_inner(const MoeCall& call, std::int32_t expert, const Input& input) const;
  void run_large_expert(const MoeCall& call, std::int32_t expert);

  // cpu_guess.cpp: prefetching experts of later layers.
  struct ExpertGuess {
    std::vector<std::int32_t> experts;
    std::vector<bool> absent;  // not in memory when it was guessed
  };
  void prepare_guesses();
  void begin_guesses();
  void end_guesses(std::uint64_t pass_ns);
  const std::byte* borrow(WeightRef ref);
  bool borrow_vector(WeightRef ref, const float*& out);
  void ask_router(std::size_t index, residency::Guess kind);
  void ask_table(std::size_t index, ExpertGuess& guess);
  void add_guess(ExpertGuess& guess, std::size_t index, std::int32_t expert);
  void want(std::size_t index, residency::Guess kind);
  void want_last_token(std::size_t index);
  void guess_by_embedding(Act embedded);
  void count_guesses(std::size_t index, std::int32_t experts);
  void guess_next(std::size_t index);
  void read_ahead();

  residency::WeightStore& store_;
  ThreadPool& pool_;
  residency::Budget& budget_;
  const CpuOptions options_;
  const kernels::Table& table_;
  const PieceIndex pieces_;

  Program program_;
  PassShape shape_;
  CpuLayout layout_;
  residency::Reservation reservation_;
  device::HostBuffer memory_;
  std::vector<float> ones_;  // the weight of heads' norms that have none; what multiplies where nothing gates

  // The pass.
  const kv::Batch* batch_ = nullptr;
  const std::function<bool()>* cancelled_ = nullptr;  // null: never
  Status status_;
  std::int64_t rows_ = 0, logit_rows_ = 0, logits_vocab_ = 0;
  std::vector<bool> mixed_;           // of each adapter: rows of the pass go through it; empty: through none at all
  std::vector<Act> handed_;           // of the last pass: its final states, then its taps
  std::vector<bool> rope_made_;       // of each rope, in this pass
  std::int64_t distinct_ngrams_ = 0;  // rows of the table of n-grams that the pass reads
  bool reading_ngrams_ = false;
  std::uint64_t pass_begin_ns_ = 0;
  ExecCounters counters_;

  // The wave. Its leases are kept until another tile is leased, because the next op often uses the same one.
  std::vector<residency::Lease> leases_;
  std::uint64_t wave_bytes_ = 0;
  std::uint64_t inputs_ = 0;  // prepared so far: their names
  std::vector<Job> jobs_;

  // The mixture: experts still to be computed, those leased among them, those of the present wave.
  struct LeasedExpert {
    std::int32_t expert = 0;
    residency::Lease lease;
    std::int64_t hidden_first = 0;
  };
  std::vector<std::int32_t> waiting_;
  std::vector<LeasedExpert> leased_;

  // Guesses: of each mixture by each way; tiles to be read ahead, the likeliest first.
  std::vector<RouterAhead> routers_;
  std::vector<std::array<ExpertGuess, residency::kGuesses>> guesses_;
  std::vector<std::vector<std::int32_t>> last_used_;  // by mixture: experts of the last pass that guessed
  std::array<GuessTrust, residency::kGuesses> trust_{};
  std::vector<std::int32_t> ahead_;
  std::vector<residency::Lease> borrowed_;
  PrefetchTrial trial_;
  std::size_t next_mixture_ = 0;
  bool may_guess_ = false, guessing_ = false;  // in this pass
};

}  // namespace millrace::exec
