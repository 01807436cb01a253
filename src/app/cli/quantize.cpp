// `millrace quantize`: writes a model anew with its weights in another type, or in the types that fit a file best.
#include "modelfile/quantize.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <utility>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/importance.h"
#include "app/cli/mixture_choice.h"
#include "app/cli/progress.h"
#include "app/store/store.h"
#include "base/bytes.h"
#include "base/log.h"

namespace millrace::cli {
namespace {

struct QuantizeFlags {
  std::string in, out, type;
  std::string imatrix;
  MixtureFlags mixture;
  std::vector<std::string> rules;
  int threads = 0;
  bool dry_run = false;
};

/// Types by name for the matrices that a rule PATTERN=TYPE finds in the model, into `types`; later rules win.
Status apply_rule(const std::string& rule, const modelfile::Model& model,
                  std::map<std::string, DType, std::less<>>& types) {
  const auto equals = rule.rfind('=');
  if (equals == std::string::npos || equals == 0)
    return error(Code::invalid_argument, "--tensor {}: write PATTERN=TYPE, for example ffn_down_exps=Q3_K", rule);
  auto dtype = dtype_from_name(rule.substr(equals + 1));
  if (!dtype.ok()) return dtype.status().with_context("--tensor " + rule);
  std::int64_t found = 0;
  try {
    const std::regex pattern(rule.substr(0, equals));
    for (const modelfile::TensorInfo& tensor : model.tensors()) {
      if (modelfile::stays_float(tensor) || !info(tensor.dtype).computable) continue;
      // The library's search goes as deep as a name is long: no file's long name may use up the stack.
      constexpr std::size_t kLongestName = 256;
      if (tensor.name.size() > kLongestName || !std::regex_search(tensor.name, pattern)) continue;
      types.insert_or_assign(tensor.name, modelfile::fitting_dtype(*dtype, tensor.cols()));
      ++found;
    }
  } catch (const std::regex_error& problem) {
    return error(Code::invalid_argument, "--tensor {}: the pattern is no regular expression ({})", rule,
                 problem.what());
  }
  if (found == 0) return error(Code::invalid_argument, "--tensor {}: no matrix of the model has such a name", rule);
  return {};
}

/// What would be written: each type's matrices and bytes.
Status print_quantize_plan(const modelfile::Model& model, const modelfile::QuantizeOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::vector<DType> types, modelfile::planned_types(model, options));
  struct Sum {
    std::int64_t tensors = 0, weights = 0;
    std::uint64_t bytes = 0;
  };
  std::map<DType, Sum> sums;
  Sum all;
  for (std::size_t t = 0; t < types.size(); ++t) {
    const modelfile::TensorInfo& tensor = model.tensors()[t];
    const auto bytes = static_cast<std::uint64_t>(row_bytes(types[t], tensor.cols()) * tensor.rows());
    for (Sum* sum : {&sums[types[t]], &all}) {
      ++sum->tensors;
      sum->weights += tensor.cols() * tensor.rows();
      sum->bytes += bytes;
    }
  }
  const auto row = [](std::string_view name, const Sum& sum) {
    fmt::print("{:7} {:6} tensors {:>10} {:6.2f} bits a weight\n", name, sum.tensors, format_bytes(sum.bytes),
               8.0 * static_cast<double>(sum.bytes) / static_cast<double>(std::max<std::int64_t>(1, sum.weights)));
  };
  for (const auto& [dtype, sum] : sums) row(info(dtype).name, sum);
  row("all", all);
  fmt::print("{} before; nothing was written\n", format_bytes(model.tensor_bytes()));
  return {};
}

/// What was rounded once and will be rounded again.
Status warn_of_rounding_twice(const modelfile::Model& model, const modelfile::QuantizeOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::vector<DType> types, modelfile::planned_types(model, options));
  std::uint64_t again = 0;
  for (std::size_t t = 0; t < types.size(); ++t) {
    const modelfile::TensorInfo& tensor = model.tensors()[t];
    const bool both = info(tensor.dtype).block_elements > 1 && info(types[t]).block_elements > 1;
    if (both && types[t] != tensor.dtype) again += tensor.bytes;
  }
  if (again > 0)
    log::warn(
        "{} of {} are quantized already; quantizing them again loses more than doing so once: take the "
        "original model (BF16, F16 or F32) where you have it",
        format_bytes(again), format_bytes(model.tensor_bytes()));
  return {};
}

Expected<modelfile::QuantizeOptions> options_of(const QuantizeFlags& flags, const modelfile::Model& model) {
  modelfile::QuantizeOptions options;
  options.threads = flags.threads;
  const bool chooses = flags.mixture.chooses();
  if (flags.type.empty() != chooses)
    return error(Code::invalid_argument, "quantize takes a type, or --bytes or --divergence and chooses types itself");
  MR_RETURN_IF_ERROR(check(flags.mixture));
  if (!chooses) {
    MR_ASSIGN_OR_RETURN(options.type, modelfile::quantize_type_from_name(flags.type));
  } else {
    MR_RETURN_IF_ERROR(choose_types(flags.mixture, flags.threads, model, options));
  }
  for (const std::string& rule : flags.rules) MR_RETURN_IF_ERROR(apply_rule(rule, model, options.types));
  return options;
}

int execute(QuantizeFlags flags, const Program& program) {
  const auto resolved = store::Store().resolve(flags.in);
  if (!resolved.ok()) return fail(resolved.status());
  flags.in = resolved->path;
  const auto before = modelfile::Model::open(flags.in, {.skip_vocabulary = true});
  if (!before.ok()) return fail(before.status());
  auto options = options_of(flags, *before);
  if (!options.ok()) return fail(options.status());
  if (const Status status = warn_of_rounding_twice(*before, *options); !status.ok()) return fail(status);
  if (flags.dry_run) {
    const Status status = print_quantize_plan(*before, *options);
    return status.ok() ? 0 : fail(status);
  }
  if (const Status status = check_outputs({flags.out}, {flags.in, flags.imatrix}, Writes::models); !status.ok())
    return fail(status);
  const auto importance = read_importance(flags.imatrix);
  if (!importance.ok()) return fail(importance.status());
  if (importance->has_value()) options->importance = &**importance;
  Progress progress("Quantizing", Unit::bytes, program.quiet);
  follow(progress, *options);
  if (const Status status = modelfile::quantize(flags.in, flags.out, *options); !status.ok()) {
    progress.finish();
    return fail(status);
  }
  progress.finish();
  auto after = modelfile::Model::open(flags.out, {.skip_vocabulary = true});
  if (after.ok()) {
    fmt::print("{}: {} of weights, {} before\n", flags.out, format_bytes(after->tensor_bytes()),
               format_bytes(before->tensor_bytes()));
  }
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<QuantizeFlags>();
  auto* command = app.add_subcommand("quantize", "Write a copy of a model with its weights in another type");
  std::string names;
  for (const auto& known : modelfile::quantize_types()) names += (names.empty() ? "" : ", ") + std::string(known.name);
  command->add_option("in", flags->in, "A model by name, or a GGUF file")->required();
  command->add_option("out", flags->out, "The file to write")->required();
  command->add_option("type", flags->type, names);
  add_mixture_flags(*command, flags->mixture);
  command
      ->add_option(
          "--imatrix", flags->imatrix,
          "Importance matrix of `millrace imatrix` or llama.cpp's tool, which weights the errors of each column")
      ->option_text("FILE");
  command
      ->add_option("--tensor", flags->rules,
                   "Another type for matrices whose names match this regular expression, for example "
                   "ffn_down_exps=Q3_K; repeatable")
      ->option_text("PATTERN=TYPE")
      ->take_all();
  command->add_flag("--dry-run", flags->dry_run, "Print what would be written, by type, and write nothing");
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
