// `millrace imatrix`: how much each column of a model's matrices matters on a text.
#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "app/cli/command.h"
#include "app/cli/measuring.h"
#include "app/measure/input_sums.h"
#include "app/measure/quality.h"

namespace millrace::cli {
namespace {

struct ImatrixFlags {
  ModelFlags model;
  TextFlags text;
  std::string out;
};

int execute(ImatrixFlags& flags, const Program& program) {
  auto options = engine_options(flags.model, program);
  if (!options.ok()) return fail(options.status());
  auto windows = cut_text(options->model.path, flags.text, flags.model.context);
  if (!windows.ok()) return fail(windows.status());
  auto file = modelfile::Model::open(options->model.path, {.skip_vocabulary = true});
  if (!file.ok()) return fail(file.status());
  if (Status status = check_model_outputs({flags.out}, *options, {flags.text.file}, Writes::models); !status.ok())
    return fail(status);
  measure::InputSums sums(*file);
  options->watch.inputs = &sums;
  if (Status status = measure::prepare_engine(*windows, *options); !status.ok()) return fail(status);
  install_interrupt_handler();
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  sums.bind((*created)->model().units());
  measure::Quality quality(windows->rows(), flags.model.threads, nullptr, nullptr);
  if (Status status = run_text(**created, *windows, quality, program, "Gathering"); !status.ok()) return fail(status);
  const std::string text = std::filesystem::path(flags.text.file).filename().string();
  const measure::ImatrixSource source{text, windows->size(), windows->options().context};
  if (Status status = modelfile::write_imatrix(measure::importance_of(sums, source), flags.out); !status.ok())
    return fail(status);
  print_perplexity(quality.perplexity(), *windows);
  fmt::print("{}: importance of {} matrices\n", flags.out, sums.seen().size());
  return 0;
}

}  // namespace

void add_imatrix(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<ImatrixFlags>();
  auto* command = app.add_subcommand("imatrix", "Measure how much each column of a model's matrices matters on a text");
  add_model_flags(*command, flags->model);
  add_text_flags(*command, flags->text);
  command->add_option("-o,--output", flags->out, "The file to write, for quantizers (llama.cpp's form)")
      ->option_text("GGUF")
      ->required();
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
