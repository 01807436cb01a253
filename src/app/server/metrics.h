// /metrics: what the server and its engines count, in Prometheus' text form.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "app/generate/run.h"
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
  mutable std::mutex mutex_;
  std::uint64_t prompt_tokens_ = 0, completion_tokens_ = 0, runs_ = 0;  // GUARDED_BY mutex_
  double prompt_seconds_ = 0, decode_seconds_ = 0;                      // GUARDED_BY mutex_
};

}  // namespace millrace::server
