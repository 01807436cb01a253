#include "kv/layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::kv {
namespace {

bool shares_group(const Group& group, const LayerKv& layer) {
  return group.keeps == layer.keeps && group.kv_heads == layer.kv_heads && group.k_dim == layer.k_dim &&
         group.v_dim == layer.v_dim && group.window == layer.window && group.state == layer.state &&
         group.index_dim == layer.index_dim && group.ratio == layer.ratio && group.aligned == layer.aligned;
}

std::string describe(const Group& group) {
  const std::string index =
      group.index_dim > 0 ? fmt::format(", index keys of {} {}", group.index_dim, info(group.index_dtype()).name) : "";
  const std::string window = group.window > 0 ? fmt::format(", window {}", group.window) : "";
  if (group.keeps == Keeps::inputs)
    return fmt::format("{} layers x inputs of {} f32{}", group.layers, group.v_dim, window);
  if (group.keeps == Keeps::latent) {
    const std::string tokens = group.ratio > 1 ? fmt::format(" for each {} tokens", group.ratio) : "";
    return fmt::format("{} layers x latents of {} {}{}{}{}", group.layers, group.v_dim, info(group.dtype).name, tokens,
                       window, index);
  }
  if (group.is_state())
    return fmt::format("{} layers x states of {} x {} + {} x {} x {} f32", group.layers, group.state.columns,
                       group.state.channels, group.state.heads, group.state.keys, group.state.values);
  const std::string dims =
      group.k_dim == group.v_dim ? fmt::format("{}", group.k_dim) : fmt::format("{}+{}", group.k_dim, group.v_dim);
  return fmt::format("{} layers x {} heads x {} {}{}{}{}", group.layers, group.kv_heads, dims, info(group.dtype).name,
                     group.rotated ? " rotated" : "", group.ends ? ", first and last block" : window, index);
}

}  // namespace

Layout::Layout(std::span<const LayerKv> layers) {
  for (const LayerKv& layer : layers) {
    MR_ASSERT(is_ratio(layer.ratio));
    if (layer.keeps == Keeps::nothing) {
      places_.push_back({Place::kNowhere, 0});
      continue;
    }
    if (layer.reads >= 0) {
      MR_ASSERT(layer.reads < this->layers());
      const Group& group = group_of(layer.reads);
      MR_ASSERT(shares_group(group, layer));
      places_.push_back(place(layer.reads));
      continue;
    }
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return shares_group(g, layer); });
    if (group == groups_.end())
      group = groups_.insert(
          groups_.end(), {layer.keeps, 0, layer.kv_heads, layer.k_dim, layer.v_dim, layer.window, DType::f16, kOnHost,
                          layer.state, false, false, layer.index_dim, layer.ratio, layer.aligned});
    places_.push_back({static_cast<std::size_t>(group - groups_.begin()), group->layers});
    ++group->layers;
  }
  plain_.assign(groups_.size(), Place::kNowhere);
}

Layout Layout::with(DType dtype, int device, Rotation rotation) const {
  Layout layout = *this;
  for (Group& group : layout.groups_) {
    group.dtype = group.is_state() || group.keeps == Keeps::inputs ? DType::f32 : dtype;
    group.device = device;
    group.rotated = group.keeps == Keeps::attention && kv_is_rotated(dtype) && rotation != Rotation::never;
  }
  for (std::size_t g = 0; kv_has_few_bits(dtype) && g < groups_.size(); ++g) {
    if (layout.groups_[g].keeps != Keeps::attention) continue;
    Group plain = layout.groups_[g];
    plain.dtype = device == kOnHost ? DType::f16 : DType::q8_0;
    plain.ends = true;
    plain.index_dim = 0;  // index keys lose no bits
    layout.plain_[g] = layout.groups_.size();
    layout.groups_.push_back(plain);
    layout.plain_.push_back(Place::kNowhere);
  }
  return layout;
}

std::int64_t Layout::offset(std::int64_t layer, Part part, std::int64_t kv_head) const {
  return offset_in(group_of(layer), place(layer).index, part, kv_head);
}

std::int64_t Layout::offset_in(const Group& group, std::int64_t index, Part part, std::int64_t kv_head) {
  const std::int64_t k = index * group.layer_bytes();
  const std::int64_t v = k + group.kv_heads * group.k_head_bytes();
  switch (part) {
    case Part::k:
      return k + kv_head * group.k_head_bytes();
    case Part::v:
      return v + kv_head * group.v_head_bytes();
    case Part::index:
      break;
  }
  return v + group.kv_heads * group.v_head_bytes();
}

std::int64_t Layout::bytes_per_token() const {
  std::int64_t bytes = 0;
  for (const Group& group : groups_)
    if (!group.is_state() && !group.ends) bytes += group.block_bytes() / kBlockTokens;
  return bytes;
}

bool Layout::has_states() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.is_state(); });
}

bool Layout::has_plain_groups() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.ends; });
}

std::string Layout::describe() const {
  std::string text;
  for (const Group& group : groups_) text += (text.empty() ? "" : "; ") + kv::describe(group);
  return text;
}

}  // namespace millrace::kv
