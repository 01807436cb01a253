// What verbs that measure a model on a text share: the text's flags, the run with its bar, the line that is printed.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "app/cli/command.h"
#include "app/measure/quality.h"
#include "app/measure/text_windows.h"

namespace millrace::cli {

struct TextFlags {
  std::string file;
  std::int64_t stride = 0, chunks = 0;
};
/// -f, --stride and --chunks; --ctx is the model's.
void add_text_flags(CLI::App& command, TextFlags& flags);

/// The text cut for the model in a file, by its tokenizer alone. context 0: windows of 512. Errors: those of both.
Expected<measure::TextWindows> cut_text(const std::string& model_path, const TextFlags& flags, std::int64_t context);

/// The whole text, with a bar and the figure so far; Ctrl-C ends it. Errors: as run_windows.
Status run_text(engine::Engine& engine, const measure::TextWindows& windows, measure::Quality& quality,
                const Program& program, const std::string& label = "Measuring");

void print_perplexity(const measure::Perplexity& found, const measure::TextWindows& windows);

}  // namespace millrace::cli
