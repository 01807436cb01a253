// `millrace pack`: a mixture's experts once more, each in one piece.
#include <fmt/core.h>

#include <memory>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "base/bytes.h"
#include "kv/model_identity.h"
#include "model/model.h"
#include "residency/expert_pack.h"

namespace millrace::cli {
namespace {

struct PackFlags {
  std::string model, out;
  std::vector<std::string> stripes;
};

Status write(const PackFlags& flags, const Program& program, std::string& out, std::uint64_t& bytes) {
  MR_ASSIGN_OR_RETURN(const store::Resolved resolved, store::Store().resolve(flags.model));
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(resolved.path, {.skip_vocabulary = true}));
  MR_ASSIGN_OR_RETURN(const auto model, model::load(file, {}));
  MR_ASSIGN_OR_RETURN(const std::string identity, kv::model_identity(file));
  out = flags.out.empty() ? file.paths().front() + ".pack" : flags.out;
  Progress progress("Packing", Unit::bytes, program.quiet);
  residency::PackWriting writing;
  writing.folders = flags.stripes;
  writing.progress = [&](std::uint64_t done, std::uint64_t total) {
    bytes = total;
    progress.update(done, total);
    return !interrupted();
  };
  Status written = residency::write_pack(out, model->units(), file.paths(), identity, writing);
  progress.finish();
  return written;
}

int execute(const PackFlags& flags, const Program& program) {
  install_interrupt_handler();
  std::string out;
  std::uint64_t bytes = 0;
  if (const Status status = write(flags, program, out, bytes); !status.ok()) return fail(status);
  fmt::print("{}: {} of experts{}\n", out, format_bytes(bytes),
             flags.stripes.empty() ? "" : fmt::format(", in {} files", flags.stripes.size() + 1));
  return 0;
}

}  // namespace

void add_pack(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<PackFlags>();
  auto* command = app.add_subcommand(
      "pack",
      "Write a mixture's experts to a pack, each in one piece, for disks that read large pieces faster (see --pack)");
  command->add_option("model", flags->model, "A model by name, or a GGUF file (any part of a split one)")->required();
  command->add_option("-o,--output", flags->out, "The pack (default: MODEL.pack, where it is found by itself)");
  command
      ->add_option("--stripe", flags->stripes,
                   "More folders, best on other disks, DIR or DIR,DIR: each stores a share of the experts")
      ->delimiter(',');
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
