// Which dtypes lie on a grid, and in which blocks: one list for all who decode, multiply, encode or make them.
// Thread-safety: pure functions.
#pragma once

#include "tensor/blocks.h"
#include "tensor/dtype.h"

namespace millrace {

/// Calls use.template operator()<Block>() where the dtype's blocks have a Grid (tensor/grids.h). False: they have none.
template <typename Use>
static inline __attribute__((always_inline)) bool with_grid_block(DType dtype, Use&& use) {
  switch (dtype) {
    case DType::iq2_xxs:
      return use.template operator()<BlockIQ2_XXS>(), true;
    case DType::iq2_xs:
      return use.template operator()<BlockIQ2_XS>(), true;
    case DType::iq2_s:
      return use.template operator()<BlockIQ2_S>(), true;
    case DType::iq3_xxs:
      return use.template operator()<BlockIQ3_XXS>(), true;
    case DType::iq3_s:
      return use.template operator()<BlockIQ3_S>(), true;
    case DType::iq1_s:
      return use.template operator()<BlockIQ1_S>(), true;
    case DType::iq1_m:
      return use.template operator()<BlockIQ1_M>(), true;
    case DType::tq1_0:
      return use.template operator()<BlockTQ1_0>(), true;
    case DType::tq2_0:
      return use.template operator()<BlockTQ2_0>(), true;
    default:
      return false;
  }
}

}  // namespace millrace
