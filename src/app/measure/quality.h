// How well a model tells a text: perplexity, and how far its distributions are from a reference run's.
//
// Windows of the text go through an engine as requests, as many in a pass as there is room for, so that weights that
// stream are read once for all of them. Only rows that count ask for logits. What is found of a row is kept by the
// row's place and summed up in the text's order, so that a figure is the same in every bit whatever the memory plan,
// the batch and the threads were.
// Thread-safety: one thread, which is the engine's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "app/measure/distribution.h"
#include "app/measure/logits_file.h"
#include "app/measure/text_windows.h"
#include "engine/engine.h"

namespace millrace::measure {

/// Rows of a pass, where nobody says how many: several windows.
constexpr std::int64_t kPassTokens = 4096;
/// What an engine needs for these windows, into options: context, batch, sequences, rows of logits; what is set already
/// stays. Errors: invalid_argument (a context shorter than a window).
Status prepare_engine(const TextWindows& windows, engine::EngineOptions& options);

/// Logits of the `row`-th token that counts: row = window * counted() + i. An error ends the run.
using OnRow = std::function<Status(std::int64_t row, text::TokenId target, std::span<const float> logits)>;
struct RunOptions {
  const std::atomic<bool>* cancel = nullptr;                                   // polled; the run ends with `cancelled`
  std::function<void(std::int64_t tokens, std::int64_t total)> progress = {};  // of prompts
};
/// All windows through the engine. Errors: those of passes and of on_row; cancelled.
Status run_windows(engine::Engine& engine, const TextWindows& windows, const OnRow& on_row, const RunOptions& options);

struct Perplexity {
  double value = 0, error = 0;  // exp of the mean of -log p over tokens that count, and its standard error
  std::int64_t tokens = 0;
};

/// Of KL(reference || run), in nats a token, and of the tokens themselves.
struct Divergence {
  double mean = 0, error = 0;  // of the mean: its standard error
  double median = 0, p90 = 0, p99 = 0, p999 = 0, largest = 0;
  double capped = 0;       // the mean where none counts for more than p99, which single tokens do not decide
  double same_top = 0;     // share of rows whose likeliest token is the reference's
  double rms_change = 0;   // of the probability of the token that came
  double mean_change = 0;  // of it: below 0, the run gives the text less
  Perplexity reference;
};

/// The figures of one run. Memory: up to 17 bytes a token that counts, taken by the constructor, and a row or two; for
/// quantiles 4 bytes a token more at the end.
class Quality {
 public:
  /// `threads`: for rows of large vocabularies; 0: all usable. `reference` and `save` may be null, and outlive it.
  Quality(std::int64_t rows, int threads, LogitsReader* reference, LogitsWriter* save);
  ~Quality();

  /// Errors: those of reader and writer.
  Status add(std::int64_t row, text::TokenId target, std::span<const float> logits);

  /// Of the rows that came so far.
  Perplexity perplexity() const;
  /// REQUIRES: a reference, and rows.
  Divergence divergence() const;

 private:
  std::unique_ptr<ThreadPool> pool_;
  int threads_;
  Distributions distributions_{nullptr};
  LogitsReader* reference_;
  LogitsWriter* save_;
  std::vector<bool> seen_, same_top_;
  std::vector<double> losses_;           // [rows]
  std::vector<float> divergences_;       // [rows], where there is a reference
  std::vector<float> reference_losses_;  // likewise
  std::vector<float> log_p_;             // a row of the reference's
};

}  // namespace millrace::measure
