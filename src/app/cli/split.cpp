// `millrace split` and `millrace merge`: a model in several files, and in one.
#include "modelfile/split.h"

#include <fmt/core.h>

#include <memory>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/store/store.h"
#include "base/bytes.h"

namespace millrace::cli {
namespace {

struct SplitFlags {
  std::string in, out, max_size = "2G";
};

int execute(SplitFlags flags, std::uint64_t max_bytes, const char* label, const Program& program) {
  const auto resolved = store::Store().resolve(flags.in);
  if (!resolved.ok()) return fail(resolved.status());
  flags.in = resolved->path;
  Progress progress(label, Unit::bytes, program.quiet);
  modelfile::CopyOptions options;
  follow(progress, options);
  const auto written = modelfile::copy_model(flags.in, flags.out, max_bytes, options);
  progress.finish();
  if (!written.ok()) return fail(written.status());
  for (const std::string& path : *written) fmt::print("{}\n", path);
  return 0;
}

int execute_split(const SplitFlags& flags, const Program& program) {
  const auto bytes = parse_bytes(flags.max_size);
  if (!bytes.ok()) return fail(bytes.status().with_context("--max-size"));
  if (*bytes == 0) return fail(error(Code::invalid_argument, "--max-size: a file holds more than nothing"));
  return execute(flags, *bytes, "Splitting", program);
}

}  // namespace

void add_split(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<SplitFlags>();
  auto* split = app.add_subcommand("split", "Write a GGUF model as several files");
  split->add_option("in", flags->in, "A model by name, or a GGUF file")->required();
  split->add_option("out", flags->out, "OUT.gguf becomes OUT-00001-of-0000N.gguf and so on")->required();
  split->add_option("--max-size", flags->max_size, "The size of a file; a single tensor may exceed it")
      ->capture_default_str();
  split->callback([flags, &program, &exit_code] { exit_code = execute_split(*flags, program); });
  auto* merge = app.add_subcommand("merge", "Write a GGUF model of several files as one");
  merge->add_option("first", flags->in, "Any of its files, or a model by name")->required();
  merge->add_option("out", flags->out, "The file to write")->required();
  merge->callback([flags, &program, &exit_code] { exit_code = execute(*flags, 0, "Merging", program); });
}

}  // namespace millrace::cli
