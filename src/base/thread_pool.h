// A pool of pinned threads with cheap barriers, for work cut into pieces of microseconds.
//
// The calling thread is thread 0 and takes part. run() returns when every thread has finished. Workers spin for a
// short while (Options::spin) before they sleep, so that back-to-back ops cost about a microsecond each, and an idle
// engine costs nothing. Nothing allocates after construction. Not re-entrant: run() must not be called from inside
// run(), nor by two threads at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace millrace {

/// A reference to a callable, valid while the callable lives. Two words, no allocation.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::decay_t<F>, FunctionRef>) FunctionRef(F&& f)  // NOLINT: implicit by design
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  struct Options {
    int threads = 0;                     // 0: the processors this process may use (affinity mask and cgroup quota)
    std::chrono::microseconds spin{50};  // how long an idle worker waits for more before it sleeps
    bool pin = true;  // bind worker i to the i-th allowed processor; the caller's thread is never bound
    int first = 0;    // the first allowed processor to bind to, if another pool uses those before it
  };
  explicit ThreadPool(Options options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls work(thread) once on each thread, 0 <= thread < threads(). Blocks until all have returned.
  void run(FunctionRef<void(int thread)> work);

  /// Cuts [0, n) into pieces of `grain` that the threads take one after another (dynamic scheduling, so that a slow
  /// core takes fewer). work(begin, end, thread). Results must not depend on which thread takes which piece. Does not
  /// wait for a thread that has not started (asleep, or its processor runs another process): the others take its
  /// pieces.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t begin, std::int64_t end, int thread)> work);

  static constexpr int kMostStages = 2;

  /// For pieces that are contiguous in memory: calls work(stage, begin, end, thread) for all pieces of each stage;
  /// `pieces` has the number of pieces of each stage (at most kMostStages stages; a count fits 32 bits). Each thread
  /// starts with a contiguous run of pieces, so that its core's hardware prefetcher fetches what it reads next, and
  /// then steals half of what another thread has left. (If threads took single pieces in turn, each prefetcher would
  /// fetch the beginnings of other cores' pieces: with pieces of 64 KB two cores lose a fifth of the memory bandwidth.)
  /// A thread takes up to `at_once` pieces at a time while its run is long, and single pieces at its end, so that all
  /// threads finish together. No thread begins the second stage before all pieces of the first are taken, so that a
  /// thread that waits for a result of the first stage waits for a running thread. Otherwise like parallel_for().
  void parallel_runs(std::span<const std::int64_t> pieces, std::int64_t at_once,
                     FunctionRef<void(std::size_t stage, std::int64_t begin, std::int64_t end, int thread)> work);

  /// A barrier for all threads of the current run(). Callable only inside run(), not in a parallel loop.
  void barrier();

  /// Processors this process may use: affinity mask bounded by the cgroup quota, at least 1.
  static int usable_processors();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
