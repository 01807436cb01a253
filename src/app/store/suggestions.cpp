#include "app/store/suggestions.h"

#include <algorithm>

namespace millrace::store {
namespace {

constexpr double kComfortable = 5;     // tok/s: about as fast as people read
constexpr double kShareOfRate = 0.7;   // of a GPU's copying rate that a pass reaches
constexpr double kContextShare = 1.1;  // of the file: with a few thousand tokens of context

struct KnownModel {
  std::string_view name;
  double file_bytes, token_bytes;  // token_bytes: of the weights that one token reads
};
/// The usual file of each alias, the largest first.
constexpr KnownModel kKnown[] = {
    {"gpt-oss:120b", 63.4e9, 3.6e9}, {"llama3.3:70b", 42.5e9, 42.5e9}, {"qwen3:30b", 18.6e9, 2.0e9},
    {"gpt-oss:20b", 12.1e9, 2.5e9},  {"phi4", 9.1e9, 9.1e9},           {"gemma3:12b", 7.3e9, 7.3e9},
    {"qwen3:8b", 5.0e9, 5.0e9},      {"llama3.1:8b", 4.9e9, 4.9e9},    {"gemma3:4b", 2.5e9, 2.5e9},
    {"llama3.2:3b", 2.0e9, 2.0e9},   {"llama3.2:1b", 0.8e9, 0.8e9},    {"qwen3:0.6b", 0.6e9, 0.6e9},
};

/// Where the weights would be, and how fast that is. A GPU computes what fits into VRAM, the processor the rest.
Suggestion estimate(const KnownModel& model, const MachineRoom& room) {
  const double size = model.file_bytes * kContextShare;
  const double in_vram = std::min(1.0, room.vram_bytes / size);
  const double in_ram = std::min(1 - in_vram, room.ram_bytes / size);
  const double on_disk = std::max(0.0, 1 - in_vram - in_ram);
  Suggestion made = {model.name, model.file_bytes, 0, on_disk > 0 ? "disk" : in_ram > 0 ? "ram" : "vram"};
  double seconds = 0;
  bool known = true;
  const auto add = [&](double share, double rate) {
    if (share <= 0) return;
    known = known && rate > 0;
    if (rate > 0) seconds += share * model.token_bytes / rate;
  };
  add(in_vram, room.vram_rate * kShareOfRate);
  add(in_ram, room.ram_rate);
  add(on_disk, room.disk_rate);
  if (known && seconds > 0) made.tokens_per_second = 1 / seconds;
  return made;
}

}  // namespace

std::vector<Suggestion> suggest_models(const MachineRoom& room) {
  std::vector<Suggestion> comfortable, slow;
  for (const KnownModel& model : kKnown) {
    const Suggestion made = estimate(model, room);
    const bool known = made.tokens_per_second > 0;
    if (made.tier != "disk" && (!known || made.tokens_per_second >= kComfortable))
      comfortable.push_back(made);
    else
      slow.push_back(made);
  }
  if (comfortable.size() > kSuggestions) {
    comfortable[kSuggestions - 1] = comfortable.back();
    comfortable.resize(kSuggestions);
  }
  // The speed of what streams is known or not for all alike: unknown ones, the smallest first.
  std::stable_sort(slow.begin(), slow.end(), [](const Suggestion& a, const Suggestion& b) {
    if (a.tokens_per_second != b.tokens_per_second) return a.tokens_per_second > b.tokens_per_second;
    return a.tokens_per_second == 0 && a.file_bytes < b.file_bytes;
  });
  for (const Suggestion& one : slow)
    if (comfortable.size() < kSuggestions) comfortable.push_back(one);
  return comfortable;
}

}  // namespace millrace::store
