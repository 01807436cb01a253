// The interface of the executors, which run a model's Program: on the CPU, or on a GPU with the CPU's help. Each
// executor decides where weights and activations are stored.
//
// Activations are float32, in memory sized once by prepare(). Matrices are fetched as they are used, and only once per
// pass, however many rows the batch has. The first failure (a read error, a cancelled pass) ends the pass.
// Thread-safety: one thread calls.
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
#include "base/trace.h"
#include "exec/program.h"
#include "exec/router_ahead.h"
#include "kernels/draw.h"
#include "kernels/kernels.h"
#include "kv/sequence.h"
#include "residency/weight_store.h"

namespace millrace::exec {

/// Logits of the rows that requested them, in batch order, in host memory until the next pass.
struct Logits {
  const float* data = nullptr;  // [rows, vocab]
  std::int64_t rows = 0, vocab = 0;
};

/// The largest logits of a row, in descending order (ties: the smaller id), in host memory until the next pass.
struct TopLogits {
  std::span<const float> logits;
  std::span<const std::int32_t> ids;
  bool finite = true;       // whether every logit of the row is finite
  std::int32_t drawn = -1;  // the token drawn by the row's rule of draw()
};

/// The time and bytes of an executor since its creation, for `bench` and `--explain`.
struct ExecCounters {
  std::uint64_t passes = 0, rows = 0;
  std::uint64_t weight_wait_ns = 0;  // waiting for tiles
  std::uint64_t pass_ns = 0;
  std::uint64_t weight_bytes = 0;             // read by kernels, if the weight store does not count them
  std::uint64_t host_bytes = 0, host_ns = 0;  // in a GPU's passes: weights that the CPU used, and its time
  // In passes through several ranks: the time that the others computed, and the time between (messages in flight, ranks
  // that had not received them yet, or computed another pass).
  std::uint64_t elsewhere_ns = 0, between_ns = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// Reserves memory for passes of this program. Errors: out_of_budget, unsupported (names a step that this executor
  /// cannot run).
  virtual Status prepare(const Program& program, const PassLimits& limits) = 0;

  /// Runs one pass. REQUIRES: prepared, the batch within the limits, sequences reserved for their positions.
  /// `cancelled` (may be empty) is polled between steps and between tiles; true ends the pass with Code::cancelled.
  /// A failed pass has no effect on any later result.
  virtual Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) = 0;

  /// The number of passes that begin() and finish() may keep in flight.
  virtual std::int64_t passes() const { return 1; }
  /// Begins a pass after those in flight; returns when the batch may change. A sequence may continue from the end of a
  /// pass in flight, with its length set to that end. A pass that fails here is not in flight.
  /// REQUIRES: those of run(); fewer than passes() are in flight.
  virtual Status begin(const kv::Batch& batch, const std::function<bool()>& cancelled) { return run(batch, cancelled); }
  /// Waits for the oldest pass in flight, which then is "the last pass" for the functions below. `cancelled`: true
  /// abandons all passes in flight.
  virtual Status finish(const std::function<bool()>& /*cancelled*/) { return {}; }
  /// Whether the calling thread only launches a pass and waits for it.
  virtual bool waits() const { return false; }
  /// Makes the next pass run `task` on the calling thread after its launch, or after a failure before the launch.
  /// REQUIRES: waits().
  virtual void meanwhile(const std::function<void()>& /*task*/) {}
  /// The number of prompt rows per pass with which several passes keep all parts of the executor busy. 0: as many rows
  /// as fit into a pass.
  virtual std::int64_t prompt_piece() const { return 0; }

  /// Up to this many generated rows, an additional row of a pass costs little.
  virtual std::int64_t cheap_rows() const { return 64; }

  /// Whether passes may have rows of pictures (kv::Batch::pictures), including rows that see later tokens. Errors:
  /// unsupported (names the executor that cannot).
  virtual Status takes_pictures(bool sees_ahead) const = 0;

  /// The size of the groups in which rows of a prompt are computed: from each multiple of it, or from the first row of
  /// the prompt, to the next multiple or the prompt's end. A pass that cuts a group gives other bits.
  virtual std::int64_t prompt_chunk() const { return 1; }

  /// The logits of the last pass.
  virtual Logits last_logits() const = 0;
  /// Copies rows [first, first + rows) of the last pass's final states to out [rows, cols]. Errors: internal (the pass
  /// failed, or had no such rows), io_error.
  virtual Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const = 0;
  /// The same of a tap (Ops::tap()). Errors: also unsupported (several processes or GPUs compute the pass).
  virtual Status read_tap(std::int64_t /*tap*/, std::int64_t /*first*/, std::int64_t /*rows*/, float* /*out*/) const {
    return error(Code::unsupported, "{} does not hand over what layers read", describe());
  }

  /// How many of a row's largest logits the executor can select itself; 0: none, it always returns all logits.
  virtual std::int64_t top_logits_limit() const { return 0; }
  /// Makes later passes return only the largest logits of each row; last_logits() then has no data.
  /// REQUIRES: top_logits_limit() > 0.
  virtual void bring_top_logits_only(bool /*only*/) {}
  /// For the next pass that returns only the largest logits: also draws a token from all logits of each row, by one
  /// rule per row (temperature 0: draws none). Empty: draws for no row. REQUIRES: top_logits_limit() > 0.
  virtual void draw(std::span<const kernels::DrawRule> /*rules*/) {}
  /// REQUIRES: the last pass returned the largest logits.
  virtual TopLogits last_top_logits(std::int64_t /*row*/) const { return {}; }

  virtual ExecCounters counters() const = 0;
  virtual std::string describe() const = 0;  // "cpu avx512, 2 threads"
  /// The name of the numerics: executors with the same name give the same bits, in every version. It changes whenever
  /// an order of summation changes.
  virtual std::string_view numerics() const = 0;
};

class InputObserver;
struct Adapter;
class Routing;
class RoutingRecord;

struct CpuOptions {
  kernels::Isa isa = kernels::Isa::plain;
  /// Whether embeddings are read row by row from the file. Must be true unless the embedding's home is RAM: set it to
  /// plan.embedding_rows_from_disk, or true if a tied head streams the embedding through the ring.
  bool embedding_rows_from_disk = false;
  const Routing* routing = nullptr;   // chooses experts in place of the routers; may be null
  RoutingRecord* record = nullptr;    // records the chosen experts; may be null
  Trace* trace = nullptr;             // if set, records every step
  Prefetch prefetch = Prefetch::off;  // of experts that are predicted to be used
  bool aside = false;  // its passes run between those of another executor of the store, and use only resident weights
  InputObserver* observer = nullptr;  // receives the inputs of products (exec/input_observer.h); may be null
  const std::vector<Adapter>* adapters = nullptr;  // that rows may use (exec/adapters.h); null: none
};

/// The bytes that prepare() of the CPU executor reserves. Pure, so that a plan can be made before a store exists.
std::uint64_t cpu_activation_bytes(const PassShape& shape, int threads, const CpuOptions& options);

/// `store`, `pool` and `budget` outlive the executor.
std::unique_ptr<Executor> make_cpu_executor(residency::WeightStore& store, ThreadPool& pool, residency::Budget& budget,
                                            const CpuOptions& options);

}  // namespace millrace::exec
