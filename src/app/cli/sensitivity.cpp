// `millrace sensitivity`: what quantizing each group of a model's matrices does to its distributions.
#include "app/measure/sensitivity.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "app/cli/command.h"
#include "app/cli/importance.h"
#include "app/cli/measuring.h"
#include "app/cli/progress.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

struct SensitivityFlags {
  ModelFlags model;
  TextFlags text;
  std::string out, imatrix;
  std::vector<std::string> types;
  int checks = 6;
};

Expected<std::vector<DType>> types_of(const std::vector<std::string>& names) {
  std::vector<DType> types;
  for (const std::string& name : names) {
    MR_ASSIGN_OR_RETURN(const DType dtype, dtype_from_name(name));
    types.push_back(dtype);
  }
  return types;
}

void print(const measure::Sensitivity& found) {
  fmt::print("KL divergence in nats a token, by group and type ({} runs over {} tokens)\n{:20}", found.runs,
             found.tokens, "group");
  for (const DType dtype : found.types) fmt::print(" {:>10}", info(dtype).name);
  fmt::print("\n");
  for (const measure::GroupSensitivity& group : found.groups) {
    fmt::print("{:20}", group.name);
    for (const double divergence : group.divergence) fmt::print(" {:10.3g}", divergence);
    fmt::print("\n");
  }
  fmt::print("{:20}", "all, measured");
  for (const double divergence : found.of_all) fmt::print(" {:10.3g}", divergence);
  fmt::print("\n");
  if (found.checks > 0)
    fmt::print("{} pairs that were run besides differ from this by a factor of {:.2f} on average\n", found.checks,
               found.check_factor);
}

int execute(SensitivityFlags& flags, const Program& program) {
  auto options = engine_options(flags.model, program);
  if (!options.ok()) return fail(options.status());
  auto types = types_of(flags.types);
  if (!types.ok()) return fail(types.status());
  auto windows = cut_text(options->model.path, flags.text, flags.model.context);
  if (!windows.ok()) return fail(windows.status());
  auto file = modelfile::Model::open(options->model.path, {.skip_vocabulary = true});
  if (!file.ok()) return fail(file.status());
  if (Status status = check_model_outputs({flags.out}, *options, {flags.text.file, flags.imatrix}); !status.ok())
    return fail(status);
  if (Status status = measure::prepare_engine(*windows, *options); !status.ok()) return fail(status);
  options->experts.pack = "off";  // packs are of the model as it is
  install_interrupt_handler();
  Progress bar("Measuring", Unit::tokens, program.quiet);
  measure::SensitivityOptions how;
  how.types = *types;
  how.checks = flags.checks;
  const auto importance = read_importance(flags.imatrix);
  if (!importance.ok()) return fail(importance.status());
  if (importance->has_value()) how.importance = &**importance;
  how.threads = flags.model.threads;
  how.scratch = flags.out;
  how.cancel = &interrupted();
  how.progress = [&](std::int64_t done, std::int64_t total, const std::string& what) {
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), what);
  };
  const auto make = [&](const std::string& overlay) {
    engine::EngineOptions changed = *options;
    changed.model.overlay = overlay;
    return engine::Engine::create(changed);
  };
  auto found = measure::measure_sensitivity(*file, *windows, make, how);
  bar.finish();
  if (!found.ok()) return fail(found.status());
  if (Status status = residency::write_small_file(flags.out, measure::sensitivity_to_json(*found)); !status.ok())
    return fail(status);
  print(*found);
  fmt::print("{}: for quantize --bytes SIZE --sensitivity\n", flags.out);
  return 0;
}

}  // namespace

void add_sensitivity(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<SensitivityFlags>();
  for (const DType dtype : measure::measured_types()) flags->types.emplace_back(info(dtype).name);
  auto* command = app.add_subcommand("sensitivity", "Measure what quantizing each group of a model's matrices changes");
  add_model_flags(*command, flags->model);
  add_text_flags(*command, flags->text);
  command->add_option("-o,--output", flags->out, "The file to write, for quantize --bytes")
      ->option_text("JSON")
      ->required();
  command->add_option("--types", flags->types, "Types to choose from, separated by commas")
      ->delimiter(',')
      ->option_text("TYPE,TYPE")
      ->capture_default_str();
  command
      ->add_option("--imatrix", flags->imatrix,
                   "The importance matrix that `quantize` will use, so that the figures match")
      ->option_text("FILE");
  command
      ->add_option("--checks", flags->checks, "Pairs of group and type to run, to measure how accurate the figures are")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
