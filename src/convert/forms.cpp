#include "convert/forms.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "modelfile/escape.h"

namespace millrace::convert {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t product(std::span<const std::int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

Shape reversed(std::span<const std::int64_t> shape) { return {shape.rbegin(), shape.rend()}; }

Status wrong_shape(const Stored& part, std::string_view wanted) {
  std::string shape;
  for (const std::int64_t dim : part.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(dim);
  return error(Code::corrupt, "tensor '{}' is {}, but {}", modelfile::escape(part.source.name, 120),
               shape.empty() ? "one number" : shape, wanted);
}

/// Builds one target.
class Builder {
 public:
  Builder(const NameRule& rule, const Geometry& geometry, std::span<const Stored> parts, std::vector<Source>& sources)
      : rule_(rule),
        g_(geometry),
        parts_(parts),
        sources_(sources),
        first_(static_cast<std::int32_t>(sources.size())) {}

  Expected<Target> run() {
    for (const Stored& part : parts_) sources_.push_back(part.source);
    MR_RETURN_IF_ERROR(form());
    return std::move(target_);
  }

 private:
  const Stored& part() const { return parts_.front(); }
  const Shape& shape() const { return part().shape; }
  std::int64_t rows() const { return part().source.rows; }
  std::int64_t cols() const { return part().source.cols; }
  /// The product of all dimensions except the last two, or the last of a bias.
  bool is_bias() const { return rule_.ours.ends_with(".bias"); }

  /// The gathered matrix, and the shape in PyTorch's order.
  void is(const Shape& shape, std::int64_t rows, std::int64_t cols) {
    target_.shape = reversed(shape.empty() ? Shape{1} : shape);
    target_.rows = rows;
    target_.cols = cols;
  }
  void take(std::int64_t first, std::int64_t rows, std::int64_t step = 1) {
    target_.runs.push_back({first_, first, step, rows});
  }
  Status whole(const Shape& shape, Change change = Change::none) {
    is(shape, rows(), cols());
    take(0, rows());
    target_.change = change;
    return {};
  }
  /// If rows are reordered, a vector counts as a matrix of one column.
  Status as_numbers() {
    Source& source = sources_[static_cast<std::size_t>(first_)];
    if (source.packing != Packing::plain) return wrong_shape(part(), "numbers of this kind have scales of their own");
    source.rows *= source.cols;
    source.cols = 1;
    return {};
  }
  /// One row per channel, wherever the shape has its 1.
  Status as_channels() {
    MR_RETURN_IF_ERROR(as_numbers());
    Source& source = sources_[static_cast<std::size_t>(first_)];
    if (shape().empty() || source.rows % shape().front() != 0) return wrong_shape(part(), "its rows must be channels");
    source.cols = source.rows / shape().front();
    source.rows = shape().front();
    return {};
  }
  Status rows_of_vector() { return shape().size() == 1 ? as_numbers() : Status(); }
  const Source& view() const { return sources_[static_cast<std::size_t>(first_)]; }

  Status form();
  Status heads(std::int64_t count);
  Status joined();
  Status pieces();
  Status indexed(bool key);
  Status half(std::int64_t offset_halves, std::int64_t step);
  Status turned(std::int64_t first, std::int64_t step, std::int64_t parts);
  Status transposed();
  Status positions(std::int64_t before);
  Status padded();
  Status grouped();
  Status latent(bool keys);
  Status mixed(bool gate);
  Status tiled(std::int64_t before, std::int64_t rows_each, const Shape& shape, Change change = Change::none);

  const NameRule& rule_;
  const Geometry& g_;
  std::span<const Stored> parts_;
  std::vector<Source>& sources_;
  const std::int32_t first_;
  Target target_;
};

/// Interleaves each head's channels i and i + n / 2, or de-interleaves its first g_.halves channels.
Status Builder::heads(std::int64_t count) {
  if (!g_.neighbours && g_.halves == 0) return whole(shape());
  MR_RETURN_IF_ERROR(rows_of_vector());
  const std::int64_t all = view().rows;
  if (count <= 0 || all % (2 * count) != 0)
    return wrong_shape(part(), fmt::format("its rows are those of {} heads", count));
  is(shape(), all, view().cols);
  const std::int64_t dim = all / count, half = dim / 2;
  if (g_.halves > dim) return wrong_shape(part(), fmt::format("heads of {} channels are expected", g_.halves));
  for (std::int64_t head = 0; head < count && g_.halves > 0; ++head) {
    for (const std::int64_t first : {0, 1}) take(head * dim + first, g_.halves / 2, 2);
    if (g_.halves < dim) take(head * dim + g_.halves, dim - g_.halves);
  }
  for (std::int64_t head = 0; head < count && g_.halves == 0; ++head)
    for (std::int64_t i = 0; i < half; ++i) take(head * dim + i, 2, half);
  return {};
}

Status Builder::joined() {
  if (static_cast<std::int64_t>(parts_.size()) != g_.experts)
    return error(Code::corrupt, "the checkpoint has '{}' for {} experts, but config.json has {}",
                 modelfile::escape(rule_.theirs), parts_.size(), g_.experts);
  Shape joined = shape();
  joined.insert(joined.begin(), g_.experts);
  is(joined, rows() * g_.experts, cols());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shape != shape()) return wrong_shape(parts_[i], "the first expert's has another shape");
    target_.runs.push_back({first_ + static_cast<std::int32_t>(i), 0, 1, rows()});
  }
  return {};
}

Status Builder::pieces() {
  std::int64_t all = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shape.size() != 2 || parts_[i].source.cols != cols())
      return wrong_shape(parts_[i], fmt::format("rows of {} are expected", cols()));
    target_.runs.push_back({first_ + static_cast<std::int32_t>(i), 0, 1, parts_[i].source.rows});
    all += parts_[i].source.rows;
  }
  is({all, cols()}, all, cols());
  return {};
}

Status Builder::indexed(bool key) {
  const std::int64_t queries = g_.index_heads * g_.index_dim;
  if (rows() != queries + g_.index_dim)
    return wrong_shape(
        part(), fmt::format("{} heads of {} rows and a key of as many are expected", g_.index_heads, g_.index_dim));
  const std::int64_t taken = key ? g_.index_dim : queries;
  is({taken, cols()}, taken, cols());
  take(key ? queries : 0, taken);
  return {};
}

/// One half of each matrix's rows (or of a bias's elements): a contiguous half, or every second row.
Status Builder::half(std::int64_t offset_halves, std::int64_t step) {
  const std::size_t axes = is_bias() ? 1 : 2;
  if (shape().size() < axes || shape()[shape().size() - axes] % 2 != 0)
    return wrong_shape(part(), "its rows must be gates and ups");
  if (is_bias()) MR_RETURN_IF_ERROR(as_numbers());
  Shape own = shape();
  const std::int64_t both = own[own.size() - axes], each = both / 2;
  own[own.size() - axes] = each;
  const std::int64_t matrices = product(std::span(own).first(own.size() - axes));
  is(own, matrices * each, view().cols);
  for (std::int64_t m = 0; m < matrices; ++m) take(m * both + offset_halves * (step == 1 ? each : 1), each, step);
  return {};
}

/// Part `index` of `parts` of each matrix's columns, every `step`-th, as rows.
Status Builder::turned(std::int64_t index, std::int64_t step, std::int64_t parts) {
  if (shape().size() != 3 || cols() % parts != 0 || part().source.packing != Packing::plain)
    return wrong_shape(part(), "its shape must be [experts, inputs, outputs]");
  const std::int64_t experts = shape()[0], inputs = shape()[1], outputs = cols() / parts;
  const std::int64_t first = step > 1 ? index : index * outputs;
  is({experts, outputs, inputs}, experts * outputs, inputs);
  for (std::int64_t e = 0; e < experts; ++e) target_.runs.push_back({first_, first, step, outputs, e * inputs});
  return {};
}

Status Builder::transposed() {
  if (shape().size() != 2 || part().source.packing != Packing::plain)
    return wrong_shape(part(), "floats of [inputs, outputs] are expected");
  is({shape()[1], shape()[0]}, shape()[1], shape()[0]);
  target_.runs.push_back({first_, 0, 1, shape()[1], 0});
  return {};
}

Status Builder::positions(std::int64_t before) {
  if (shape().size() != 2 || rows() <= before) return wrong_shape(part(), "a table of positions is expected");
  const std::int64_t taken = g_.context > 0 ? std::min(rows() - before, g_.context) : rows() - before;
  is({taken, cols()}, taken, cols());
  take(before, taken);
  return {};
}

Status Builder::padded() {
  const std::int64_t wanted = std::max(rows(), g_.vocab);  // if the file does not give the vocabulary, no row is padded
  if (shape().size() != 2) return wrong_shape(part(), "a table is expected");
  is({wanted, cols()}, wanted, cols());
  take(0, rows());
  for (std::int64_t row = rows(); row < wanted; ++row) take(0, 1);
  return {};
}

/// Rows per KV head: [q of its query heads | k | v].
Status Builder::grouped() {
  MR_RETURN_IF_ERROR(rows_of_vector());
  const std::int64_t kv_heads = g_.kv_heads > 0 ? g_.kv_heads : std::max<std::int64_t>(1, g_.heads);
  const std::int64_t queries = g_.heads / kv_heads;
  const std::int64_t all = view().rows, parts = kv_heads * (queries + 2);
  if (queries == 0 || all % parts != 0)
    return wrong_shape(part(), fmt::format("rows of {} queries, a key and a value are expected for each of {} KV heads",
                                           queries, kv_heads));
  is(shape(), all, view().cols);
  const std::int64_t dim = all / parts, each = (queries + 2) * dim;
  for (std::int64_t h = 0; h < kv_heads; ++h) take(h * each, queries * dim);
  for (std::int64_t h = 0; h < kv_heads; ++h) take(h * each + queries * dim, dim);
  for (std::int64_t h = 0; h < kv_heads; ++h) take(h * each + (queries + 1) * dim, dim);
  return {};
}

Status Builder::latent(bool keys) {
  const std::int64_t each = g_.nope + g_.value_dim;
  if (rows() != g_.heads * each || cols() != g_.rank)
    return wrong_shape(part(), fmt::format("{} heads of {} rows of {} are expected", g_.heads, each, g_.rank));
  if (keys) {
    is({g_.heads, g_.rank, g_.nope}, g_.heads * g_.rank, g_.nope);
    for (std::int64_t h = 0; h < g_.heads; ++h) target_.runs.push_back({first_, 0, 1, g_.rank, h * each});
  } else {
    is({g_.heads, g_.value_dim, g_.rank}, g_.heads * g_.value_dim, g_.rank);
    for (std::int64_t h = 0; h < g_.heads; ++h) take(h * each + g_.nope, g_.value_dim);
  }
  return {};
}

/// Rows per key head: [q | k | v of its value heads | z of its value heads].
Status Builder::mixed(bool gate) {
  const std::int64_t values = g_.value_heads / g_.key_heads * g_.state_values;
  const std::int64_t each = 2 * g_.state_keys + 2 * values;
  if (rows() != g_.key_heads * each)
    return wrong_shape(part(), fmt::format("{} heads of {} rows are expected", g_.key_heads, each));
  const std::int64_t taken = g_.key_heads * (gate ? values : 2 * g_.state_keys + values);
  is({taken, cols()}, taken, cols());
  const auto of_each = [&](std::int64_t offset, std::int64_t count) {
    for (std::int64_t h = 0; h < g_.key_heads; ++h) take(h * each + offset, count);
  };
  if (gate) {
    of_each(2 * g_.state_keys + values, values);
  } else {
    of_each(0, g_.state_keys);
    of_each(g_.state_keys, g_.state_keys);
    of_each(2 * g_.state_keys, values);
  }
  return {};
}

/// Rows of value heads, `rows_each` per head, after `before` other rows: transposes [key heads, value heads per key
/// head].
Status Builder::tiled(std::int64_t before, std::int64_t rows_each, const Shape& shape, Change change) {
  MR_RETURN_IF_ERROR(rows_of_vector());
  const std::int64_t each = g_.value_heads / g_.key_heads;
  if (view().rows != before + g_.value_heads * rows_each)
    return wrong_shape(part(), fmt::format("{} rows are expected", before + g_.value_heads * rows_each));
  is(shape, view().rows, view().cols);
  if (before > 0) take(0, before);
  for (std::int64_t j = 0; j < each; ++j)
    for (std::int64_t key = 0; key < g_.key_heads; ++key) take(before + (key * each + j) * rows_each, rows_each);
  target_.change = change;
  return {};
}

Status Builder::form() {
  const std::int64_t numbers = rows() * cols();
  const Shape taps = shape().size() == 3 ? Shape{shape()[0], shape()[1] * shape()[2]} : shape();
  const std::int64_t keys_and_queries = 2 * g_.key_heads * g_.state_keys;
  switch (rule_.form) {
    case Form::same:
    case Form::integers:
    case Form::key:
      return whole(shape());
    case Form::norm:
      return whole(shape(), g_.norm_shift == 0 ? Change::none : Change::plus_one);
    case Form::queries:
      return heads(g_.heads);
    case Form::keys:
      return heads(g_.kv_heads);
    case Form::experts:
      return joined();
    case Form::pieces:
      return pieces();
    case Form::padded:
      return padded();
    case Form::first_half:
      return half(0, 1);
    case Form::second_half:
      return half(1, 1);
    case Form::even:
      return half(0, 2);
    case Form::odd:
      return half(1, 2);
    case Form::turned:
      return turned(0, 1, 1);
    case Form::even_turned:
      return turned(0, 2, 2);
    case Form::odd_turned:
      return turned(1, 2, 2);
    case Form::first_half_turned:
      return turned(0, 1, 2);
    case Form::second_half_turned:
      return turned(1, 1, 2);
    case Form::vector:
      return whole({numbers});
    case Form::positions:
      return positions(0);
    case Form::behind_padding:
      return positions(2);
    case Form::taps:
      return whole(taps);
    case Form::column:
      return whole({numbers, 1});
    case Form::groups:
      if (numbers % g_.groups != 0) return wrong_shape(part(), fmt::format("it has {} groups", g_.groups));
      return whole({g_.groups, numbers / g_.groups});
    case Form::decay:
      return whole(shape(), Change::minus_exp);
    case Form::decay_column:
    case Form::decay_heads:
      return whole({numbers, 1}, Change::minus_exp);
    case Form::growth_column:
      return whole({numbers, 1}, Change::exp);
    case Form::latent_keys:
    case Form::latent_values:
      return latent(rule_.form == Form::latent_keys);
    case Form::transposed:
      return transposed();
    case Form::grouped_qkv:
      return grouped();
    case Form::mixed_qkv:
    case Form::mixed_z:
      return mixed(rule_.form == Form::mixed_z);
    case Form::tiled_taps:
      MR_RETURN_IF_ERROR(as_channels());
      return tiled(keys_and_queries, g_.state_values, taps);
    case Form::tiled_qkv:
      return tiled(keys_and_queries, g_.state_values, taps);
    case Form::tiled_heads:
      return tiled(0, g_.state_values, shape());
    case Form::tiled_each:
      return tiled(0, 1, shape());
    case Form::tiled_decay:
      return tiled(0, 1, shape(), Change::minus_exp);
    case Form::index_queries:
    case Form::index_key:
      return indexed(rule_.form == Form::index_key);
    case Form::tiled_columns:
      break;
  }
  if (cols() != g_.value_heads * g_.state_values)
    return wrong_shape(part(), fmt::format("{} columns are expected", g_.value_heads * g_.state_values));
  const std::int64_t each = g_.value_heads / g_.key_heads;
  for (std::int64_t j = 0; j < each; ++j)
    for (std::int64_t key = 0; key < g_.key_heads; ++key)
      target_.columns.push_back(static_cast<std::int32_t>(key * each + j));
  target_.columns_each = g_.state_values;
  return whole(shape());
}

}  // namespace

Geometry geometry_of(const Header& header, const Family& family) {
  Geometry g;
  g.neighbours = family.neighbours && header.flag("rope.scaling.finetuned", true);
  if (family.halves) g.halves = header.integer("rope.dimension_count", header.integer("attention.key_length"));
  g.norm_shift = family.norm_shift;
  g.heads = header.integer("attention.head_count");
  for (const std::int64_t heads : header.of_layers("attention.head_count_kv")) g.kv_heads = std::max(g.kv_heads, heads);
  g.experts = header.integer("expert_count", header.integer("altup.num_inputs", 1) - 1);
  g.vocab = header.integer("vocab_size");
  g.context = header.integer("context_length");
  g.rank = header.integer("attention.kv_lora_rank");
  g.value_dim = header.integer("attention.value_length_mla", header.integer("attention.value_length"));
  g.nope = header.integer("attention.key_length_mla", header.integer("attention.key_length")) -
           header.integer("rope.dimension_count");
  g.key_heads = std::max<std::int64_t>(1, header.integer("ssm.group_count", 1));
  g.groups = g.key_heads;
  g.value_heads = header.integer("ssm.time_step_rank");
  g.state_keys = header.integer("ssm.state_size");
  g.index_heads = header.integer("attention.indexer.head_count");
  g.index_dim = header.integer("attention.indexer.key_length");
  g.state_values = g.value_heads == 0 ? 0 : header.integer("ssm.inner_size") / g.value_heads;
  return g;
}

Expected<Target> build(const NameRule& rule, const Geometry& geometry, std::span<const Stored> parts,
                       std::vector<Source>& sources) {
  return Builder(rule, geometry, parts, sources).run();
}

Expected<Shape> their_shape(const NameRule& rule, const Geometry& g, std::span<const std::int64_t> ours) {
  Shape shape = reversed(ours);
  const std::int64_t numbers = product(ours);
  switch (rule.form) {
    case Form::experts:
      shape.erase(shape.begin());
      return shape;
    case Form::first_half:
    case Form::second_half:
    case Form::even:
    case Form::odd:
      shape[shape.size() - (rule.ours.ends_with(".bias") || shape.size() == 1 ? 1 : 2)] *= 2;
      return shape;
    case Form::vector:
      return Shape{1, numbers};
    case Form::taps:
    case Form::tiled_taps:
      shape.insert(shape.end() - 1, 1);
      return shape;
    case Form::column:
    case Form::groups:
    case Form::decay_column:
    case Form::growth_column:
      return Shape{numbers};
    case Form::decay_heads:
      return Shape{1, 1, numbers, 1};
    case Form::latent_keys:
    case Form::latent_values:
      return Shape{g.heads * (g.nope + g.value_dim), g.rank};
    case Form::mixed_qkv:
    case Form::mixed_z:
      return Shape{2 * (g.key_heads * g.state_keys + g.value_heads * g.state_values), shape.back()};
    case Form::index_queries:
    case Form::index_key:
      return Shape{(g.index_heads + 1) * g.index_dim, shape.back()};
    case Form::transposed:
      return Shape{shape[1], shape[0]};
    case Form::turned:
    case Form::even_turned:
    case Form::odd_turned:
      if (shape.size() != 3) return error(Code::corrupt, "{} is not the matrices of experts", rule.ours);
      return Shape{shape[0], shape[2], rule.form == Form::turned ? shape[1] : 2 * shape[1]};
    case Form::first_half_turned:
    case Form::second_half_turned:
    case Form::positions:
    case Form::behind_padding:
      return error(Code::unsupported, "{} is not written in the form of a checkpoint", rule.ours);
    default:
      return shape;
  }
}

std::vector<std::vector<Placed>> invert(const Target& target, std::int32_t first_source, std::size_t sources,
                                        std::int32_t ours) {
  std::vector<std::vector<Placed>> placed(sources);
  std::int64_t row = 0;
  for (const Run& run : target.runs) {
    auto& list = placed[static_cast<std::size_t>(run.source - first_source)];
    if (run.base >= 0) {
      const bool takes_turns = run.step > 1;
      list.push_back({run.base, {ours, 0, 1, target.cols, row}, takes_turns ? run.first : 0, run.step});
    } else if (run.step == 1) {
      list.push_back({run.first, {ours, row, 1, run.rows}});
    } else {
      for (std::int64_t i = 0; i < run.rows; ++i) list.push_back({run.first + i * run.step, {ours, row + i, 1, 1}});
    }
    row += run.rows;
  }
  return placed;
}

}  // namespace millrace::convert
