// Rows of a table of n-grams: which ones a pass reads is known when it begins, so the store reads them while the layers
// before their use are computed.
#include <algorithm>
#include <array>

#include "exec/cpu_executor.h"
#include "exec/cpu_states.h"
#include "tensor/codec.h"

namespace millrace::exec {

/// Starts reading all rows that the pass needs.
void CpuExecutor::begin_ngrams() {
  if (failed() || rows_ == 0 || shape_.ngram_rows == 0) return;
  for (const Step& step : program_.steps) {
    if (step.kind != Step::Kind::embed_ngrams) continue;
    find_ngrams(step);
    if (failed()) return;
    const std::span distinct(at<std::int64_t>(layout_.ngram_distinct), static_cast<std::size_t>(distinct_ngrams_));
    if (Status begun = store_.begin_rows(step.weight, distinct, at<std::byte>(layout_.ngram_bytes)); !begun.ok())
      return fail(std::move(begun));
    reading_ngrams_ = true;
    return;
  }
}

void CpuExecutor::end_ngrams() {
  if (!reading_ngrams_) return;
  reading_ngrams_ = false;
  if (Status read = store_.finish_rows(); !read.ok()) fail(std::move(read));
}

/// The rows of each token, by it and the tokens before it; and what the layer keeps of these for the next pass.
void CpuExecutor::find_ngrams(const Step& step) {
  const Ngrams& ngrams = step.ngrams;
  const std::int64_t before = ngrams.order() - 1;
  const auto token_of = [&](std::int64_t r) {
    const bool picture =
        !batch_->pictures.empty() && batch_->pictures[static_cast<std::size_t>(r)].embedding != nullptr;
    if (picture) return ngrams.picture >= 0 ? ngrams.picture : ngrams.end;
    return batch_->rows[static_cast<std::size_t>(r)].token;
  };
  auto* const ids = at<std::int64_t>(layout_.ngram_ids);
  std::array<std::int32_t, kMostNgram> tokens{};  // the newest first
  for (const StateRun& run : state_runs(step.layer)) {
    if (failed()) return;
    const float* const kept = run.before(step.layer);
    for (std::int64_t i = 0; i < before; ++i)  // the oldest first
      tokens[static_cast<std::size_t>(before - 1 - i)] =
          kept == nullptr ? ngrams.end : static_cast<std::int32_t>(kept[i]);
    for (std::int64_t r = run.first_row; r < run.first_row + run.rows; ++r) {
      std::copy_backward(tokens.begin(), tokens.begin() + before, tokens.begin() + before + 1);
      tokens[0] = token_of(r);
      if (tokens[0] < 0) return fail(error(Code::invalid_argument, "token {} has no n-grams", tokens[0]));
      ngrams.rows_of(std::span(tokens).first(static_cast<std::size_t>(ngrams.order())), ids + r * ngrams.rows());
    }
    float* const after = run.after(step.layer);
    for (std::int64_t i = 0; i < before; ++i)
      after[i] = static_cast<float>(tokens[static_cast<std::size_t>(before - 1 - i)]);
  }
  auto* const distinct = at<std::int64_t>(layout_.ngram_distinct);
  std::int64_t* const end = std::copy_n(ids, rows_ * ngrams.rows(), distinct);
  std::sort(distinct, end);
  distinct_ngrams_ = std::unique(distinct, end) - distinct;
}

void CpuExecutor::embed_ngrams(const Step& step) {
  if (!ready()) return;
  reading_ngrams_ = false;
  if (Status read = store_.finish_rows(); !read.ok()) return fail(std::move(read));
  const residency::Part& table = part(step.weight);
  const std::int64_t each = step.ngrams.rows(), bytes = row_bytes(table.dtype, table.cols);
  if (each * table.cols != cols_of(step.out))
    return fail(error(Code::internal, "{} has rows of {} where {} of them are {}", table.name, table.cols, each,
                      cols_of(step.out)));
  const auto* const ids = at<std::int64_t>(layout_.ngram_ids);
  const auto* const distinct = at<std::int64_t>(layout_.ngram_distinct);
  for_rows(rows_, cols_of(step.out), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * each; i < end * each; ++i) {
      const std::int64_t place = std::lower_bound(distinct, distinct + distinct_ngrams_, ids[i]) - distinct;
      decode_row(table.dtype, at<std::byte>(layout_.ngram_bytes) + place * bytes, table.cols,
                 data(step.out) + i * table.cols);
    }
  });
}

}  // namespace millrace::exec
