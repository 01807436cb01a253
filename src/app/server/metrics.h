// /metrics: what the server and its engines count, in Prometheus' text form.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "app/generate/run.h"
#include "base/mutex.h"
#include "engine/model_manager.h"

namespace millrace::server {

class Metrics {
 public:
  /// A request that was answered, with its HTTP status.
  void count_request(int status);
  void count_run(const generate::Totals& totals);

  std::string render(const engine::ModelManager& models) const;

 private:
  std::atomic<std::uint64_t> requests_ok_{0}, requests_refused_{0}, requests_failed_{0};
  mutable Mutex mutex_;
  std::uint64_t prompt_tokens_ MR_GUARDED_BY(mutex_) = 0, completion_tokens_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t runs_ MR_GUARDED_BY(mutex_) = 0;
  double prompt_seconds_ MR_GUARDED_BY(mutex_) = 0, decode_seconds_ MR_GUARDED_BY(mutex_) = 0;
};

/// Of everybody who guessed tokens.
struct GuessCounts {
  std::uint64_t all = 0, right = 0;
};
GuessCounts guesses_of(const engine::LoadCounters& load);

}  // namespace millrace::server
