#include "engine/prompt_parts.h"

#include <algorithm>
#include <array>

namespace millrace::engine {
namespace {

// The usual tile of kernels/cuda/matmul_prompt.cuh: of weights and of x.
constexpr std::int64_t kTileRows = 128, kTileWidth = 256;
constexpr std::int64_t kUsualPrompt = 2048;
constexpr std::array<std::int64_t, 5> kParts = {512, 768, 1024, 1536, 2048};

constexpr std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::vector<ProductShape> dense_products(const exec::Program& program, const residency::UnitTable& units) {
  using Kind = exec::Step::Kind;
  std::vector<ProductShape> products;
  const auto add_rows = [&](ProductShape& shape, const residency::WeightRef& weight) {
    const residency::Part& part = units.part(weight);
    shape = {shape.rows + part.rows, part.cols};
  };
  for (const exec::Step& step : program.steps) {
    ProductShape shape;
    if (step.kind == Kind::gated) {
      add_rows(shape, step.weight);
      add_rows(shape, step.weight2);
    }
    for (int i = 0; step.kind == Kind::matmul && i < step.product_count; ++i)
      add_rows(shape, step.products[static_cast<std::size_t>(i)].weight);
    if (shape.rows > 0) products.push_back(shape);
  }
  return products;
}

std::int64_t part_time(std::span<const ProductShape> products, std::int64_t rows, int multiprocessors) {
  std::int64_t time = 0;
  for (const ProductShape& product : products)
    time += div_up(div_up(product.rows, kTileRows) * div_up(rows, kTileWidth), multiprocessors) * product.cols;
  return time;
}

std::int64_t choose_part(std::span<const ProductShape> products, int multiprocessors, std::uint64_t most_extra_bytes,
                         const std::function<std::uint64_t(std::int64_t)>& bytes) {
  const auto prompt_time = [&](std::int64_t part) {
    const std::int64_t rest = kUsualPrompt % part;
    return kUsualPrompt / part * part_time(products, part, multiprocessors) +
           (rest > 0 ? part_time(products, rest, multiprocessors) : 0);
  };
  constexpr std::int64_t kSmallest = kParts.front(), kHardly = 10;  // a tenth longer
  if (multiprocessors <= 0) return kSmallest;
  std::array<std::int64_t, kParts.size()> had{};
  std::size_t count = 0;
  const std::uint64_t least = bytes(kSmallest);
  for (const std::int64_t part : kParts)
    if (part == kSmallest || bytes(part) <= least + most_extra_bytes) had[count++] = part;
  std::int64_t best = prompt_time(kSmallest);
  for (std::size_t i = 1; i < count; ++i) best = std::min(best, prompt_time(had[i]));
  for (std::size_t i = 0; i < count; ++i)
    if (prompt_time(had[i]) <= best + best / kHardly) return had[i];
  return kSmallest;
}

}  // namespace millrace::engine
