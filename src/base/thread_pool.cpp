#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>
#include <vector>

#include "base/log.h"
#include "base/os/processors.h"
#include "base/os/thread.h"
#include "base/os/wait.h"
#include "base/spin.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr std::size_t kLineBytes = 64;

/// Waits until word != old: spins for `spin` (which bridges the gap between two ops), then sleeps in the kernel.
void wait_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t old, std::chrono::nanoseconds spin) {
  if (spin.count() > 0) {
    const auto give_up = std::chrono::steady_clock::now() + spin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() < give_up);
  }
  while (word.load(std::memory_order_acquire) == old) os::sleep_while_equal(word, old);
}

struct PieceRange {
  std::int64_t begin = 0, end = 0;
};

/// A range [begin, end) of pieces: its owner takes from the front, thieves take half from the back. No range occurs
/// twice in a loop, since no piece is returned, so compare-and-swap has no ABA problem.
class alignas(kLineBytes) Run {
 public:
  void set(std::int64_t begin, std::int64_t end) {
    word_.store(static_cast<std::uint64_t>(begin) << 32 | static_cast<std::uint64_t>(end), std::memory_order_relaxed);
  }
  std::int64_t left() const { return left_of(word_.load(std::memory_order_relaxed)); }

  /// Takes from the front, up to `at_once` while many are left; an empty range if none are.
  PieceRange take(std::int64_t at_once) {
    std::uint64_t word = word_.load(std::memory_order_relaxed);
    while (true) {
      const std::int64_t taken = std::min(left_of(word), std::clamp(left_of(word) / 4, std::int64_t{1}, at_once));
      if (taken <= 0) return {};
      const std::uint64_t rest = word + (static_cast<std::uint64_t>(taken) << 32);
      if (word_.compare_exchange_weak(word, rest, std::memory_order_relaxed))
        return {begin_of(word), begin_of(word) + taken};
    }
  }

  /// Moves the rear half (rounded up) to `other`, which is empty, unless another thread takes or moves pieces
  /// meanwhile.
  void halve(Run& other) {
    std::uint64_t word = word_.load(std::memory_order_relaxed);
    const std::int64_t given = (left_of(word) + 1) / 2, end = end_of(word);
    if (word_.compare_exchange_strong(word, word - static_cast<std::uint64_t>(given), std::memory_order_relaxed))
      other.set(end - given, end);
  }

 private:
  static std::int64_t begin_of(std::uint64_t word) { return static_cast<std::int64_t>(word >> 32); }
  static std::int64_t end_of(std::uint64_t word) { return static_cast<std::int64_t>(word & 0xffffffff); }
  static std::int64_t left_of(std::uint64_t word) { return end_of(word) - begin_of(word); }

  std::atomic<std::uint64_t> word_{0};  // begin << 32 | end
};

}  // namespace

// A generation is one run() or parallel loop. `gate` holds its number, whether it is closed, and how many workers have
// joined it, in one word, so that a worker that wakes up late joins either the present generation, once, or none.
// run() waits for every worker to join and finish; a parallel loop closes the gate when its pieces are taken and waits
// for those that joined: a worker that sleeps or has lost its processor to others holds nobody up.
// The words that threads hammer lie on lines of their own. `work`, `next` and `done` are written before the gate is
// opened (release) and read after joining (acquire).
struct ThreadPool::State {
  static constexpr std::uint64_t kClosed = 1ull << 31;
  static constexpr std::uint64_t kJoined = kClosed - 1;

  int threads = 1;
  std::chrono::nanoseconds spin{0};
  std::vector<os::Thread> workers;
  const FunctionRef<void(int)>* work = nullptr;
  bool stopping = false;

  alignas(kLineBytes) std::atomic<std::uint64_t> gate{kClosed};  // generation << 32 | closed | joined
  alignas(kLineBytes) std::atomic<std::uint32_t> generation{0};  // the same number, for waiters
  alignas(kLineBytes) std::atomic<std::uint32_t> done{0};        // workers that joined and have finished
  alignas(kLineBytes) std::atomic<std::uint32_t> arrived{0};     // at the current barrier
  alignas(kLineBytes) std::atomic<std::uint32_t> phase{0};       // incremented by each barrier
  alignas(kLineBytes) std::atomic<std::int64_t> next{0};         // parallel_for's first index not yet taken
  std::array<std::vector<Run>, kMostStages> runs;                // of parallel_runs: each stage's, by thread

  /// Takes pieces of the stage for this thread; empty if all are taken.
  PieceRange take(std::size_t stage, int thread, std::int64_t at_once) {
    std::vector<Run>& of = runs[stage];
    Run& own = of[static_cast<std::size_t>(thread)];
    while (true) {
      if (const PieceRange pieces = own.take(at_once); pieces.begin < pieces.end) return pieces;
      Run& most =
          *std::max_element(of.begin(), of.end(), [](const Run& a, const Run& b) { return a.left() < b.left(); });
      if (most.left() == 0) return {};
      most.halve(own);
    }
  }

  void start(const FunctionRef<void(int)>* what) {
    work = what;
    done.store(0, std::memory_order_relaxed);
    const std::uint32_t number = generation.load(std::memory_order_relaxed) + 1;
    gate.store(static_cast<std::uint64_t>(number) << 32, std::memory_order_release);
    generation.store(number);
    os::wake_all(generation);
  }

  /// Waits until `count` workers have finished the generation.
  void finish(std::uint32_t count) {
    for (std::uint32_t now = done.load(std::memory_order_acquire); now != count;
         now = done.load(std::memory_order_acquire)) {
      wait_while_equal(done, now, spin);
    }
  }

  /// Closes the gate; returns the number of workers that had joined.
  std::uint32_t close() {
    return static_cast<std::uint32_t>(gate.fetch_or(kClosed, std::memory_order_acq_rel) & kJoined);
  }

  /// Runs on this thread and on the workers that join in time; workers that do not join are not waited for.
  void run_with_who_comes(FunctionRef<void(int)> pieces) {
    start(&pieces);
    pieces(0);
    finish(close());
  }

  /// Joins the open generation unless its number is `last`, and stores the number in `last`.
  bool join(std::uint32_t& last) {
    std::uint64_t now = gate.load(std::memory_order_acquire);
    do {
      if ((now & kClosed) != 0 || static_cast<std::uint32_t>(now >> 32) == last) return false;
    } while (!gate.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    last = static_cast<std::uint32_t>(now >> 32);
    return true;
  }

  void serve(int thread) {
    std::uint32_t seen = 0, last = 0;
    while (true) {
      wait_while_equal(generation, seen, spin);
      seen = generation.load(std::memory_order_acquire);
      if (!join(last)) continue;
      if (stopping) return;
      (*work)(thread);
      done.fetch_add(1);
      os::wake_one(done);
    }
  }
};

ThreadPool::ThreadPool(Options options) : state_(std::make_unique<State>()) {
  const std::vector<int> allowed = os::allowed_processors();
  const int processors = usable_processors();
  state_->threads = std::max(1, options.threads > 0 ? options.threads : processors);
  for (std::vector<Run>& runs : state_->runs) runs = std::vector<Run>(static_cast<std::size_t>(state_->threads));
  // With more threads than processors, a spinning thread delays the thread that it waits for.
  if (state_->threads <= processors) state_->spin = options.spin;
  const int threads = state_->threads;
  const bool pin = options.pin && options.first + state_->threads <= static_cast<int>(allowed.size());

  for (int i = 1; i < threads; ++i) {
    auto worker = os::Thread::start("", [state = state_.get(), i] { state->serve(i); });
    if (!worker.ok()) {
      log::warn("thread pool: {} threads instead of {}: {}", i, threads, worker.status().message());
      // The workers that run have no work yet; only the caller's thread reads `threads`.
      state_->threads = i;
      break;
    }
    if (pin && !worker->bind(allowed[static_cast<std::size_t>(options.first + i)]).ok())
      log::debug("thread pool: cannot bind a worker to CPU {}", allowed[static_cast<std::size_t>(options.first + i)]);
    state_->workers.push_back(std::move(*worker));
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping = true;
  state_->start(nullptr);
  state_->workers.clear();  // joins
}

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::run(FunctionRef<void(int thread)> work) {
  if (state_->threads == 1) {
    work(0);
    return;
  }
  state_->start(&work);
  work(0);
  state_->finish(static_cast<std::uint32_t>(state_->threads - 1));
}

void ThreadPool::parallel_for(std::int64_t n, std::int64_t grain,
                              FunctionRef<void(std::int64_t begin, std::int64_t end, int thread)> work) {
  MR_ASSERT(grain > 0);
  if (n <= 0) return;
  if (state_->threads == 1 || n <= grain) {
    work(0, n, 0);
    return;
  }
  state_->next.store(0, std::memory_order_relaxed);
  const auto take_pieces = [&](int thread) {
    while (true) {
      const std::int64_t begin = state_->next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      work(begin, std::min(begin + grain, n), thread);
    }
  };
  state_->run_with_who_comes(take_pieces);
}

void ThreadPool::parallel_runs(
    std::span<const std::int64_t> pieces, std::int64_t at_once,
    FunctionRef<void(std::size_t stage, std::int64_t begin, std::int64_t end, int thread)> work) {
  MR_ASSERT(pieces.size() <= kMostStages && at_once > 0);
  if (std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0}) == 0) return;
  const std::int64_t threads = state_->threads;
  for (std::size_t stage = 0; stage < pieces.size(); ++stage)
    for (std::int64_t t = 0; t < threads; ++t)
      state_->runs[stage][static_cast<std::size_t>(t)].set(pieces[stage] * t / threads,
                                                           pieces[stage] * (t + 1) / threads);
  const auto take_pieces = [&](int thread) {
    for (std::size_t stage = 0; stage < pieces.size(); ++stage)
      for (PieceRange of = state_->take(stage, thread, at_once); of.begin < of.end;
           of = state_->take(stage, thread, at_once))
        work(stage, of.begin, of.end, thread);
  };
  if (threads == 1) return take_pieces(0);
  state_->run_with_who_comes(take_pieces);
}

void ThreadPool::barrier() {
  if (state_->threads == 1) return;
  const std::uint32_t phase = state_->phase.load(std::memory_order_acquire);
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(state_->threads)) {
    state_->arrived.store(0, std::memory_order_relaxed);  // before the phase: nobody arrives again until it is raised
    state_->phase.fetch_add(1);
    os::wake_all(state_->phase);
  } else {
    wait_while_equal(state_->phase, phase, state_->spin);
  }
}

int ThreadPool::usable_processors() {
  int processors = static_cast<int>(os::allowed_processors().size());
  std::ostringstream self_cgroup;
  if (std::ifstream file("/proc/self/cgroup"); file) self_cgroup << file.rdbuf();
  const double quota = os::cgroup_cpu_quota(self_cgroup.str(), "/sys/fs/cgroup");
  if (quota > 0) processors = std::min(processors, static_cast<int>(std::ceil(quota)));
  return std::max(1, processors);
}

}  // namespace millrace
