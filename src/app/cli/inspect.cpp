// `millrace inspect`: hyperparameters, metadata, sizes by dtype and tensors of a model file.
#include "modelfile/inspect.h"

#include <cstdio>
#include <memory>

#include "app/cli/command.h"

namespace millrace::cli {
namespace {

struct InspectFlags {
  std::string model;
  bool tensors = false, whole = false;
};

}  // namespace

void add_inspect(CLI::App& app, const Program&, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  auto* command = app.add_subcommand("inspect", "Show what a model file contains");
  command->add_option("model,-m,--model", flags->model, "A model by name, or a GGUF file")->required();
  command->add_flag("--tensors", flags->tensors, "Every tensor with its offset, instead of one line for all layers");
  command->add_flag("--whole", flags->whole, "Long texts in full, such as the chat template");
  command->callback([flags, &exit_code] {
    const auto resolved = store::Store().resolve(flags->model);
    if (!resolved.ok()) {
      exit_code = fail(resolved.status());
      return;
    }
    auto model = modelfile::Model::open(resolved->path);
    if (!model.ok()) {
      exit_code = fail(model.status());
      return;
    }
    modelfile::InspectOptions options;
    options.tensors = flags->tensors;
    if (flags->whole) options.text_characters = 0;
    std::fputs(modelfile::render_inspect(*model, options).c_str(), stdout);
  });
}

}  // namespace millrace::cli
