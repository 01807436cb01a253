// The backends of Windows, in order of preference.
#include <array>
#include <string>

#include "storage/backends.h"
#include "storage/win32/directstorage.h"

namespace millrace::storage {

std::span<const BackendKind> backend_kinds() {
  static constexpr std::array kKinds = {BackendKind::automatic, BackendKind::pread_direct, BackendKind::pread_buffered,
                                        BackendKind::mmap, BackendKind::directstorage};
  return kKinds;
}

std::span<const BackendKind> uncached_kinds() {
  static constexpr std::array kKinds = {BackendKind::pread_direct, BackendKind::directstorage};
  return kKinds;
}

Opened open_own_kind(BackendKind kind, const std::vector<std::string>& paths, const OpenOptions& options) {
  if (kind == BackendKind::directstorage)
    return open_directstorage(paths, {.queue_depth = options.queue_depth,
                                      .request_bytes = options.request_bytes,
                                      .bytes_in_flight = options.bytes_in_flight});
  return error(Code::internal, "no backend of kind {}", static_cast<int>(kind));
}

/// Reads past the cache neither copy nor fill it with bytes that our own budget already holds. DirectStorage copies
/// through a staging buffer on the way to RAM: it is taken where it was measured to be faster all the same. A map is
/// the next best, but only where the whole model fits: its pages count as RAM.
std::vector<BackendKind> best_first(const OpenOptions& options) {
  std::vector<BackendKind> order;
  if (options.directstorage_faster) order.push_back(BackendKind::directstorage);
  order.push_back(BackendKind::pread_direct);
  if (options.everything_fits) order.push_back(BackendKind::mmap);
  order.push_back(BackendKind::pread_buffered);
  return order;
}

SystemWay system_way() {
  const auto found = find_directstorage();
  if (found.ok()) return {.name = "DirectStorage", .works = true, .found = *found};
  return {.name = "DirectStorage",
          .found = found.status().message() + "; threads read past the cache instead",
          .change =
              "nothing has to: should reads be slow, put dstorage.dll and dstoragecore.dll of Microsoft's "
              "DirectStorage package beside millrace.exe, and run 'millrace calibrate', which measures both ways",
          .expected = false};
}

}  // namespace millrace::storage
