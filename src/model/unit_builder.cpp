#include "model/unit_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "modelfile/escape.h"
#include "modelfile/mixtures.h"

namespace millrace::model {

using residency::Part;
using residency::UnitKind;
using residency::WeightRef;

namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("{}", fmt::join(shape, " x ")); }

/// Trailing dimensions of 1 say nothing: [256] and [256, 1] are the same vector.
std::vector<std::int64_t> significant(std::vector<std::int64_t> shape) {
  while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
  return shape;
}

/// 3 for "blk.3.attn_k.weight"; -1 for a tensor of no layer.
int layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return -1;
  int layer = -1;
  const char* const end = name.data() + name.size();
  const auto [rest, code] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  return code == std::errc() && rest != end && *rest == '.' ? layer : -1;
}

constexpr std::string_view kScale = ".scale";

}  // namespace

std::string layer_tensor(int layer, std::string_view name) { return fmt::format("blk.{}.{}", layer, name); }

void UnitBuilder::begin(UnitKind kind, int layer, int expert) {
  unit_ = residency::Unit{};
  unit_.kind = kind;
  unit_.layer = layer;
  unit_.expert = expert;
  unit_.aside = aside_;
}

void UnitBuilder::end() {
  if (status_.ok()) table_.add(std::move(unit_));
  unit_ = residency::Unit{};
}

void UnitBuilder::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void UnitBuilder::refuse(std::string_view name) {
  fail(
      error(Code::unsupported, "the file has {}, which this version cannot compute with", modelfile::escape(name, 80)));
}

void UnitBuilder::refuse_unused(int layer) {
  if (of_layer_.empty())
    for (const modelfile::TensorInfo& tensor : file_.tensors())
      if (const int of = layer_of(tensor.name); of >= 0) of_layer_[of].push_back(tensor.name);
  for (const std::string_view name : of_layer_[layer]) {
    if (used_.contains(name) || name == layer_tensor(layer, "attn_rot_embd.weight")) continue;  // angles: we make ours
    if (name.ends_with(".input_scale")) continue;  // for activations of 4 bits: ours have 8, and scales of their own
    refuse(name);
  }
  used_.clear();
}

void UnitBuilder::refuse_unused_of(std::initializer_list<std::string_view> ours,
                                   std::initializer_list<std::string_view> others) {
  for (const modelfile::TensorInfo& tensor : file_.tensors()) {
    const auto begins = [&](std::string_view prefix) { return tensor.name.starts_with(prefix); };
    if (std::any_of(ours.begin(), ours.end(), begins) && std::none_of(others.begin(), others.end(), begins) &&
        !used_.contains(tensor.name))
      refuse(tensor.name);
  }
}

residency::Unit UnitBuilder::block_apart(int layer) const {
  residency::Unit unit;
  unit.kind = UnitKind::trunk;
  unit.layer = layer;
  for (const modelfile::TensorInfo& tensor : file_.tensors())
    if (layer_of(tensor.name) == layer)
      unit.parts.push_back({tensor.name, tensor.dtype, tensor.rows(), tensor.cols(), tensor.file, tensor.offset});
  return unit;
}

/// Of that shape.
const modelfile::TensorInfo* UnitBuilder::shaped(const std::string& name, std::initializer_list<std::int64_t> shape) {
  if (!status_.ok()) return nullptr;
  const Expected<const modelfile::TensorInfo*> tensor = file_.require(name);
  if (!tensor.ok()) return fail(tensor.status()), nullptr;
  const modelfile::TensorInfo& found = **tensor;
  used_.insert(name);
  if (significant(found.shape) != significant(shape)) {
    fail(error(Code::corrupt, "{} is {} but the hyperparameters ask for {}", name, shape_text(found.shape),
               shape_text(shape)));
    return nullptr;
  }
  return &found;
}

/// And of a dtype that can be multiplied.
const modelfile::TensorInfo* UnitBuilder::checked(const std::string& name, std::initializer_list<std::int64_t> shape) {
  const modelfile::TensorInfo* const found = shaped(name, shape);
  if (found == nullptr || info(found->dtype).computable) return found;
  fail(error(Code::unsupported, "{} is of dtype {}, which cannot be multiplied", name, info(found->dtype).name));
  return nullptr;
}

WeightRef UnitBuilder::integers(const std::string& name, std::int64_t cols, std::int64_t rows) {
  const modelfile::TensorInfo* const tensor = shaped(name, {cols, rows});
  if (tensor == nullptr) return {};
  if (tensor->dtype != DType::i32) {
    fail(error(Code::unsupported, "{} is {}; this version wants it in I32", name, info(tensor->dtype).name));
    return {};
  }
  return add({name, tensor->dtype, rows, cols, tensor->file, tensor->offset});
}

WeightRef UnitBuilder::add(Part part) {
  part.file += first_file_;
  unit_.parts.push_back(std::move(part));
  return {static_cast<std::int32_t>(table_.units().size()), static_cast<std::int32_t>(unit_.parts.size() - 1)};
}

/// none() where the file has none.
WeightRef UnitBuilder::scale_for(const std::string& name) {
  const std::string scale = modelfile::scale_name(name);
  if (!has(scale)) return {};
  used_scales_.insert(scale);
  return vector(scale, 1);
}

WeightRef UnitBuilder::with_scale(const std::string& name, WeightRef weight) {
  if (weight.none()) return weight;
  if (const WeightRef scale = scale_for(name); !scale.none()) scales_.emplace_back(weight, scale);
  return weight;
}

/// Of tensors of no layer; refuse_unused() sees to the others.
void UnitBuilder::refuse_unused_scales() {
  for (const modelfile::TensorInfo& tensor : file_.tensors())
    if (layer_of(tensor.name) < 0 && std::string_view(tensor.name).ends_with(kScale) &&
        !used_scales_.contains(tensor.name))
      refuse(tensor.name);
}

WeightRef UnitBuilder::matrix(const std::string& name, std::int64_t cols, std::int64_t rows) {
  return with_scale(name, unscaled(name, cols, rows));
}

WeightRef UnitBuilder::unscaled(const std::string& name, std::int64_t cols, std::int64_t rows) {
  return some_rows(name, cols, rows, 0, rows);
}

WeightRef UnitBuilder::rows(const std::string& name, std::int64_t cols, std::int64_t all_rows, std::int64_t first,
                            std::int64_t rows) {
  return with_scale(name, some_rows(name, cols, all_rows, first, rows));
}

WeightRef UnitBuilder::some_rows(const std::string& name, std::int64_t cols, std::int64_t all_rows, std::int64_t first,
                                 std::int64_t rows) {
  const modelfile::TensorInfo* tensor = checked(name, {cols, all_rows});
  if (tensor == nullptr) return {};
  const auto skipped = static_cast<std::uint64_t>(first * row_bytes(tensor->dtype, cols));
  return add({name, tensor->dtype, rows, cols, tensor->file, tensor->offset + skipped});
}

WeightRef UnitBuilder::filters(const std::string& name, std::int64_t side, std::int64_t channels, std::int64_t rows) {
  const modelfile::TensorInfo* tensor = checked(name, {side, side, channels, rows});
  if (tensor == nullptr) return {};
  return add({name, tensor->dtype, rows, side * side * channels, tensor->file, tensor->offset});
}

WeightRef UnitBuilder::matrices(const std::string& name, std::int64_t cols, std::int64_t rows, std::int64_t count) {
  const modelfile::TensorInfo* tensor = checked(name, {cols, rows, count});
  if (tensor == nullptr) return {};
  return add({name, tensor->dtype, rows * count, cols, tensor->file, tensor->offset});
}

WeightRef UnitBuilder::rows_of_heads(const std::string& name, std::int64_t cols, std::int64_t heads, std::int64_t each,
                                     std::int64_t first, std::int64_t rows) {
  const WeightRef head = some_rows(name, cols, heads * each, first, rows);
  for (std::int64_t h = 1; h < heads; ++h) some_rows(name, cols, heads * each, h * each + first, rows);
  return head;
}

WeightRef UnitBuilder::vector(const std::string& name, std::int64_t size) { return elements(name, {size}, 0, size); }

WeightRef UnitBuilder::some_of_each(const std::string& name, std::int64_t size, std::int64_t count, std::int64_t first,
                                    std::int64_t some) {
  return elements(name, {size, count}, first, size * (count - 1) + some);
}

WeightRef UnitBuilder::taps(const std::string& name, std::int64_t count, std::int64_t channels) {
  const modelfile::TensorInfo* const found = file_.find(name);
  if (found != nullptr && found->shape.size() > 2) return elements(name, {count, 1, channels}, 0, count * channels);
  if (found == nullptr || (found->dtype != DType::f16 && found->dtype != DType::bf16))
    return vectors(name, count, channels);
  const modelfile::TensorInfo* const tensor = checked(name, {count, channels});
  if (tensor == nullptr) return {};
  return add({name, tensor->dtype, 1, count * channels, tensor->file, tensor->offset});
}

WeightRef UnitBuilder::elements(const std::string& name, std::initializer_list<std::int64_t> shape, std::int64_t first,
                                std::int64_t size) {
  const modelfile::TensorInfo* tensor = checked(name, shape);
  if (tensor == nullptr) return {};
  if (tensor->dtype != DType::f32) {
    fail(error(Code::unsupported, "{} is {}; this version wants norms and biases in F32", name,
               info(tensor->dtype).name));
    return {};
  }
  return add({name, tensor->dtype, 1, size, tensor->file, tensor->offset + static_cast<std::uint64_t>(first) * 4});
}

WeightRef UnitBuilder::first_row(const std::string& name, std::int64_t cols) {
  const modelfile::TensorInfo* const table = file_.find(name);
  return some_rows(name, cols, table == nullptr ? 1 : table->rows(), 0, 1);
}

WeightRef UnitBuilder::optional_elements(const std::string& name, std::int64_t all, std::int64_t first,
                                         std::int64_t size) {
  return has(name) ? some_elements(name, all, first, size) : WeightRef{};
}

WeightRef UnitBuilder::optional_vector(const std::string& name, std::int64_t size) {
  return has(name) ? vector(name, size) : WeightRef{};
}

WeightRef UnitBuilder::slice(const std::string& name, std::int64_t cols, std::int64_t rows, std::int64_t count,
                             std::int64_t index, std::int64_t stacked_rows, RowRange of_rows) {
  const modelfile::TensorInfo* tensor = checked(name, {cols, stacked_rows, count * rows / stacked_rows});
  if (tensor == nullptr) return {};
  const auto skipped = static_cast<std::uint64_t>((index * rows + of_rows.first) * row_bytes(tensor->dtype, cols));
  return add({name, tensor->dtype, of_rows.count, cols, tensor->file, tensor->offset + skipped});
}

WeightRef UnitBuilder::embedding(std::int64_t model_dim, std::int64_t vocab, bool as_head) {
  begin(UnitKind::embedding);
  unit_.by_rows = !as_head;
  const WeightRef table = unscaled("token_embd.weight", model_dim, vocab);
  end();
  return table;
}

WeightRef UnitBuilder::table(const std::string& name, std::int64_t cols, std::int64_t rows,
                             std::int64_t rows_of_token) {
  begin(UnitKind::embedding);
  unit_.by_rows = true;
  unit_.rows_of_token = rows_of_token;
  const WeightRef table = unscaled(name, cols, rows);
  end();
  return table;
}

OutputWeights UnitBuilder::output(const char* norm, std::int64_t model_dim, std::int64_t vocab, WeightRef embedding) {
  if (!ties_head()) return output_rows(norm, model_dim, vocab, 0, vocab);
  if (norm == nullptr) {
    refuse_unused_scales();
    return {{}, {}, embedding, {}};
  }
  begin(UnitKind::trunk);
  const WeightRef last_norm = vector(norm, model_dim), bias = optional_vector("output_norm.bias", model_dim),
                  head_bias = optional_elements("output.bias", vocab, 0, vocab);
  end();
  refuse_unused_scales();
  return {last_norm, bias, embedding, head_bias};
}

OutputWeights UnitBuilder::last_norm(const char* norm, std::int64_t model_dim) {
  OutputWeights output;
  if (norm != nullptr) {
    begin(UnitKind::trunk);
    output.norm = vector(norm, model_dim);
    output.norm_bias = optional_vector("output_norm.bias", model_dim);
    end();
  }
  refuse_unused_scales();
  return output;
}

OutputWeights UnitBuilder::output_rows(const char* norm, std::int64_t model_dim, std::int64_t vocab, std::int64_t first,
                                       std::int64_t rows) {
  const bool tied = ties_head();
  begin(UnitKind::head);
  const WeightRef last_norm = norm == nullptr ? WeightRef{} : vector(norm, model_dim),
                  bias = optional_vector("output_norm.bias", model_dim);
  // Before the head, because it is the head's input that is multiplied.
  const WeightRef scale = tied ? WeightRef{} : scale_for("output.weight");
  const WeightRef head = some_rows(tied ? "token_embd.weight" : "output.weight", model_dim, vocab, first, rows);
  if (!scale.none()) scales_.emplace_back(head, scale);
  const WeightRef head_bias = optional_elements("output.bias", vocab, first, rows);
  end();
  refuse_unused_scales();
  return {last_norm, bias, head, head_bias};
}

std::int32_t UnitBuilder::experts(int layer, std::int64_t count, std::int64_t model_dim, std::int64_t expert_ff,
                                  bool gated, RowRange of_ff, RowRange of_dim) {
  const auto first = static_cast<std::int32_t>(table_.units().size());
  const std::string gate = layer_tensor(layer, "ffn_gate_exps.weight"), up = layer_tensor(layer, "ffn_up_exps.weight");
  const std::string fused = layer_tensor(layer, "ffn_gate_up_exps.weight");
  for (std::int64_t expert = 0; expert < count && status_.ok(); ++expert) {
    begin(UnitKind::expert, layer, static_cast<int>(expert));
    if (!gated) {
      slice(up, model_dim, expert_ff, count, expert, expert_ff, of_ff);
    } else if (has(fused)) {
      slice(fused, model_dim, expert_ff, 2 * count, 2 * expert, 2 * expert_ff, of_ff);
      slice(fused, model_dim, expert_ff, 2 * count, 2 * expert + 1, 2 * expert_ff, of_ff);
    } else {
      slice(gate, model_dim, expert_ff, count, expert, expert_ff, of_ff);
      slice(up, model_dim, expert_ff, count, expert, expert_ff, of_ff);
    }
    slice(layer_tensor(layer, "ffn_down_exps.weight"), expert_ff, model_dim, count, expert, model_dim, of_dim);
    end();
  }
  return first;
}

}  // namespace millrace::model
