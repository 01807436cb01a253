// A picture as a tower reads it: resized by the model's rule, cut into tiles and those into patches, normalized.
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
  // [rows * cols, dim]. The merge x merge patches of a token are neighbours (patch_place()); with merge 1, row by row.
  std::vector<float> pixels;
  GrantLease memory;  // covers pixels
};

/// Of each of the picture's views (Cut). `grant` (may be null) is charged for what the work takes; the patches stay
/// charged as long as they live. Errors: cut()'s, out_of_budget, cancelled.
Expected<std::vector<Patches>> preprocess(const Spec& spec, const image::Image& picture, WorkGrant* grant);

}  // namespace millrace::vision
