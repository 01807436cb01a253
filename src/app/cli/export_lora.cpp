// `millrace export-lora`: a model with adapters in its weights.
#include <fmt/core.h>

#include <memory>

#include "app/cli/adapter_files.h"
#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/store/adapters.h"
#include "base/bytes.h"
#include "model/merge_adapters.h"

namespace millrace::cli {
namespace {

struct Flags {
  std::string model, out, dtype = "keep";
  std::vector<std::string> adapters;
  int threads = 0;
};

int execute(const Flags& flags, const Program& program) {
  const auto resolved = store::Store().resolve(flags.model);
  if (!resolved.ok()) return fail(resolved.status());
  model::MergeOptions options;
  options.threads = flags.threads;
  options.cancel = &interrupted();
  if (flags.dtype != "keep") {
    const auto dtype = dtype_from_name(flags.dtype);
    if (!dtype.ok()) return fail(dtype.status().with_context("--dtype"));
    options.dtype = *dtype;
  }
  for (const engine::AdapterOptions& own :
       store::adapters_of(store::Store(), resolved->manifest.name, resolved->manifest.files))
    options.adapters.push_back({own.path, own.scale});
  const auto adapters = read_adapters(flags.adapters, resolved->path);
  if (!adapters.ok()) return fail(adapters.status());
  if (options.adapters.empty() && adapters->empty())
    return fail(error(Code::invalid_argument, "{} has no adapter of its own; name one with --lora", flags.model));
  for (const engine::AdapterOptions& adapter : *adapters) options.adapters.push_back({adapter.path, adapter.scale});
  if (const Status status = check_outputs({flags.out}, {resolved->path}, Writes::models); !status.ok())
    return fail(status);
  Progress progress("Merging", Unit::bytes, program.quiet);
  options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  const auto report = model::merge_adapters(resolved->path, flags.out, options);
  progress.finish();
  if (!report.ok()) return fail(report.status());
  fmt::print("{}: {} of {} tensors changed, {}\n", flags.out, report->changed, report->tensors,
             format_bytes(report->bytes));
  return 0;
}

}  // namespace

void add_export_lora(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  auto* command = app.add_subcommand("export-lora", "Merge LoRA adapters into a model: a new GGUF file");
  command->add_option("model", flags->model, "A model by name, or a GGUF file")->required();
  add_adapter_option(*command, flags->adapters);
  command->add_option("-o,--output", flags->out, "The GGUF file to write")->required();
  command->add_option("--dtype", flags->dtype, "Type of the matrices that change: keep (their own), f16, q8_0, ...")
      ->capture_default_str();
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
