// `millrace quantize`: writes a model anew with its weights in another type.
#include "modelfile/quantize.h"

#include <fmt/core.h>

#include <memory>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "base/bytes.h"
#include "kv/model_identity.h"

namespace millrace::cli {
namespace {

struct QuantizeFlags {
  std::string in, out, type;
  int threads = 0;
  bool substitute = false;
};

/// The identity that a model's substitutes name. Errors: those of opening the model.
Expected<std::string> identity_of(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, modelfile::Model::open(path, {.skip_vocabulary = true}));
  return kv::model_identity(model);
}

int execute(const QuantizeFlags& flags, const Program& program) {
  auto type = modelfile::quantize_type_from_name(flags.type);
  if (!type.ok()) return fail(type.status());
  install_interrupt_handler();
  Progress progress("Quantizing", Unit::bytes, program.quiet);
  modelfile::QuantizeOptions options;
  options.type = *type;
  options.threads = flags.threads;
  if (flags.substitute) {
    auto identity = identity_of(flags.in);
    if (!identity.ok()) return fail(identity.status());
    options.substitute_of = std::move(*identity);
  }
  options.cancel = &interrupted();
  options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  if (const Status status = modelfile::quantize(flags.in, flags.out, options); !status.ok()) {
    progress.finish();
    return fail(status);
  }
  progress.finish();
  auto before = modelfile::Model::open(flags.in, {.skip_vocabulary = true});
  auto after = modelfile::Model::open(flags.out, {.skip_vocabulary = true});
  if (before.ok() && after.ok()) {
    fmt::print("{}: {} of {}, {} before\n", flags.out, format_bytes(after->tensor_bytes()),
               flags.substitute ? "substitutes" : "weights", format_bytes(before->tensor_bytes()));
  }
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<QuantizeFlags>();
  auto* command = app.add_subcommand("quantize", "Write a model anew with its weights in another type");
  std::string names;
  for (const auto& known : modelfile::quantize_types()) names += (names.empty() ? "" : ", ") + std::string(known.name);
  command->add_option("in", flags->in, "The model to read")->required();
  command->add_option("out", flags->out, "The file to write")->required();
  command->add_option("type", flags->type, names)->required();
  command->add_flag("--substitute", flags->substitute,
                    "Write the layers' matrices alone, for --draft substitute with the model that is read (default "
                    "there: MODEL.substitute)");
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
