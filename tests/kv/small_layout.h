// Layouts for tests.
#pragma once

#include <vector>

#include "kv/layout.h"

namespace millrace::kv {

/// Equal layers that see all keys: one group.
inline Layout equal_layers(std::int64_t layers, std::int64_t kv_heads, std::int64_t dim, DType dtype = DType::f16) {
  const std::vector<LayerKv> all(static_cast<std::size_t>(layers), {Keeps::attention, kv_heads, dim, dim});
  return Layout(all).with(dtype, kOnHost);
}

const Layout kSmall = equal_layers(2, 1, 8);

/// Two groups: layers 0, 1 and 3 see a window of keys, layer 2 sees all, with larger heads.
inline Layout with_window(std::int64_t window) {
  const LayerKv local{Keeps::attention, 1, 8, 8, window}, global{Keeps::attention, 2, 16, 16};
  const LayerKv all[] = {local, local, global, local};
  return Layout(all);
}

/// Two groups: layers 0, 1 and 3 keep a state, layer 2 keys and values.
inline Layout with_states() {
  LayerKv recurrent;
  recurrent.keeps = Keeps::state;
  recurrent.state = {3, 8, 2, 4, 32};
  const LayerKv attends{Keeps::attention, 1, 8, 8};
  const LayerKv all[] = {recurrent, recurrent, attends, recurrent};
  return Layout(all).with(DType::f16, kOnHost);
}

}  // namespace millrace::kv
