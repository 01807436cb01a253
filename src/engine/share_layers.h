// Which layers lie on which rank of a cluster. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/model.h"

namespace millrace::engine {

/// Stages, one for each of rooms.size() ranks, so that the largest stage is as small as it can be: among those ways in
/// which each rank's bytes fit into its room, where there is one, else among all. layer_bytes: of each layer's weights,
/// what stands before and behind the layers being with the first and the last. Errors: invalid_argument (fewer layers
/// than ranks).
Expected<std::vector<model::Stage>> share_layers(std::span<const std::uint64_t> layer_bytes,
                                                 std::span<const std::uint64_t> rooms);

/// "0-10,11-21": the layers of each rank, of all `layers` in order. Errors: invalid_argument.
Expected<std::vector<model::Stage>> parse_stages(std::string_view text, std::int64_t layers, int ranks);

}  // namespace millrace::engine
