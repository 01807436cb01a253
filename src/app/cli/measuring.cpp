#include "app/cli/measuring.h"

#include <fmt/core.h>

#include "app/cli/progress.h"
#include "modelfile/gguf.h"

namespace millrace::cli {

void add_text_flags(CLI::App& command, TextFlags& flags) {
  command.add_option("-f,--file", flags.file, "The text to measure with")->option_text("TEXT")->required();
  command
      .add_option("--stride", flags.stride,
                  "Begin a window of --ctx tokens (default: 512) every so many tokens, and score the last so many of "
                  "each (default: adjacent windows, of which the second half is scored)")
      ->check(at_least(0));
  command.add_option("--chunks", flags.chunks, "Windows at most (default: the whole text)")->check(at_least(0));
}

Expected<measure::TextWindows> cut_text(const std::string& model_path, const TextFlags& flags, std::int64_t context) {
  MR_ASSIGN_OR_RETURN(const std::string text, measure::read_text(flags.file));
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(model_path));
  MR_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::from_model(file));
  measure::WindowOptions options;
  if (context > 0) options.context = context;
  options.stride = flags.stride;
  options.most = flags.chunks;
  auto windows = measure::TextWindows::cut(*tokenizer, text, options);
  if (!windows.ok()) return windows.status().with_context(flags.file);
  return windows;
}

Status run_text(engine::Engine& engine, const measure::TextWindows& windows, measure::Quality& quality,
                const Program& program, const std::string& label) {
  Progress bar(label, Unit::tokens, program.quiet);
  measure::RunOptions options;
  options.cancel = &interrupted();
  options.progress = [&](std::int64_t done, std::int64_t total) {
    const measure::Perplexity so_far = quality.perplexity();
    const std::string note =
        so_far.tokens > 0 ? fmt::format("perplexity {:.4f} +- {:.4f}", so_far.value, so_far.error) : "";
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), note);
  };
  return measure::run_windows(
      engine, windows,
      [&](std::int64_t row, text::TokenId target, std::span<const float> logits) {
        return quality.add(row, target, logits);
      },
      options);
}

void print_perplexity(const measure::Perplexity& found, const measure::TextWindows& windows) {
  fmt::print("perplexity {:.4f} +- {:.4f} over {} tokens of {} windows of {}\n", found.value, found.error, found.tokens,
             windows.size(), windows.options().context);
}

}  // namespace millrace::cli
