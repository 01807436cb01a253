// The disk below a file, as the system knows it. Thread-safety: functions without shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::os {

struct Disk {
  std::string name;                                 // as volume_name() of file_info.h
  std::optional<std::uint64_t> read_ahead_bytes{};  // what the system reads ahead of a file that is read in order
};

/// The disk behind FileInfo::volume; none: a memory, network or overlay file system.
std::optional<Disk> find_disk(std::uint64_t volume);

}  // namespace millrace::os
