// Which backend reads the files: the whole decision, in the order it is made.
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "storage/backends.h"

namespace millrace::storage {
namespace {

using Opened = Expected<std::unique_ptr<Backend>>;

Opened open_kind(BackendKind kind, const std::vector<std::string>& paths, const OpenOptions& options) {
  switch (kind) {
    case BackendKind::io_uring:
      return open_uring(paths, options);
    case BackendKind::pread_direct:
      return open_pread(paths, options, true);
    case BackendKind::pread_buffered:
      return open_pread(paths, options, false);
    case BackendKind::mmap:
      return open_mmap(paths, options);
    case BackendKind::automatic:
      break;
  }
  return error(Code::internal, "no backend of kind {}", static_cast<int>(kind));
}

void log_choice(const Backend& backend, const OpenOptions& options, std::string_view reason) {
  const BackendTraits& traits = backend.traits();
  log::info("storage: {} ({}); blocks of {} B, requests of up to {}, {} threads, depth {}", traits.name, reason,
            traits.alignment, format_bytes(options.request_bytes), options.threads, options.queue_depth);
}

/// Best first. io_uring keeps the disk busy from one thread; O_DIRECT reads neither copy nor fill the page cache with
/// bytes that our own budget already holds, and land in huge pages, from which the decode kernels read up to 15 %
/// faster than from mapped files. A map is the next best, but only where the whole model fits: its pages count as RAM,
/// and one that was dropped costs a fault in the middle of a product.
Opened open_best(const std::vector<std::string>& paths, const OpenOptions& options) {
  std::vector<BackendKind> order = {BackendKind::io_uring, BackendKind::pread_direct};
  if (options.everything_fits) order.push_back(BackendKind::mmap);
  order.push_back(BackendKind::pread_buffered);
  std::string last_refusal;
  for (const BackendKind kind : order) {
    Opened opened = open_kind(kind, paths, options);
    if (opened.ok()) {
      if (!last_refusal.empty())
        log::warn("storage: {}; reading with {} instead", last_refusal, (*opened)->traits().name);
      log_choice(**opened, options,
                 last_refusal.empty() ? "the fastest way on this machine and file system" : "the next best");
      return opened;
    }
    // Anything but "this way is closed" is about the files, and another way would meet it too.
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
