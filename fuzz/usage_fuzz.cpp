// Files of which experts were used, from anywhere: they are refused in one line, or are counts of this model's experts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "residency/expert_usage.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::residency;
  ExpertUsage like;
  like.uses = {{}, {0, 0, 0, 0}, {0, 0}};
  const auto found = parse_usage({reinterpret_cast<const char*>(data), size}, "fuzz.json", "model", like);
  if (!found.ok()) {
    if (found.status().message().find('\n') != std::string_view::npos) std::abort();
    return 0;
  }
  if (found->passes < 0 || found->uses.size() != like.uses.size()) std::abort();
  for (std::size_t layer = 0; layer < like.uses.size(); ++layer) {
    if (found->uses[layer].size() != like.uses[layer].size()) std::abort();
    for (const std::int64_t uses : found->uses[layer])
      if (uses < 0 || uses > found->passes) std::abort();
  }
  return 0;
}
