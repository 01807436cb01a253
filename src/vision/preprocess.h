// Prepares a picture for a tower: resizes it by the model's rule, splits it into tiles and patches, and normalizes it.
// Thread-safety: functions, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/work_grant.h"
#include "image/image.h"
#include "vision/spec.h"

namespace millrace::vision {

struct Patches {
  std::int64_t rows = 0, cols = 0;  // patches down and across the picture
  std::int64_t dim = 0;             // 3 * patch * patch: channel, y, x
  // [rows * cols, dim]. The merge x merge patches of a token are consecutive (patch_place()); with merge 1, patches are
  // row by row.
  std::vector<float> pixels;
  GrantLease memory;  // covers pixels
};

/// The patches of each view of the picture (Cut). `grant` (may be null) is charged for the memory used; the patches
/// stay charged while they live. Errors: those of cut(), out_of_budget, cancelled.
Expected<std::vector<Patches>> preprocess(const Spec& spec, const image::Image& picture, WorkGrant* grant);

}  // namespace millrace::vision
