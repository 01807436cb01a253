// The processor's half of a mixture whose experts are not all in VRAM: in passes of few rows it computes with those
// that have no slot there, where they lie in page-locked memory, while the GPU computes with the others.
//
// For each mixture the GPU hands out its rows and what their router chose, goes on with the experts that it has, and
// takes in the results of the others (exchange.h). Who computes with which expert follows from the slots of the
// pass (residency/gpu/experts.h), and changes no bit: products, gates and biases here are the GPU's to the last one.
// Thread-safety: one thread calls; between the first add() and the end of finish() or abandon() nobody else uses the
// pool or the experts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "base/trace.h"
#include "device/host_memory.h"
#include "exec/gpu/exchange.h"
#include "exec/piece_index.h"
#include "exec/program.h"
#include "exec/router_ahead.h"
#include "kernels/kernels.h"
#include "residency/budget.h"
#include "residency/gpu/experts.h"
#include "residency/plan.h"

namespace millrace::exec {

using residency::kExpertShareRows;

class ExpertShare final : public HostExchange {
 public:
  struct Sizes {
    std::int64_t rows = 0;  // of a pass, at most
    std::int64_t experts = 0, top_k = 0, model_dim = 0, expert_ff = 0;
  };
  /// What create() reserves of RAM. Pure.
  static std::uint64_t bytes(const Sizes& sizes, const kernels::Table& table, int threads);
  /// All outlive the object; trace may be null. Errors: out_of_budget, io_error.
  static Expected<std::unique_ptr<ExpertShare>> create(const Sizes& sizes, residency::DeviceExperts& experts,
                                                       ThreadPool& pool, const kernels::Table& table,
                                                       residency::Budget& ram, Trace* trace);
  ~ExpertShare() override { stop(); }

  /// A mixture's rows. Biases and scales as Experts says, in host memory; null: none.
  struct Job {
    std::uint32_t number = 0;
    std::int64_t rows = 0;
    const Experts* experts = nullptr;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    const float *inner_scale = nullptr, *up_scale = nullptr, *down_scale = nullptr;
    const Experts* ahead = nullptr;  // the next mixture's, whose router's guess is handed out, too; null: none is
  };
  /// For the launches: where the device sees rows and choices, places and results.
  float* device_input() const { return device_at<float>(at_.input); }
  std::int32_t* device_chosen() const { return device_at<std::int32_t>(at_.chosen); }
  const std::int32_t* device_places() const { return device_at<std::int32_t>(at_.place); }
  const float* device_output() const { return device_at<float>(at_.output); }

  /// Likewise where a guess goes, of kGuessedRows rows, and the flag that says so.
  std::int32_t* device_guess() const { return device_at<std::int32_t>(at_.guess); }
  float* device_guess_weights() const { return device_at<float>(at_.guess_weights); }
  std::uint32_t* device_guess_flag() const { return device_at<std::uint32_t>(at_.guess_flag); }

  /// Queues a job whose hand_out and take_in are on `stream`; waits while many are queued.
  void add(const Job& job, device::StreamRef stream) { enqueue(jobs_, job, stream); }

  /// Weight bytes that the processor has read, and the time that took. REQUIRES: nothing is queued.
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  std::uint64_t compute_ns() const { return compute_ns_; }

 private:
  /// An expert of the job's that the processor computes, and its entries: [first, first + rows) in order.
  struct Missed {
    std::int32_t expert = 0;
    std::int64_t first = 0, rows = 0;
    residency::Lease lease;
    const std::byte *gate_or_up = nullptr, *up = nullptr, *down = nullptr;  // the first: up where there is no gate
  };
  /// Offsets: in the exchange's memory, and in that of the processor alone.
  struct Places {
    std::uint64_t input = 0, chosen = 0, place = 0, output = 0, shared_bytes = 0;
    std::uint64_t guess = 0, guess_weights = 0, guess_flag = 0;  // of the exchange's memory as well
    std::uint64_t hidden = 0, hidden_q8 = 0, threads = 0, thread_bytes = 0, workspace_bytes = 0, work_bytes = 0;
  };
  static Places lay_out(const Sizes& sizes, const kernels::Table& table, int threads);
  ExpertShare(const Sizes& sizes, residency::DeviceExperts& experts, ThreadPool& pool, const kernels::Table& table,
              Trace* trace)
      : sizes_(sizes),
        at_(lay_out(sizes, table, pool.threads())),
        experts_(experts),
        units_(experts.units()),
        pieces_(units_),
        pool_(pool),
        table_(table),
        trace_(trace) {}

  Status compute(std::size_t place) override;
  void settle() override;
  /// What was guessed of the job's mixture is counted; the guess that comes with the job is waited for from here on.
  void begin_guess(const Job& job);
  bool guess_there() const;
  void await_guess();
  void take_guess();
  /// Starts reads of what is guessed and not in memory, as far as the disk idles.
  void read_ahead();
  void choose(const Job& job);
  void leave_claimed(const Job& job);
  Status take_leases(const Job& job);
  std::size_t gather_ready();
  void multiply(const Job& job, std::size_t members);
  /// How the rows of a matrix are cut into tasks.
  struct Cut {
    std::int64_t rows = 0, rows_each = 0, tasks = 0;
  };
  static Cut cut(const residency::Part& matrix);
  /// Rows [begin, end) of the member's matrices; names as in MatmulArgs.
  void gate_and_up(const Job& job, const Missed& missed, std::uint64_t x_name, std::int64_t begin, std::int64_t end,
                   int thread);
  void finish_hidden(const Job& job, std::size_t member);
  void down(const Job& job, const Missed& missed, std::uint64_t hidden_name, std::int64_t begin, std::int64_t end,
            int thread);
  kernels::Q8Rows hidden_q8(std::int64_t place, std::int64_t ff) const;
  /// Arguments of a product of the member's rows with rows [begin, end) of `weight`; y is [rows, y_stride].
  kernels::MatmulArgs product(const Missed& missed, const residency::Part& matrix, const std::byte* weight,
                              std::int64_t begin, std::int64_t end, int thread) const;
  std::int32_t unit_of(const Job& job, std::int32_t expert) const { return job.experts->first_unit + expert; }
  const residency::Part& part(const Job& job, std::int32_t part) const {
    return units_.part({job.experts->first_unit, part});
  }
  const std::byte* bytes_of(const Job& job, const Missed& missed, std::int32_t part) const;
  float* hidden() const { return reinterpret_cast<float*>(work_.data() + at_.hidden); }
  std::byte* thread_memory(int thread) const {
    return work_.data() + at_.threads + static_cast<std::uint64_t>(thread) * at_.thread_bytes;
  }

  const Sizes sizes_;
  const Places at_;
  residency::DeviceExperts& experts_;
  const residency::UnitTable& units_;
  const PieceIndex pieces_;
  ThreadPool& pool_;
  const kernels::Table& table_;
  Trace* const trace_;
  residency::Reservation reservation_;
  device::HostBuffer work_;
  std::vector<std::int32_t> row_of_;    // by place: the row of x
  std::vector<std::int64_t> first_of_;  // by expert, and one past the last: its first place, of those computed here
  std::vector<Missed> waiting_, leased_;
  /// Of one of leased_: tasks that make its hidden rows, and whether these are as the last product takes them.
  struct alignas(64) Progress {
    std::atomic<std::int64_t> left{0};
    std::atomic<bool> hidden_ready{false};
  };
  std::unique_ptr<Progress[]> progress_;  // as many as there are experts
  std::vector<std::int32_t> used_;        // experts that were computed with, by either; they may be worth a slot
  std::int32_t used_first_unit_ = 0;
  /// The guess that came with the present job.
  struct Guessed {
    const Experts* of = nullptr;  // null: none
    std::uint32_t number = 0;
    std::int64_t rows = 0;
    bool taken = false;
    std::vector<std::int32_t> experts;
    std::vector<bool> absent;          // neither in a slot nor in RAM, when it came
    std::vector<std::int32_t> wanted;  // tiles, the likeliest first
  };
  Guessed guessed_;
  std::vector<bool> chosen_here_;  // by expert: by the job's rows
  GuessTrust trust_;
  std::uint64_t names_ = 0;
  std::uint64_t weight_bytes_ = 0, compute_ns_ = 0;
  std::array<Job, kMostQueued> jobs_;
};

}  // namespace millrace::exec
