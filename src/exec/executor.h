// Who walks a model's Program: the CPU or a GPU (with the processor's help), behind one interface. Where weights and
// activations lie is the executor's affair.
//
// Activations are float32, in memory sized once by prepare(). Matrices are fetched as they are used and never twice in
// a pass, however many rows the batch has. The first failure (a read error, a cancelled pass) ends the pass.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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

/// Logits of the rows that asked for them, in batch order, in host memory until the next pass.
struct Logits {
  const float* data = nullptr;  // [rows, vocab]
  std::int64_t rows = 0, vocab = 0;
};

/// The largest logits of a row, in descending order (ties: the smaller id), in host memory until the next pass.
struct TopLogits {
  std::span<const float> logits;
  std::span<const std::int32_t> ids;
  bool finite = true;       // every logit of the row is
  std::int32_t drawn = -1;  // by the rule that draw() was given for the row
};

/// Time and bytes of an executor since it was made, for `bench` and `--explain`.
struct ExecCounters {
  std::uint64_t passes = 0, rows = 0;
  std::uint64_t weight_wait_ns = 0;  // waiting for tiles
  std::uint64_t pass_ns = 0;
  std::uint64_t weight_bytes = 0;             // read by kernels, where the weight store does not count them
  std::uint64_t host_bytes = 0, host_ns = 0;  // of a GPU's pass: weights that the processor computed with, and how long
  // Of passes that go through several ranks: how long the others computed, and what was between (messages on their way,
  // ranks that had not seen them yet, or had another pass to do).
  std::uint64_t elsewhere_ns = 0, between_ns = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// Takes memory for passes of this program. Errors: out_of_budget, unsupported (a step that this executor cannot do,
  /// named).
  virtual Status prepare(const Program& program, const PassLimits& limits) = 0;

  /// One pass. REQUIRES: prepared, the batch within the limits, sequences reserved for their positions.
  /// `cancelled` (may be empty) is asked between steps and between tiles; true makes the pass end with Code::cancelled.
  /// A failed pass leaves no trace in any result.
  virtual Status run(const kv::Batch& batch, const std::function<bool()>& cancelled) = 0;

  /// How many passes may be under way at a time, of begin() and finish().
  virtual std::int64_t passes() const { return 1; }
  /// Begins a pass behind those under way; returns when the batch may change. A sequence may go on where a pass under
  /// way will leave it, its length set to there. A pass that fails here is not under way.
  /// REQUIRES: those of run(); fewer than passes() are under way.
  virtual Status begin(const kv::Batch& batch, const std::function<bool()>& cancelled) { return run(batch, cancelled); }
  /// Waits for the oldest pass under way, which is the last one for what follows then. `cancelled`: true gives up all
  /// that are under way.
  virtual Status finish(const std::function<bool()>& /*cancelled*/) { return {}; }
  /// Whether the calling thread does nothing in a pass but launch it and wait.
  virtual bool waits() const { return false; }
  /// Has the next pass run `task` on the calling thread when it is launched, or has failed before. REQUIRES: waits().
  virtual void meanwhile(const std::function<void()>& /*task*/) {}
  /// Into passes of so many rows a prompt is cut, so that several of them keep all parts of the executor at work. 0: a
  /// pass has as many as there is room for.
  virtual std::int64_t prompt_piece() const { return 0; }

  /// Passes of up to so many generated rows go one way, on which a row more costs little.
  virtual std::int64_t cheap_rows() const { return 64; }

  /// Whether passes may have rows of pictures (kv::Batch::pictures), and such that see tokens behind their own. Errors:
  /// unsupported (who cannot).
  virtual Status takes_pictures(bool sees_ahead) const = 0;

  /// Rows of a prompt that go together: from each position that is a multiple of it, or where a prompt's rows begin, to
  /// the next such or the prompt's end. A pass that cuts them elsewhere has other bits.
  virtual std::int64_t prompt_chunk() const { return 1; }

  /// Of the last pass.
  virtual Logits last_logits() const = 0;
  /// Rows [first, first + rows) of its final states into out [rows, cols]. Errors: internal (it failed, or had no such
  /// rows), io_error.
  virtual Status read_hidden(std::int64_t first, std::int64_t rows, float* out) const = 0;

  /// How many of a row's largest logits the executor finds by itself; 0: none, it always brings all of them.
  virtual std::int64_t top_logits_limit() const { return 0; }
  /// For the passes to come: bring the largest logits of each row only, and last_logits() has no data.
  /// REQUIRES: top_logits_limit() > 0.
  virtual void bring_top_logits_only(bool /*only*/) {}
  /// For the next pass that brings the largest alone: what is drawn from all logits of each of its rows of logits, by a
  /// rule a row (temperature 0: nothing). Empty: from none. REQUIRES: top_logits_limit() > 0.
  virtual void draw(std::span<const kernels::DrawRule> /*rules*/) {}
  /// REQUIRES: the last pass brought them.
  virtual TopLogits last_top_logits(std::int64_t /*row*/) const { return {}; }

  virtual ExecCounters counters() const = 0;
  virtual std::string describe() const = 0;  // "cpu avx512, 2 threads"
  /// Executors of one name give the same bits, whenever they were built: it changes when an order of sums does.
  virtual std::string_view numerics() const = 0;
};

class InputObserver;
class Routing;
class RoutingRecord;

struct CpuOptions {
  kernels::Isa isa = kernels::Isa::plain;
  /// Embeddings are read row by row straight from the file. REQUIRED unless the embedding unit is at home in RAM: set
  /// it to plan.embedding_rows_from_disk, and where a tied head streams the embedding through the ring.
  bool embedding_rows_from_disk = false;
  const Routing* routing = nullptr;   // chooses in the routers' place; may be null
  RoutingRecord* record = nullptr;    // is told what was chosen; may be null
  Trace* trace = nullptr;             // if set, every step is timed into it
  Prefetch prefetch = Prefetch::off;  // of experts that are guessed
  bool aside = false;  // its passes are between those of another executor of the store, and need only what is at home
  InputObserver* observer = nullptr;  // sees what products read (exec/input_observer.h); may be null
};

/// Bytes that prepare() of the CPU executor reserves. Pure, so that a plan can be made before there is a store.
std::uint64_t cpu_activation_bytes(const PassShape& shape, int threads, const CpuOptions& options);

/// `store`, `pool` and `budget` outlive the executor.
std::unique_ptr<Executor> make_cpu_executor(residency::WeightStore& store, ThreadPool& pool, residency::Budget& budget,
                                            const CpuOptions& options);

}  // namespace millrace::exec
