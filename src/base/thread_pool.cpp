#include "base/thread_pool.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/log.h"
#include "base/processors.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kStackBytes = 256 * 1024;  // workers run kernels, which keep their scratch elsewhere
constexpr std::chrono::microseconds kSpinTime{50};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

void bind_to(pthread_t thread, int cpu) {
  const int capacity = std::max(1024, cpu + 1);
  cpu_set_t* set = CPU_ALLOC(capacity);
  if (set == nullptr) return;
  const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  if (pthread_setaffinity_np(thread, bytes, set) != 0) log::debug("thread pool: cannot bind a worker to CPU {}", cpu);
  CPU_FREE(set);
}

}  // namespace

// The words that threads hammer lie on lines of their own. Order: `work` and `next` are written before `generation` is
// raised (release) and read after it was seen to change (acquire); `pending` carries the way back.
struct ThreadPool::State {
  struct Worker {
    State* state = nullptr;
    int index = 0;
    pthread_t handle{};
  };

  int threads = 1;
  std::chrono::nanoseconds spin{0};
  std::vector<Worker> workers;
  const FunctionRef<void(int)>* work = nullptr;
  bool stopping = false;

  alignas(kLineBytes) std::atomic<std::uint32_t> generation{0};  // raised once a run
  alignas(kLineBytes) std::atomic<std::uint32_t> pending{0};     // workers that have not finished the run
  alignas(kLineBytes) std::atomic<std::uint32_t> arrived{0};     // at the present barrier
  alignas(kLineBytes) std::atomic<std::uint32_t> phase{0};       // raised once a barrier
  alignas(kLineBytes) std::atomic<std::int64_t> next{0};         // first index of parallel_for not yet taken

  void start(const FunctionRef<void(int)>* what) {
    work = what;
    pending.store(static_cast<std::uint32_t>(threads - 1), std::memory_order_relaxed);
    generation.fetch_add(1);
    generation.notify_all();
  }

  void finish() {
    for (std::uint32_t left = pending.load(std::memory_order_acquire); left != 0;
         left = pending.load(std::memory_order_acquire)) {
      wait_while_equal(pending, left, spin);
    }
  }

  void serve(int thread) {
    std::uint32_t seen = 0;
    while (true) {
      wait_while_equal(generation, seen, spin);
      ++seen;  // a run ends only when every worker has, so no generation can be missed
      if (stopping) return;
      (*work)(thread);
      if (pending.fetch_sub(1) == 1) pending.notify_one();
    }
  }
};

ThreadPool::ThreadPool(Options options) : state_(std::make_unique<State>()) {
  const std::vector<int> allowed = allowed_processors();
  const int processors = usable_processors();
  state_->threads = std::max(1, options.threads > 0 ? options.threads : processors);
  // With more threads than processors a spinning thread holds back the one it waits for.
  if (state_->threads <= processors) state_->spin = kSpinTime;
  const bool pin = options.pin && state_->threads <= static_cast<int>(allowed.size());

  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::max<std::size_t>(kStackBytes, PTHREAD_STACK_MIN));
  state_->workers.resize(static_cast<std::size_t>(state_->threads - 1));
  for (std::size_t i = 0; i < state_->workers.size(); ++i) {
    State::Worker& worker = state_->workers[i];
    worker.state = state_.get();
    worker.index = static_cast<int>(i) + 1;
    const auto body = [](void* argument) -> void* {
      const auto* self = static_cast<State::Worker*>(argument);
      self->state->serve(self->index);
      return nullptr;
    };
    if (const int failed = pthread_create(&worker.handle, &attributes, body, &worker); failed != 0) {
      log::warn("thread pool: {} threads instead of {}: the kernel refuses more (error {})", i + 1, state_->threads,
                failed);
      // Those that run have not been given work yet; `threads` is read by the caller's thread alone.
      state_->workers.resize(i);
      state_->threads = static_cast<int>(i) + 1;
      break;
    }
    if (pin) bind_to(worker.handle, allowed[i + 1]);
  }
  pthread_attr_destroy(&attributes);
}

ThreadPool::~ThreadPool() {
  state_->stopping = true;
  state_->start(nullptr);
  for (State::Worker& worker : state_->workers) pthread_join(worker.handle, nullptr);
}

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::run(FunctionRef<void(int thread)> work) {
  if (state_->threads == 1) {
    work(0);
    return;
  }
  state_->start(&work);
  work(0);
  state_->finish();
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
  run([&](int thread) {
    while (true) {
      const std::int64_t begin = state_->next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      work(begin, std::min(begin + grain, n), thread);
    }
  });
}

void ThreadPool::barrier() {
  if (state_->threads == 1) return;
  const std::uint32_t phase = state_->phase.load(std::memory_order_acquire);
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(state_->threads)) {
    state_->arrived.store(0, std::memory_order_relaxed);  // before the phase: nobody arrives again until it is raised
    state_->phase.fetch_add(1);
    state_->phase.notify_all();
  } else {
    wait_while_equal(state_->phase, phase, state_->spin);
  }
}

int ThreadPool::usable_processors() {
  int processors = static_cast<int>(allowed_processors().size());
  std::ostringstream self_cgroup;
  if (std::ifstream file("/proc/self/cgroup"); file) self_cgroup << file.rdbuf();
  const double quota = cgroup_cpu_quota(self_cgroup.str(), "/sys/fs/cgroup");
  if (quota > 0) processors = std::min(processors, static_cast<int>(std::ceil(quota)));
  return std::max(1, processors);
}

}  // namespace millrace
