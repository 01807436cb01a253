// How many rows of a prompt a GPU works at once where its layers stream. A pass takes the whole prompt, so that each
// layer comes once for it, and works it part by part, which leaves more room for weights. Parts are chosen so that the
// tiles of the products fill the GPU: one whose last wave has a few tiles takes as long as a full one. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/program.h"
#include "residency/unit.h"

namespace millrace::engine {

/// A product of a layer.
struct ProductShape {
  std::int64_t rows = 0, cols = 0;  // of the weight
};
/// Those of a program's dense steps.
std::vector<ProductShape> dense_products(const exec::Program& program, const residency::UnitTable& units);

/// What a part of so many rows takes: tiles' waves, weighted by their columns.
std::int64_t part_time(std::span<const ProductShape> products, std::int64_t rows, int multiprocessors);

/// The fewest rows with which a usual prompt takes hardly longer than with any of the others that are to be had: 512 if
/// those need more than `most_extra_bytes` beside its. bytes: what a pass of such parts needs.
std::int64_t choose_part(std::span<const ProductShape> products, int multiprocessors, std::uint64_t most_extra_bytes,
                         const std::function<std::uint64_t(std::int64_t)>& bytes);

}  // namespace millrace::engine
