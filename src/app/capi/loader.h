// What a C caller's millrace_loader is: one file behind a storage backend, and the reads that were planned.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>

#include "app/capi/common.h"
#include "base/mutex.h"
#include "storage/storage.h"
#ifdef MILLRACE_HAS_CUDA
#include "device/cuda_runtime.h"
#endif

namespace millrace::capi {

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<std::byte, Freed>;

/// A read that was planned, and maybe started.
struct Planned {
  storage::Read read;
  void* destination = nullptr;  // where the bytes go once they are in `around`; null: they went there at once
  bool to_device = false;
  Block around;
#ifdef MILLRACE_HAS_CUDA
  device::PinnedBuffer pinned;
#endif
  bool submitted = false;
  storage::Completion completion;
};

}  // namespace millrace::capi

struct millrace_loader {
  std::unique_ptr<millrace::storage::Backend> backend;
  std::uint64_t file_bytes = 0;
  millrace::Mutex mutex;
  std::map<std::uint64_t, std::shared_ptr<millrace::capi::Planned>> reads MR_GUARDED_BY(mutex);
  std::uint64_t next MR_GUARDED_BY(mutex) = 1;

  ~millrace_loader() {
    for (const auto& [number, planned] : reads) {
      if (planned->submitted) (void)planned->completion.wait();
    }
  }
};
