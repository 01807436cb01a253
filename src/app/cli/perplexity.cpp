// `millrace perplexity`: how well a model tells a text, and how far its distributions are from a reference run's.
#include <fmt/core.h>

#include <memory>
#include <optional>

#include "app/cli/command.h"
#include "app/cli/measuring.h"
#include "app/cli/progress.h"
#include "app/measure/logits_file.h"
#include "app/measure/quality.h"

namespace millrace::cli {
namespace {

struct PerplexityFlags {
  ModelFlags model;
  TextFlags text;
  std::string save, against;
};

void print_divergence(const measure::Divergence& found, const std::string& reference) {
  fmt::print("reference: {}, perplexity {:.4f} +- {:.4f}\n", reference, found.reference.value, found.reference.error);
  fmt::print("KL divergence a token: mean {:.4g} +- {:.2g}, median {:.3g}\n", found.mean, found.error, found.median);
  fmt::print("  90 % {:.3g}, 99 % {:.3g}, 99.9 % {:.3g}, largest {:.3g}; mean with each at most the 99 % {:.4g}\n",
             found.p90, found.p99, found.p999, found.largest, found.capped);
  fmt::print("same likeliest token: {:.3f} %\n", 100 * found.same_top);
  fmt::print("probability of the right token: changed by {:.3f} % (RMS), {:+.3f} % on average\n",
             100 * found.rms_change, 100 * found.mean_change);
}

int execute(PerplexityFlags& flags, const Program& program) {
  auto options = engine_options(flags.model, program);
  if (!options.ok()) return fail(options.status());
  if (Status status = check_model_outputs({flags.save}, *options, {flags.text.file, flags.against}); !status.ok())
    return fail(status);
  auto windows = cut_text(options->model.path, flags.text, flags.model.context);
  if (!windows.ok()) return fail(windows.status());
  std::optional<measure::LogitsReader> reference;
  if (!flags.against.empty()) {
    auto opened = measure::LogitsReader::open(flags.against);
    if (!opened.ok()) return fail(opened.status());
    reference.emplace(std::move(*opened));
  }
  if (Status status = measure::prepare_engine(*windows, *options); !status.ok()) return fail(status);
  install_interrupt_handler();
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  engine::Engine& engine = **created;
  const auto& hp = engine.model().hyperparameters();
  const measure::LogitsShape shape = measure::shape_of(*windows, engine.tokenizer(), hp.vocab, hp.name);
  std::optional<measure::LogitsWriter> save;
  if (reference)
    if (Status status = reference->check_like(shape); !status.ok()) return fail(status);
  if (!flags.save.empty()) {
    auto made = measure::LogitsWriter::create(flags.save, shape);
    if (!made.ok()) return fail(made.status());
    save.emplace(std::move(*made));
  }
  measure::Quality quality(windows->rows(), flags.model.threads, reference ? &*reference : nullptr,
                           save ? &*save : nullptr);
  if (Status status = run_text(engine, *windows, quality, program); !status.ok()) return fail(status);
  if (save)
    if (Status status = save->finish(); !status.ok()) return fail(status);
  print_perplexity(quality.perplexity(), *windows);
  if (reference) print_divergence(quality.divergence(), reference->shape().model);
  if (save) fmt::print("{}: log-probabilities of {} tokens\n", flags.save, windows->rows());
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<PerplexityFlags>();
  auto* command =
      app.add_subcommand("perplexity", "Measure how well a model predicts a text, and how far it is from a reference");
  add_model_flags(*command, flags->model);
  add_text_flags(*command, flags->text);
  command->add_option("--save-logits", flags->save,
                      "Write this run's log-probabilities (2 bytes a token of the vocabulary) for --against");
  command->add_option("--against", flags->against,
                      "Compare with a saved run: KL divergence, likeliest tokens, probabilities");
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
