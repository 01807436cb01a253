#include "engine/pass_groups.h"

#include <algorithm>
#include <bit>

namespace millrace::engine {

PassGroups::Known& PassGroups::known(std::int64_t sequences) {
  const int magnitude = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(sequences, 1)));
  return known_[static_cast<std::size_t>(std::min(magnitude, kMagnitudes) - 1)];
}

std::int64_t PassGroups::groups(std::int64_t sequences) {
  if (passes_ == 1 || sequences < 2) return 1;
  return known(sequences).now == 0 ? 1 : passes_;
}

void PassGroups::change(Known& known, int way, bool trying) {
  known.now = way;
  known.passes = 0;
  known.trying = trying;
  known.ways[static_cast<std::size_t>(way)].seconds = 0;
  known.ways[static_cast<std::size_t>(way)].tokens = 0;
}

void PassGroups::passed(std::int64_t sequences, std::int64_t tokens, double seconds) {
  if (passes_ == 1 || sequences < 2) return;
  Known& of = known(sequences);
  Way& way = of.ways[static_cast<std::size_t>(of.now)];
  if (++of.passes > kSettling + passes_) {
    way.seconds += seconds;
    way.tokens += tokens;
  }
  if (of.trying) {
    if (of.passes < kSettling + passes_ + kTries || way.tokens == 0) return;
    way.seconds_per_token = way.seconds / static_cast<double>(way.tokens);
    if (of.ways[0].seconds_per_token == 0) return change(of, 0, true);
    const int faster = of.ways[0].seconds_per_token < of.ways[1].seconds_per_token ? 0 : 1;
    return change(of, faster, false);
  }
  if (of.passes < kTrust) return;
  way.seconds_per_token = way.seconds / static_cast<double>(std::max<std::int64_t>(way.tokens, 1));
  change(of, 1 - of.now, true);
}

}  // namespace millrace::engine
