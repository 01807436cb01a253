#include "model/tower.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "model/tensor_rows.h"
#include "model/tower_layers.h"

namespace millrace::model {

namespace {

constexpr std::uint8_t kByRow = 1, kByCol = 2;

/// Of the first or the last half of a head, by one axis.
exec::Rope half_rope(const TowerSpec& spec, std::uint8_t axis, bool last) {
  constexpr double kTheta = 100;
  exec::Rope rope;
  rope.rotary = spec.head_dim / 2;
  rope.neox = true;
  rope.last = last;
  for (std::int64_t i = 0; i < rope.rotary / 2; ++i) {
    const double turn = static_cast<double>(2 * i) / static_cast<double>(rope.rotary);
    rope.inv_freq.push_back(static_cast<float>(std::pow(kTheta, -turn)));
    rope.axes.push_back(axis);
  }
  return rope;
}

constexpr double kTheta = 10000;

/// Pairs go by columns and rows in turn, two by one base.
exec::Rope rope_in_turn(const TowerSpec& spec) {
  exec::Rope rope;
  rope.rotary = spec.head_dim;
  for (std::int64_t i = 0; i < rope.rotary / 2; ++i) {
    const std::int64_t pair = i / 2;
    const double turn = 4 * static_cast<double>(pair) / static_cast<double>(rope.rotary);
    rope.inv_freq.push_back(static_cast<float>(std::pow(kTheta, -turn)));
    rope.axes.push_back(i % 2 == 0 ? kByCol : kByRow);
  }
  return rope;
}

exec::Rope whole_rope(const TowerSpec& spec) {
  exec::Rope rope;
  rope.rotary = spec.head_dim;
  rope.neox = spec.rope == TowerRope::halves;
  const std::int64_t half = spec.head_dim / 2, quarter = half / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const bool by_row = i < quarter;
    const std::int64_t own = by_row ? i : i - quarter;  // of the angles of this axis
    const double turn = spec.rope == TowerRope::halves ? static_cast<double>(2 * own) / static_cast<double>(half)
                                                       : static_cast<double>(2 * (2 * own + (by_row ? 0 : 1))) /
                                                             static_cast<double>(spec.head_dim);
    rope.inv_freq.push_back(static_cast<float>(std::pow(kTheta, -turn)));
    rope.axes.push_back(by_row ? kByRow : kByCol);
  }
  return rope;
}

}  // namespace

std::vector<exec::Rope> tower_ropes(const TowerSpec& spec) {
  switch (spec.rope) {
    case TowerRope::none:
      return {};
    case TowerRope::halves:
    case TowerRope::alternating:
      return {whole_rope(spec)};
    case TowerRope::in_turn:
      return {rope_in_turn(spec)};
    case TowerRope::by_half_heads:
      return {half_rope(spec, kByCol, false), half_rope(spec, kByRow, true)};
  }
  return {};
}

std::int64_t Tower::table_numbers(std::int64_t patches) const {
  const std::int64_t with_class = has_class ? 3 : 0;  // its place, its embedding and the filters' bias
  return dim * (table_side * table_side + with_class + std::min(2 * table_lines, patches + 1));
}

Expected<Tower> load_tower(const modelfile::Model& mmproj, std::uint64_t tile_bytes) {
  MR_ASSIGN_OR_RETURN(const TowerSpec spec, read_tower_spec(mmproj));
  return TowerBuilder(mmproj, spec).build(tile_bytes);
}

namespace {

/// Where patches of a pass lie in their picture, counted in patches.
class Places {
 public:
  Places(const Tower& tower, const vision::Patches& patches)
      : spec_(tower.spec),
        grid_{patches.rows / tower.spec.merge, patches.cols / tower.spec.merge},
        order_(tower_order(tower, patches)) {}

  /// The index of patch i of the pass among the picture's.
  std::int64_t index(std::int64_t i) const {
    const std::int64_t each = spec_.merge * spec_.merge;
    return order_[static_cast<std::size_t>(i / each)] * each + i % each;
  }
  vision::Place operator()(std::int64_t i) const { return vision::patch_place(spec_, grid_, index(i)); }

 private:
  const vision::Spec& spec_;
  const vision::Grid grid_;
  const std::vector<std::int64_t> order_;
};

/// A learned place along one side, and what of it a patch takes.
struct Tap {
  std::int64_t place = 0;
  float weight = 0;
};
using Taps = std::vector<Tap>;

/// From corner to corner: the two places around patch `i` of `count`.
Taps corner_taps(std::int64_t i, std::int64_t count, std::int64_t side) {
  const double at = count == 1 ? 0 : static_cast<double>(i * (side - 1)) / static_cast<double>(count - 1);
  const auto first = std::min(static_cast<std::int64_t>(at), side - 1);
  const auto part = static_cast<float>(at - static_cast<double>(first));
  return {{first, 1 - part}, {std::min(first + 1, side - 1), part}};
}

/// All places that the patch reaches, which are more than two where it is larger than they are.
Taps centre_taps(std::int64_t i, std::int64_t count, std::int64_t side) {
  const double scale = static_cast<double>(side) / static_cast<double>(count), reach = std::max(scale, 1.0);
  const double centre = (static_cast<double>(i) + 0.5) * scale - 0.5;
  Taps taps;
  double sum = 0;
  for (std::int64_t place = 0; place < side; ++place) {
    const double weight = 1 - std::abs(static_cast<double>(place) - centre) / reach;
    if (weight <= 0) continue;
    taps.push_back({place, static_cast<float>(weight)});
    sum += weight;
  }
  for (Tap& tap : taps) tap.weight = static_cast<float>(static_cast<double>(tap.weight) / sum);
  return taps;
}

/// Keys' cubic convolution (1981).
Taps bicubic_taps(std::int64_t i, std::int64_t count, std::int64_t side) {
  constexpr double kA = -0.75;
  const double at = (static_cast<double>(i) + 0.5) * static_cast<double>(side) / static_cast<double>(count) - 0.5;
  const double first = std::floor(at);
  Taps taps;
  for (std::int64_t tap = -1; tap <= 2; ++tap) {
    const double x = std::abs(at - first - static_cast<double>(tap));
    const double weight =
        x <= 1 ? ((kA + 2) * x - (kA + 3)) * x * x + 1 : ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA;
    taps.push_back(
        {std::clamp<std::int64_t>(static_cast<std::int64_t>(first) + tap, 0, side - 1), static_cast<float>(weight)});
  }
  return taps;
}

/// Of each of `count` patches along a side. As many as there are places have their own.
std::vector<Taps> taps_along(std::int64_t count, std::int64_t side, Between between) {
  std::vector<Taps> taps;
  for (std::int64_t i = 0; i < count; ++i) {
    if (count == side)
      taps.push_back({{i, 1}});
    else if (between == Between::corners)
      taps.push_back(corner_taps(i, count, side));
    else
      taps.push_back(between == Between::centres ? centre_taps(i, count, side) : bicubic_taps(i, count, side));
  }
  return taps;
}

/// work(begin, end) over all of [0, rows).
void for_rows(ThreadPool* pool, std::int64_t rows, FunctionRef<void(std::int64_t begin, std::int64_t end)> work) {
  constexpr std::int64_t kGrain = 64;
  if (pool == nullptr) return work(0, rows);
  pool->parallel_for(rows, kGrain, [&](std::int64_t begin, std::int64_t end, int /*thread*/) { work(begin, end); });
}

/// The embedding of each patch's place, from the learned ones around it. `first`: the row of the table that is the
/// first place's.
void add_places(const Tower& tower, const vision::Patches& patches, const Places& places,
                const std::vector<float>& table, std::int64_t first, ThreadPool* pool, std::vector<float>& input) {
  const std::int64_t side = tower.table_side, dim = tower.dim, stride = tower.patch_cols + dim;
  const std::vector<Taps> rows = taps_along(patches.rows, side, tower.between),
                          cols = taps_along(patches.cols, side, tower.between);
  const auto add = [&](std::int64_t i) {
    const vision::Place place = places(i);
    float* const out = input.data() + i * stride + tower.patch_cols;
    for (const Tap& row : rows[static_cast<std::size_t>(place.row)]) {
      for (const Tap& col : cols[static_cast<std::size_t>(place.col)]) {
        const float weight = row.weight * col.weight;
        if (weight == 0) continue;
        const float* const learned = table.data() + (first + row.place * side + col.place) * dim;
        for (std::int64_t d = 0; d < dim; ++d) out[d] += weight * learned[d];
      }
    }
  };
  for_rows(pool, patches.rows * patches.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) add(i);
  });
}

Expected<std::vector<float>> read_tower_vector(const modelfile::Model& mmproj, std::string_view name,
                                               std::int64_t size) {
  MR_ASSIGN_OR_RETURN(const modelfile::TensorInfo* const tensor, mmproj.require(name));
  if (tensor->cols() != size || tensor->rows() != 1)
    return error(Code::corrupt, "{} is {} x {}; it takes {} numbers", name, tensor->cols(), tensor->rows(), size);
  return read_rows(mmproj, *tensor, 0, 1);
}

/// The class has an embedding in place of pixels, and its place is the table's first. No filter's bias is added behind
/// patches alone, so that it is part of their places.
Status add_class(const modelfile::Model& mmproj, const Tower& tower, const std::vector<float>& table,
                 std::int64_t patches, std::vector<float>& input) {
  const std::int64_t dim = tower.dim, stride = tower.patch_cols + dim;
  MR_ASSIGN_OR_RETURN(const std::vector<float> own, read_tower_vector(mmproj, "v.class_embd", dim));
  float* const out = input.data() + patches * stride + tower.patch_cols;
  for (std::int64_t d = 0; d < dim; ++d) out[d] = own[static_cast<std::size_t>(d)] + table[static_cast<std::size_t>(d)];
  if (mmproj.find("v.patch_embd.bias") == nullptr) return {};
  MR_ASSIGN_OR_RETURN(const std::vector<float> bias, read_tower_vector(mmproj, "v.patch_embd.bias", dim));
  for (std::int64_t i = 0; i < patches; ++i)
    for (std::int64_t d = 0; d < dim; ++d)
      input[static_cast<std::size_t>(i * stride + tower.patch_cols + d)] += bias[static_cast<std::size_t>(d)];
  return {};
}

/// The embeddings of each patch's column and row.
Status add_lines(const modelfile::Model& mmproj, const modelfile::TensorInfo& learned, const Tower& tower,
                 const vision::Patches& patches, const Places& places, std::vector<float>& input) {
  const std::int64_t dim = tower.dim, stride = tower.patch_cols + dim;
  MR_ASSIGN_OR_RETURN(const std::vector<float> cols, read_rows(mmproj, learned, 0, patches.cols));
  MR_ASSIGN_OR_RETURN(const std::vector<float> rows, read_rows(mmproj, learned, tower.table_lines, patches.rows));
  for (std::int64_t i = 0; i < patches.rows * patches.cols; ++i) {
    const vision::Place place = places(i);
    float* const out = input.data() + i * stride + tower.patch_cols;
    for (std::int64_t d = 0; d < dim; ++d)
      out[d] =
          cols[static_cast<std::size_t>(place.col * dim + d)] + rows[static_cast<std::size_t>(place.row * dim + d)];
  }
  return {};
}

}  // namespace

Expected<std::vector<float>> tower_input(const modelfile::Model& mmproj, const Tower& tower,
                                         const vision::Patches& patches, ThreadPool* pool) {
  const std::int64_t rows = patches.rows * patches.cols, merge = tower.spec.merge;
  const bool whole = patches.rows > 0 && patches.cols > 0 && patches.rows % merge == 0 && patches.cols % merge == 0;
  if (!whole || patches.dim != tower.patch_cols || std::ssize(patches.pixels) != rows * patches.dim)
    return error(Code::invalid_argument, "{} x {} patches of {} numbers are none of this tower's", patches.rows,
                 patches.cols, patches.dim);
  const bool fixed = tower.table_side > 0 && tower.spec.resize == vision::Resize::square;
  if (fixed && (patches.rows != tower.table_side || patches.cols != tower.table_side))
    return error(Code::invalid_argument, "{} x {} patches where this tower has places for {} x {}", patches.rows,
                 patches.cols, tower.table_side, tower.table_side);
  if (tower.table_lines > 0 && std::max(patches.rows, patches.cols) > tower.table_lines)
    return error(Code::invalid_argument, "{} x {} patches where this tower has places for {} rows and columns",
                 patches.rows, patches.cols, tower.table_lines);
  const Places places(tower, patches);
  const std::int64_t stride = tower.given_cols();
  std::vector<float> input(static_cast<std::size_t>(tower.rows(patches) * stride));
  for_rows(pool, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      std::copy_n(patches.pixels.data() + places.index(i) * patches.dim, patches.dim, input.data() + i * stride);
  });
  if (!tower.has_places()) return input;
  MR_ASSIGN_OR_RETURN(const modelfile::TensorInfo* const learned, mmproj.require("v.position_embd.weight"));
  if (tower.table_lines > 0) {
    MR_RETURN_IF_ERROR(add_lines(mmproj, *learned, tower, patches, places, input));
    return input;
  }
  MR_ASSIGN_OR_RETURN(const std::vector<float> table, read_rows(mmproj, *learned, 0, learned->rows()));
  add_places(tower, patches, places, table, tower.has_class ? 1 : 0, pool, input);
  if (tower.has_class) MR_RETURN_IF_ERROR(add_class(mmproj, tower, table, rows, input));
  return input;
}

std::vector<std::int64_t> tower_order(const Tower& tower, const vision::Patches& patches) {
  const std::int64_t rows = patches.rows / tower.spec.merge, cols = patches.cols / tower.spec.merge,
                     side = tower.window > 0 ? tower.window : std::max(rows, cols);
  std::vector<std::int64_t> order;
  for (std::int64_t top = 0; top < rows; top += side)
    for (std::int64_t left = 0; left < cols; left += side)
      for (std::int64_t row = top; row < std::min(rows, top + side); ++row)
        for (std::int64_t col = left; col < std::min(cols, left + side); ++col) order.push_back(row * cols + col);
  return order;
}

std::vector<kv::PictureRow> tower_places(const Tower& tower, const vision::Patches& patches) {
  const Places places(tower, patches);
  const auto window_of = [&](vision::Place place) {
    const std::int64_t side = tower.window * tower.spec.merge;
    return side == 0 ? std::pair<std::int64_t, std::int64_t>() : std::pair(place.row / side, place.col / side);
  };
  const auto count = static_cast<std::size_t>(patches.rows * patches.cols);
  std::vector<kv::PictureRow> rows(static_cast<std::size_t>(tower.rows(patches)));
  // Patches and the class see each other; the rows that make the class's token whole are alone.
  for (std::size_t i = rows.size(); i-- > count;)
    rows[i].ahead = i > count ? static_cast<std::int32_t>(rows.size() - 1 - i) : 0;
  for (std::size_t i = count; i-- > 0;) {
    const auto at = static_cast<std::int64_t>(i);
    const vision::Place place = places(at);
    rows[i].shift = {0, static_cast<std::int32_t>(place.row - at), static_cast<std::int32_t>(place.col - at)};
    const bool goes_on = i + 1 < count ? window_of(place) == window_of(places(at + 1)) : tower.has_class;
    rows[i].ahead = goes_on ? rows[i + 1].ahead + 1 : 0;
  }
  return rows;
}

}  // namespace millrace::model
