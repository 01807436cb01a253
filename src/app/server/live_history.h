// The last ten minutes of each model that is or was loaded, a sample a second, for the page's Machine tab: what
// happened before somebody opened it, and what stays when an answer ends or its model is unloaded. Thread-safe: a
// thread of its own takes the samples.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>

#include "base/json.h"
#include "base/mutex.h"
#include "engine/model_manager.h"

namespace millrace::server {

/// Counters of a model, from its load on.
struct LiveSample {
  std::int64_t time_ns = 0;  // of a steady clock
  std::uint64_t passes = 0, pass_ns = 0, stall_ns = 0, rows = 0, decode_tokens = 0;
  std::uint64_t guesses = 0, right_guesses = 0;  // tokens that were guessed, and how many of them rightly
  std::uint64_t used_bytes = 0, disk_bytes = 0;  // weights that passes computed with; bytes read from the disk
  std::uint64_t load_passes = 0;                 // of engine::LoadCounters, which anybody may ask for
};

class LiveHistory {
 public:
  static constexpr std::size_t kMostSamples = 600;
  static constexpr std::chrono::milliseconds kEvery{1000};

  /// Samples until it is stopped. `models` outlives this.
  explicit LiveHistory(engine::ModelManager& models);
  ~LiveHistory() { stop(); }
  LiveHistory(const LiveHistory&) = delete;
  LiveHistory& operator=(const LiveHistory&) = delete;
  /// Takes no more samples. Does not wait: a sample may wait for the end of a pass.
  void end();
  void stop();  // and waits

  /// [{"model", "samples": [...]}], the oldest sample first, in the words of /api/millrace/live.
  nlohmann::json to_json() const;

 private:
  struct Past {
    const void* load = nullptr;  // that the samples are of; another one begins anew
    std::deque<LiveSample> samples;
  };
  void work();
  void sample_all() MR_EXCLUDES(mutex_);
  static void add(const LiveSample& now, std::deque<LiveSample>& samples);
  void forget_old() MR_REQUIRES(mutex_);

  engine::ModelManager& models_;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopped_ MR_GUARDED_BY(mutex_) = false;
  std::map<std::string, Past> past_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::server
