// Which type each group of a model's matrices gets, so that a file of so many bytes diverges least from the model it is
// made of, or one that diverges no more than so much has fewest bytes: a knapsack. Divergences of groups add up, as
// they nearly do where they are small. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
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

/// What a mixture may come to. Where a divergence is named fewest bytes are wanted, else the least divergence.
struct MixtureLimits {
  std::uint64_t bytes = UINT64_MAX;
  std::optional<double> divergence = {};
};

/// One option of each group (by index), within the limits together; of equally good ones that with fewer bytes. Exact
/// while no more than kMostStates sums are of use at any group; with more, sums whose bytes fall into one of so many
/// cells are one, which never exceeds the budget. Errors: invalid_argument (a group without options); out_of_budget
/// (names the fewest bytes there can be, or the least divergence within the bytes).
constexpr std::size_t kMostStates = 8192;
Expected<std::vector<std::size_t>> choose_mixture(std::span<const std::vector<MixtureOption>> groups,
                                                  const MixtureLimits& limits, std::size_t most_states = kMostStates);

}  // namespace millrace::measure
