// Which layers lie on which rank of a cluster. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/model.h"

namespace millrace::engine {

/// Of RAM that a rank may take, the part for weights: KV, activations and the program need the rest. And the most,
/// where the layers would have no room otherwise.
constexpr std::uint64_t kPercentForWeights = 85, kMostPercentForWeights = 93;

/// What a layer's weights weigh. The head's are the last one's; an embedding that is read by rows counts nowhere.
struct LayerLoad {
  std::uint64_t bytes = 0;
  double read = 0;  // of them, by a token
};
std::vector<LayerLoad> layer_loads(const model::Model& model);

/// What a rank brings to a place that is planned for it.
struct RankSpeed {
  std::uint64_t room = 0;       // bytes of weights that stay in RAM
  double decode = 0, disk = 0;  // bytes of weights a second: of those in RAM, by whoever computes with them; of others
  std::uint64_t vram_room = 0;  // bytes of weights that stay in its GPU's memory; 0: it has none
  double vram = 0;              // bytes of those a second
};

/// What a token's way over ranks is to be short in: its whole time, or the longest stage, which bounds those of several
/// sequences.
enum class Shortest : std::uint8_t { sum, longest };

/// Stages, one for each of `ranks`, so that a token's way through them is short. A rank that would make it longer has
/// no layers (last == first), but the first has some. border: seconds from one rank to the next. Errors:
/// invalid_argument (a rate is missing).
Expected<std::vector<model::Stage>> place_layers(std::span<const LayerLoad> layers, std::span<const RankSpeed> ranks,
                                                 double border, Shortest shortest);

/// Bytes of tables that are read by rows: the first rank's, whose passes need a row of them for each token.
std::uint64_t table_bytes(const model::Model& model);

/// Stages, one for each of ram_bytes.size() ranks, so that the largest stage is as small as it can be: among those ways
/// in which each rank's weights take no more of its RAM than they should, and the table has room beside the first
/// rank's, where there is one; else among ever more ways, in the end all. layer_bytes: of each layer's weights, what
/// stands before and behind the layers being with the first and the last, but for the table. Errors: invalid_argument
/// (fewer layers than ranks).
Expected<std::vector<model::Stage>> share_layers(std::span<const std::uint64_t> layer_bytes,
                                                 std::span<const std::uint64_t> ram_bytes, std::uint64_t table_bytes);

/// "0-10,11-21": the layers of each rank, of all `layers` in order. Errors: invalid_argument.
Expected<std::vector<model::Stage>> parse_stages(std::string_view text, std::int64_t layers, int ranks);

}  // namespace millrace::engine
