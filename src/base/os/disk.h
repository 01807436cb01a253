// The disk that holds a file. Thread-safety: functions without shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::os {

struct Disk {
  std::string name;                                 // as volume_name() of file_info.h
  std::optional<std::uint64_t> read_ahead_bytes{};  // how far the system reads ahead in sequential reads
};

/// The disk of FileInfo::volume; nullopt: a memory, network or overlay file system.
std::optional<Disk> find_disk(std::uint64_t volume);

}  // namespace millrace::os
