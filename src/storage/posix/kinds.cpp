// The backends of Linux, in order of preference.
#include <array>
#include <fstream>
#include <string>

#include "storage/backends.h"

namespace millrace::storage {

std::span<const BackendKind> backend_kinds() {
  static constexpr std::array kKinds = {BackendKind::automatic, BackendKind::io_uring, BackendKind::pread_direct,
                                        BackendKind::pread_buffered, BackendKind::mmap};
  return kKinds;
}

std::span<const BackendKind> uncached_kinds() {
  static constexpr std::array kKinds = {BackendKind::io_uring, BackendKind::pread_direct};
  return kKinds;
}

Opened open_own_kind(BackendKind kind, const std::vector<std::string>& paths, const OpenOptions& options) {
  if (kind == BackendKind::io_uring) return open_uring(paths, options);
  return error(Code::internal, "no backend of kind {}", static_cast<int>(kind));
}

/// io_uring keeps the disk busy from one thread; O_DIRECT reads neither copy nor fill the page cache with bytes that
/// our own budget already holds, and land in huge pages, from which the decode kernels read up to 15 % faster than from
/// mapped files. A map is the next best, but only where the whole model fits: its pages count as RAM, and one that was
/// dropped costs a fault in the middle of a product.
std::vector<BackendKind> best_first(const OpenOptions& options) {
  std::vector<BackendKind> order = {BackendKind::io_uring, BackendKind::pread_direct};
  if (options.everything_fits) order.push_back(BackendKind::mmap);
  order.push_back(BackendKind::pread_buffered);
  return order;
}

SystemWay system_way() {
  const Status ring = try_uring();
  std::string disabled;
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  std::getline(file, disabled);
  const std::string setting = disabled.empty() ? "" : fmt::format(" (kernel.io_uring_disabled = {})", disabled);
  if (ring.ok()) return {.name = "io_uring", .works = true, .found = "works" + setting};
  return {.name = "io_uring",
          .found = fmt::format("{}{}; threads read instead", ring.message(), setting),
          .change = !disabled.empty() && disabled != "0"
                        ? "sudo sysctl kernel.io_uring_disabled=0"
                        : "use Linux 5.6 or later with io_uring built in; in a container, let its seccomp profile "
                          "allow io_uring_setup, io_uring_enter and io_uring_register"};
}

}  // namespace millrace::storage
