#include "app/measure/input_sums.h"

#include <algorithm>

namespace millrace::measure {

InputSums::InputSums(const modelfile::Model& model) {
  const bool tied = model.find("output.weight") == nullptr;
  for (const modelfile::TensorInfo& tensor : model.tensors()) {
    const bool table = tensor.name == "token_embd.weight" && !tied;
    if (tensor.shape.size() < 2 || table || !tensor.name.ends_with(".weight")) continue;
    InputSum sum;
    sum.name = tensor.name;
    sum.cols = tensor.cols();
    for (std::size_t d = 2; d < tensor.shape.size(); ++d) sum.matrices *= tensor.shape[d];
    sum.squares.resize(static_cast<std::size_t>(sum.cols * sum.matrices));
    sum.counts.resize(static_cast<std::size_t>(sum.matrices));
    by_name_.emplace(sum.name, static_cast<std::int32_t>(sums_.size()));
    sums_.push_back(std::move(sum));
  }
}

void InputSums::bind(const residency::UnitTable& units) {
  places_.clear();
  for (const residency::Unit& unit : units.units()) {
    std::vector<Place>& of_unit = places_.emplace_back();
    for (const residency::Part& part : unit.parts) {
      Place place;
      const auto found = by_name_.find(part.name);
      if (found != by_name_.end()) {
        const InputSum& sum = sums_[static_cast<std::size_t>(found->second)];
        const std::int32_t matrix = std::max(0, unit.expert);
        if (sum.cols == part.cols && matrix < sum.matrices) place = {found->second, matrix};
      }
      of_unit.push_back(place);
    }
  }
}

void InputSums::saw(std::span<const residency::WeightRef> weights, const exec::SeenInput& input) {
  Place last;
  for (const residency::WeightRef weight : weights) {
    const Place place = places_[static_cast<std::size_t>(weight.unit)][static_cast<std::size_t>(weight.part)];
    // Neighbours may be rows of one tensor, as of Q, K and V in one.
    if (place.sum < 0 || (place.sum == last.sum && place.matrix == last.matrix)) continue;
    last = place;
    InputSum& sum = sums_[static_cast<std::size_t>(place.sum)];
    double* const squares = sum.squares.data() + place.matrix * sum.cols;
    for (std::int64_t r = 0; r < input.rows; ++r) {
      const float* const row = input.x + (input.index == nullptr ? r : input.index[r]) * input.cols;
      for (std::int64_t c = 0; c < input.cols; ++c) squares[c] += static_cast<double>(row[c]) * row[c];
    }
    sum.counts[static_cast<std::size_t>(place.matrix)] += input.rows;
  }
}

std::vector<const InputSum*> InputSums::seen() const {
  std::vector<const InputSum*> found;
  for (const InputSum& sum : sums_)
    if (std::any_of(sum.counts.begin(), sum.counts.end(), [](std::int64_t rows) { return rows > 0; }))
      found.push_back(&sum);
  return found;
}

modelfile::ImportanceMatrix importance_of(const InputSums& sums, const ImatrixSource& source) {
  modelfile::ImportanceMatrix matrix;
  matrix.datasets = {source.text};
  matrix.chunk_count = static_cast<std::uint32_t>(source.windows);
  matrix.chunk_size = static_cast<std::uint32_t>(source.context);
  for (const InputSum* sum : sums.seen()) {
    modelfile::ImportanceEntry& entry = matrix.entries[sum->name];
    entry.sums.assign(sum->squares.begin(), sum->squares.end());
    entry.counts.assign(sum->counts.begin(), sum->counts.end());
  }
  return matrix;
}

}  // namespace millrace::measure
