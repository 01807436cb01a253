// A request's embedding: its prompt's final states, of the first token, the last, or the mean of all, brought to length
// 1; for ranking as they are. Rows are added one after the other in the prompt's order and in double, so that
// neither how passes cut the prompt nor who shared them changes a bit. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "exec/executor.h"
#include "model/model.h"

namespace millrace::engine {

class Pooler {
 public:
  explicit Pooler(model::Pooling pooling) : pooling_(pooling) {}

  /// Whether positions [first, end) of a prompt of so many tokens hold a state that it needs.
  bool wants(std::int64_t first, std::int64_t end, std::int64_t prompt) const;
  /// Reads what it needs of positions [first, end), which are the last pass's rows from `batch_row` on; `dim` values
  /// each. Errors: as Ops::read_hidden.
  Status add(const exec::Executor& executor, std::int64_t batch_row, std::int64_t dim, std::int64_t first,
             std::int64_t end, std::int64_t prompt);
  /// Forgets what was added: the prompt begins again.
  void restart() {
    sum_.clear();
    rows_ = 0;
  }
  /// The embedding, [dim]. Errors: corrupt (it is not finite).
  Status finish(std::vector<float>& out) const;

 private:
  model::Pooling pooling_;
  std::vector<double> sum_;  // [dim]; its length falls away in the end, so that a mean is a sum
  std::int64_t rows_ = 0;    // that were added
};

/// Scales to length 1; zeros stay.
void normalise(std::vector<float>& vector);

}  // namespace millrace::engine
