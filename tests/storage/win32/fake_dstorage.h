// What a test tells the stand-in for dstorage.dll, and learns from it: fake_dstorage_state(), exported by the DLL.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::storage {

struct FakeDirectStorage {
  // What to do.
  std::atomic<std::int64_t> fail_after{-1};  // requests that go well first; -1: none fails
  std::atomic<std::int64_t> fail_count{1};   // and how many fail then
  std::atomic<std::int32_t> fail_with{0};    // an HRESULT
  std::atomic<bool> hold{false};             // requests wait until it is false again, or until they are cancelled
  std::atomic<bool> old{false};              // queues do not know how to set an event
  std::atomic<std::int32_t> factory_result{0};

  // What was seen.
  std::atomic<std::int64_t> requests{0}, submits{0}, cancels{0}, cancelled{0}, largest{0}, statuses{0};
  std::atomic<std::int64_t> queues{0}, files{0};  // that are open now
  std::atomic<std::int64_t> configured{0}, no_telemetry{0}, configured_too_late{0};
  std::atomic<std::int64_t> staging_bytes{0};

  void reset() {
    fail_after = -1, fail_count = 1, fail_with = 0, hold = false, old = false, factory_result = 0;
    requests = submits = cancels = cancelled = largest = statuses = 0;
  }
};

}  // namespace millrace::storage
