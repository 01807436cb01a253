#include "engine/pooler.h"

#include <algorithm>
#include <cmath>

namespace millrace::engine {
namespace {

constexpr std::int64_t kPieceRows = 8;  // read at once

}  // namespace

bool Pooler::wants(std::int64_t first, std::int64_t end, std::int64_t prompt) const {
  switch (pooling_) {
    case model::Pooling::mean:
    case model::Pooling::rank_mean:
      return end > first;
    case model::Pooling::first:
    case model::Pooling::rank_first:
      return first == 0 && end > 0;
    case model::Pooling::last:
    case model::Pooling::rank:
      return end == prompt && end > first;
    default:
      return false;
  }
}

Status Pooler::add(const exec::Executor& executor, std::int64_t batch_row, std::int64_t dim, std::int64_t first,
                   std::int64_t end, std::int64_t prompt) {
  if (!wants(first, end, prompt)) return {};
  std::int64_t from = first, to = end;
  if (pooling_ == model::Pooling::first || pooling_ == model::Pooling::rank_first) to = 1;
  if (pooling_ == model::Pooling::last || pooling_ == model::Pooling::rank) from = end - 1;
  const auto width = static_cast<std::size_t>(dim);
  sum_.resize(width, 0.0);
  std::vector<float> piece(width * static_cast<std::size_t>(std::min(kPieceRows, to - from)));
  rows_ += to - from;
  for (; from < to; from += kPieceRows) {
    const std::int64_t rows = std::min(kPieceRows, to - from);
    MR_RETURN_IF_ERROR(executor.read_hidden(batch_row + from - first, rows, piece.data()));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < width; ++i)
        sum_[i] += static_cast<double>(piece[static_cast<std::size_t>(row) * width + i]);
  }
  return {};
}

Status Pooler::finish(std::vector<float>& out) const {
  double squares = 0;
  for (const double value : sum_) squares += value * value;
  if (!std::isfinite(squares))
    return error(Code::corrupt, "the model's results are not finite; its weights are damaged: fetch the file again");
  double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  if (pooling_ == model::Pooling::rank || pooling_ == model::Pooling::rank_first) scale = 1;
  if (pooling_ == model::Pooling::rank_mean) scale = 1 / static_cast<double>(std::max<std::int64_t>(1, rows_));
  out.resize(sum_.size());
  std::transform(sum_.begin(), sum_.end(), out.begin(),
                 [&](double value) { return static_cast<float>(value * scale); });
  return {};
}

void normalise(std::vector<float>& vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * static_cast<double>(value);
  if (squares <= 0) return;
  const double scale = 1 / std::sqrt(squares);
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) * scale);
}

}  // namespace millrace::engine
