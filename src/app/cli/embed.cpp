// `millrace embed`: texts in, their embeddings out, a JSON list of numbers a line.
#include "engine/embed.h"

#include <fmt/core.h>

#include <cstdio>
#include <map>
#include <memory>

#include "app/cli/command.h"
#include "app/cli/input.h"
#include "app/cli/progress.h"
#include "app/openai/embeddings.h"

namespace millrace::cli {
namespace {

using model::Pooling;

const std::map<std::string, Pooling> kPoolings = {
    {"model", Pooling::none}, {"mean", Pooling::mean}, {"first", Pooling::first}, {"last", Pooling::last}};

struct EmbedFlags {
  ModelFlags model;
  std::vector<std::string> texts;
  std::string pooling = "model";
  std::int64_t dimensions = 0;
  int sequences = 8;
  bool truncate = false;
};

/// Texts are read, embedded and printed in groups of so many, so that a file may be of any length.
constexpr std::size_t kGroup = 256;

/// The next texts: those of the command line, or the lines of standard input, of so many bytes each and together.
Expected<std::vector<std::string>> next_group(const EmbedFlags& flags, std::size_t done, std::uint64_t most) {
  std::vector<std::string> group;
  if (!flags.texts.empty()) {
    for (std::size_t i = done; i < flags.texts.size() && group.size() < kGroup; ++i) group.push_back(flags.texts[i]);
    return group;
  }
  std::string line;
  for (std::uint64_t bytes = 0; group.size() < kGroup && bytes < most; bytes += line.size()) {
    MR_ASSIGN_OR_RETURN(const bool came, read_input_line(line, most));
    if (!came) break;
    group.push_back(line);
  }
  return group;
}

Status embed_group(engine::Service& service, const EmbedFlags& flags, const std::vector<std::string>& texts,
                   std::size_t done) {
  std::vector<std::vector<text::TokenId>> inputs;
  for (const std::string& text : texts) {
    Expected<std::vector<text::TokenId>> ids = engine::embedding_tokens(service.engine(), text, flags.truncate);
    if (!ids.ok()) return error(ids.status().code(), "text {}: {}", done + inputs.size() + 1, ids.status().message());
    inputs.push_back(std::move(*ids));
  }
  engine::EmbedOptions options;
  options.pooling = kPoolings.at(flags.pooling);
  options.dimensions = flags.dimensions;
  MR_ASSIGN_OR_RETURN(const engine::Embeddings made,
                      engine::embed(service, inputs, options, [] { return interrupted().load(); }));
  for (const std::vector<float>& vector : made.vectors) {
    std::string line;
    openai::append_list(line, vector);
    fmt::print("{}\n", line);
  }
  return {};
}

int execute(const EmbedFlags& flags, const Program& program) {
  auto options = engine_options(flags.model, program);
  if (!options.ok()) return fail(options.status());
  options->demand.max_sequences = flags.sequences;
  install_interrupt_handler();
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  const auto service = engine::Service::start(std::move(*created));
  Progress progress("Embedding", Unit::items, program.quiet || flags.texts.empty());
  for (std::size_t done = 0;;) {
    const auto texts = next_group(flags, done, most_text_bytes(options->memory.ram_bytes));
    if (!texts.ok()) return fail(texts.status());
    if (texts->empty()) return 0;
    if (const Status status = embed_group(*service, flags, *texts, done); !status.ok())
      return status.code() == Code::cancelled ? kExitInterrupted : fail(status);
    done += texts->size();
    progress.update(done, flags.texts.size());
  }
}

}  // namespace

void add_embed(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<EmbedFlags>();
  auto* command = app.add_subcommand("embed", "Turn texts into embeddings of length 1, one JSON list per line");
  add_model_flags(*command, flags->model);
  command->add_option("text", flags->texts, "Texts (default: the lines of standard input)");
  command
      ->add_option("--pooling", flags->pooling,
                   "How token states become one vector; model: as the file says (else last, or mean for an encoder)")
      ->check(CLI::IsMember({"model", "mean", "first", "last"}))
      ->capture_default_str();
  command->add_option("--dimensions", flags->dimensions, "Keep this many numbers, and normalize to length 1")
      ->check(at_least(1));
  command->add_option("-s,--sequences", flags->sequences, "Texts computed at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--truncate", flags->truncate, "Cut texts that are longer than the context");
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
