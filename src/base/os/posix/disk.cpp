#include "base/os/disk.h"

#include <sys/sysmacros.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>

#include "base/os/file_info.h"

namespace millrace::os {

std::optional<Disk> find_disk(std::uint64_t volume) {
  const auto device = static_cast<dev_t>(volume);
  const std::filesystem::path block = fmt::format("/sys/dev/block/{}:{}", major(device), minor(device));
  std::error_code failure;
  if (!std::filesystem::exists(block, failure)) return std::nullopt;
  Disk disk{volume_name(volume)};
  // Partitions have no queue folder; their disk, one folder up, does.
  for (const char* const queue : {"queue/read_ahead_kb", "../queue/read_ahead_kb"}) {
    std::uint64_t kilobytes = 0;
    if (std::ifstream file(block / queue); !disk.read_ahead_bytes && file >> kilobytes)
      disk.read_ahead_bytes = kilobytes << 10;
  }
  return disk;
}

}  // namespace millrace::os
