// What smaller and smaller budgets cost, as a drawing. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace::cli {

/// The same work under one budget.
struct SqueezeStep {
  std::uint64_t budget_bytes = 0;
  double tokens_per_second = 0;  // decoding
  double moved_bytes = 0;        // a pass: from the disk, and to a GPU
  double misses = 0;             // experts a pass that were not there
};

/// The budget behind this one: two steps are a half.
std::uint64_t next_budget(std::uint64_t bytes);

/// An SVG of tokens a second, and of what was missed (experts a pass, or where nothing is mixed bytes a pass), over the
/// budget, which falls from left to right by halves. It follows the reader's light or dark colours.
/// REQUIRES: two steps or more, budgets descending.
std::string draw_squeeze(std::string_view title, std::span<const SqueezeStep> steps);

}  // namespace millrace::cli
