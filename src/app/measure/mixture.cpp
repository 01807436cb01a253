#include "app/measure/mixture.h"

#include <algorithm>

#include "base/bytes.h"

namespace millrace::measure {
namespace {

/// What the groups so far come to, and by which choice.
struct State {
  std::uint64_t bytes = 0;
  double divergence = 0;
  std::uint32_t before = 0;  // state of the groups before
  std::uint32_t option = 0;
};

/// Leaves those that nobody beats in both: ascending bytes, descending divergence.
void drop_beaten(std::vector<State>& states) {
  std::sort(states.begin(), states.end(), [](const State& one, const State& other) {
    return one.bytes != other.bytes ? one.bytes < other.bytes : one.divergence < other.divergence;
  });
  std::size_t kept = 0;
  for (const State& state : states)
    if (kept == 0 || state.divergence < states[kept - 1].divergence) states[kept++] = state;
  states.resize(kept);
}

/// One of each cell of bytes: the best; and the smallest of all, so that there is always a way on.
void thin(std::vector<State>& states, std::size_t most) {
  if (states.size() <= most || most < 2) return;
  const std::uint64_t first = states.front().bytes;
  const std::uint64_t cell = (states.back().bytes - first) / (most - 1) + 1;
  std::size_t kept = 1;
  for (std::size_t i = 1; i < states.size(); ++i) {
    const bool last_of_cell =
        i + 1 == states.size() || (states[i].bytes - first) / cell != (states[i + 1].bytes - first) / cell;
    if (last_of_cell) states[kept++] = states[i];
  }
  states.resize(kept);
}

}  // namespace

Expected<std::vector<std::size_t>> choose_mixture(std::span<const std::vector<MixtureOption>> groups,
                                                  const MixtureLimits& limits, std::size_t most_states) {
  // The fewest bytes of the groups from each on.
  std::vector<std::uint64_t> least(groups.size() + 1);
  for (std::size_t g = groups.size(); g-- > 0;) {
    if (groups[g].empty()) return error(Code::invalid_argument, "group {} has no type to choose", g);
    const auto smallest = std::min_element(groups[g].begin(), groups[g].end(),
                                           [](const auto& one, const auto& other) { return one.bytes < other.bytes; });
    least[g] = least[g + 1] + smallest->bytes;
  }
  if (least[0] > limits.bytes)
    return error(Code::out_of_budget, "the smallest mixture takes {}, more than {}; give more bytes, or smaller types",
                 format_bytes(least[0]), format_bytes(limits.bytes));
  std::vector<std::vector<State>> steps;
  std::vector<State> states(1);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<State> next;
    next.reserve(states.size() * groups[g].size());
    for (std::size_t s = 0; s < states.size(); ++s) {
      for (std::size_t o = 0; o < groups[g].size(); ++o) {
        const MixtureOption& option = groups[g][o];
        const std::uint64_t bytes = states[s].bytes + option.bytes;
        if (bytes + least[g + 1] > limits.bytes) continue;
        next.push_back({bytes, states[s].divergence + option.divergence, static_cast<std::uint32_t>(s),
                        static_cast<std::uint32_t>(o)});
      }
    }
    drop_beaten(next);
    thin(next, most_states);
    states = next;
    steps.push_back(std::move(next));
  }
  std::vector<std::size_t> chosen(groups.size());
  std::size_t at = states.size() - 1;  // bytes ascend, divergences descend
  if (limits.divergence) {
    if (states[at].divergence > *limits.divergence)
      return error(Code::out_of_budget, "the least divergence that such files have is {:.3g}, more than {:.3g}",
                   states[at].divergence, *limits.divergence);
    while (at > 0 && states[at - 1].divergence <= *limits.divergence) --at;
  }
  for (std::size_t g = groups.size(); g-- > 0;) {
    chosen[g] = steps[g][at].option;
    at = steps[g][at].before;
  }
  return chosen;
}

}  // namespace millrace::measure
