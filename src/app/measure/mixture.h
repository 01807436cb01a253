// Which type each group of a model's matrices gets, so that a file of so many bytes diverges least from the model it is
// made of: a knapsack. Divergences of groups add up, as they nearly do where they are small.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace millrace::measure {

/// A group in one type.
struct MixtureOption {
  DType dtype = DType::f32;
  std::uint64_t bytes = 0;
  double divergence = 0;  // that it alone causes, in nats a token
};

/// One option of each group (by index), with the least sum of divergences among those whose bytes are `most_bytes` at
/// most together; of equal ones fewer bytes. Exact while no more than kMostStates sums are of use at any group; with
/// more, sums whose bytes fall into one of so many cells are one, which never exceeds the budget.
/// Errors: invalid_argument (a group without options); out_of_budget (names the fewest bytes there can be).
constexpr std::size_t kMostStates = 8192;
Expected<std::vector<std::size_t>> choose_mixture(std::span<const std::vector<MixtureOption>> groups,
                                                  std::uint64_t most_bytes, std::size_t most_states = kMostStates);

}  // namespace millrace::measure
