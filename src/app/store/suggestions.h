// Well-known models that a machine runs well, for people who have none yet. Speeds are estimates from the machine's
// rates and the bytes that a token reads; `millrace plan MODEL` knows better, from the file's header.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::store {

/// What a machine offers to a model's weights. Rates are in bytes/s; 0: not measured.
struct MachineRoom {
  double ram_bytes = 0, vram_bytes = 0;  // vram_bytes 0: no GPU
  double ram_rate = 0, vram_rate = 0, disk_rate = 0;
};

struct Suggestion {
  std::string_view name;         // an alias (aliases.h)
  double file_bytes = 0;         // about
  double tokens_per_second = 0;  // about, for one conversation; 0: the rates are not known
  std::string_view tier;         // the slowest that weights are read from: "vram", "ram" or "disk"
};

constexpr std::size_t kSuggestions = 5;
/// Five at most, the largest first: those that run at a comfortable speed, among them always a small one for a quick
/// first try. Where fewer fit into memory, the fastest of those that stream from the disk follow.
std::vector<Suggestion> suggest_models(const MachineRoom& room);

}  // namespace millrace::store
