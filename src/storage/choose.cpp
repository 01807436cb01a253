// Chooses the backend that reads the files. The complete decision, in order.
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "storage/backends.h"

namespace millrace::storage {
namespace {

void log_choice(const Backend& backend, const OpenOptions& options, std::string_view reason) {
  const BackendTraits& traits = backend.traits();
  log::info("storage: {} ({}); blocks of {} B, requests of up to {}, {} threads, depth {}", traits.name, reason,
            traits.alignment, format_bytes(options.request_bytes), options.threads, options.queue_depth);
}

/// REQUIRES: kind is one of backend_kinds(), and not automatic.
Opened open_kind(BackendKind kind, const std::vector<std::string>& paths, const OpenOptions& options) {
  switch (kind) {
    case BackendKind::pread_direct:
      return open_pread(paths, options, true);
    case BackendKind::pread_buffered:
      return open_pread(paths, options, false);
    case BackendKind::mmap:
      return open_mmap(paths, options);
    default:
      return open_own_kind(kind, paths, options);
  }
}

Opened open_best(const std::vector<std::string>& paths, const OpenOptions& options) {
  std::string last_refusal;
  for (const BackendKind kind : best_first(options)) {
    Opened opened = open_kind(kind, paths, options);
    if (opened.ok()) {
      if (!last_refusal.empty())
        log::warn("storage: {}; reading with {} instead", last_refusal, (*opened)->traits().name);
      log_choice(**opened, options,
                 last_refusal.empty() ? "the fastest way on this machine and file system" : "the next best");
      return opened;
    }
    // Errors other than `unsupported` concern the files, and another backend would meet them, too.
    if (opened.status().code() != Code::unsupported) return opened;
    last_refusal = opened.status().message();
  }
  return error(Code::unsupported, "{}", last_refusal);
}

}  // namespace

Expected<std::unique_ptr<Backend>> open_backend(const std::vector<std::string>& paths, const OpenOptions& options) {
  if (options.kind != BackendKind::automatic) {
    Opened opened = open_kind(options.kind, paths, options);
    if (!opened.ok()) return opened.status().with_context(fmt::format("storage {}", backend_name(options.kind)));
    log_choice(**opened, options, "as asked");
    return opened;
  }
  return open_best(paths, options);
}

}  // namespace millrace::storage
