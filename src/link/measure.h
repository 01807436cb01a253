// How fast the way between ranks is, for plans: measured with messages as passes send them, over the link that carries
// those. Thread-safety: that of the link.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "link/link.h"

namespace millrace::link {

/// From a rank to the one that computes behind it, or from the last one back to rank 0.
struct WaySpeed {
  int from = 0, to = 0;
  double seconds = 0;           // until a short message is there, and whoever slept meanwhile has seen it
  double bytes_per_second = 0;  // of a long one
};

struct WayEffort {
  int short_messages = 40;             // of each way
  int long_messages = 5;               //
  std::size_t long_bytes = 16u << 20;  // of each
};

/// All ranks call it at once, with nothing else under way between them. Rank 0 has each way's speed, in order; the
/// others get none. One way is measured at a time, so that none takes from another. Less than a second a way at
/// 1 Gbit/s. Errors: those of the link.
Expected<std::vector<WaySpeed>> measure_ways(Link& link, const WayEffort& effort = {});

}  // namespace millrace::link
