// `millrace convert` and `millrace export`: a checkpoint of Hugging Face's kind as a GGUF file, and back.
#include "convert/convert.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "app/cli/command.h"
#include "app/cli/importance.h"
#include "app/cli/progress.h"
#include "app/cli/pull.h"
#include "app/store/checkpoint.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/say.h"
#include "convert/adapter.h"
#include "convert/draft_head.h"
#include "convert/export.h"
#include "convert/mmproj.h"
#include "engine/engine.h"
#include "modelfile/escape.h"

namespace millrace::cli {
namespace {

struct ConvertFlags {
  std::string in, out, dtype = "keep", name, imatrix, base;
  int threads = 0;
  bool no_mmproj = false;
  FetchFlags fetch;
};

struct ExportFlags {
  std::string in, out, dtype = "bf16", shard = "5G";
  int threads = 0;
};

/// A folder of that name comes first.
bool is_on_hub(const std::string& in) {
  std::error_code ignored;
  if (std::filesystem::exists(in, ignored)) return false;
  constexpr std::string_view kHubs[] = {"hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/"};
  return std::any_of(std::begin(kHubs), std::end(kHubs), [&](std::string_view hub) { return in.starts_with(hub); });
}

/// Opens what was written and lets one token through. A file that cannot run is no result.
Status try_pass(const std::string& path, int threads) {
  engine::EngineOptions options;
  options.model.path = path;
  options.device.choice = engine::DeviceChoice::cpu;
  options.demand.context_tokens = 16;
  options.device.threads = threads;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::create(options));
  bool finite = true;
  engine::Request request;
  request.prompt = {0};
  request.max_tokens = 1;
  request.ignore_end_tokens = true;
  if (!engine->model().hyperparameters().causal) request.pooling = model::Pooling::mean;  // it writes nothing
  request.on_logits = [&](std::int64_t, std::span<const float> row) {
    for (const float logit : row) finite &= std::isfinite(logit);
  };
  const engine::Result result = engine->run(std::move(request));
  if (result.finish == engine::Finish::error) return result.status;
  if (finite) return {};
  return error(Code::corrupt, "it gives logits that are no numbers");
}

/// What sees, beside the model.
int convert_sight(const std::string& in, const std::string& out, convert::ConvertOptions& options,
                  const Program& program) {
  Progress progress("Converting the vision tower", Unit::bytes, program.quiet);
  follow(progress, options.work);
  const auto report = convert::convert_mmproj(in, out, options);
  progress.finish();
  if (!report.ok()) return fail(report.status().with_context(out + " is whole, and has no mmproj file"));
  if (!report->left_out.empty()) log::warn("left out: {}", report->left_out);
  if (!report->path.empty())
    fmt::print("{}: {}, {} tensors, {}\n", report->path, report->projector, report->tensors,
               format_bytes(report->bytes));
  return 0;
}

int convert_folder(const ConvertFlags& flags, const std::string& in, convert::ConvertOptions& options,
                   const Program& program) {
  const std::string &out = flags.out, &imatrix = flags.imatrix;
  std::error_code ignored;
  const std::string folder =
      std::filesystem::is_directory(in, ignored) ? in : std::filesystem::absolute(in).parent_path().string();
  if (const Status status = check_outputs({out}, {in, folder, imatrix}, Writes::models); !status.ok())
    return fail(status);
  Progress progress("Converting", Unit::bytes, program.quiet);
  follow(progress, options.work);
  const auto report = convert::convert(in, out, options);
  progress.finish();
  if (!report.ok()) return fail(report.status());
  if (const Status ran = try_pass(out, options.work.threads); ran.code() == Code::out_of_budget) {
    log::warn("{} was not tried: {}", out, ran.message());
  } else if (!ran.ok()) {
    std::filesystem::remove(out, ignored);
    return fail(error(ran.code(), "the converted model cannot run, and its file is removed: {}", ran.message()));
  }
  for (const std::string& line : report->left_out) log::warn("left out: {}", line);
  fmt::print("{}: {} as {}, {} tensors, {}\n", out, report->model_type, report->architecture, report->tensors,
             format_bytes(report->bytes));
  return flags.no_mmproj ? 0 : convert_sight(in, out, options, program);
}

/// What PEFT saved, for the model that it is of.
int convert_peft(const ConvertFlags& flags) {
  if (flags.base.empty())
    return fail(
        error(Code::invalid_argument, "{}: is an adapter; name the GGUF file of its model with --base", flags.in));
  const auto base = store::Store().resolve(flags.base);
  if (!base.ok()) return fail(base.status().with_context("--base"));
  if (const Status status = check_outputs({flags.out}, {flags.in, base->path}, Writes::models); !status.ok())
    return fail(status);
  const auto report = convert::convert_adapter(flags.in, base->path, flags.out);
  if (!report.ok()) return fail(report.status());
  fmt::print("{}: an adapter of {}, {} matrices, rank {} at most, {}\n", flags.out, report->architecture,
             report->matrices, report->most_rank, format_bytes(report->bytes));
  return 0;
}

/// A head that guesses, for the model that it was trained for.
int convert_head(const ConvertFlags& flags, const convert::ConvertOptions& options, const Program& program) {
  if (flags.base.empty())
    return fail(error(Code::invalid_argument,
                      "{}: is a draft head (EAGLE-3); name the GGUF file of the model that it guesses for with --base",
                      flags.in));
  if (!flags.imatrix.empty())
    return fail(error(Code::invalid_argument, "--imatrix is for models; {} is a draft head", flags.in));
  const auto base = store::Store().resolve(flags.base);
  if (!base.ok()) return fail(base.status().with_context("--base"));
  if (const Status status = check_outputs({flags.out}, {flags.in, base->path}, Writes::models); !status.ok())
    return fail(status);
  convert::ConvertOptions how = options;
  Progress progress("Converting", Unit::bytes, program.quiet);
  follow(progress, how.work);
  const auto report = convert::convert_draft_head(flags.in, base->path, flags.out, how);
  progress.finish();
  if (!report.ok()) return fail(report.status());
  fmt::print("{}: a draft head for a model of {}, which reads layers {}; {} tensors, {}\n", flags.out,
             report->architecture, fmt::join(report->target_layers, ", "), report->tensors,
             format_bytes(report->bytes));
  return 0;
}

int execute_convert(const ConvertFlags& flags, const Program& program) {
  if (convert::is_peft_adapter(flags.in)) return convert_peft(flags);
  const bool head = convert::is_draft_head(flags.in);
  if (!flags.base.empty() && !head) {
    std::error_code ignored;
    if (!std::filesystem::exists(flags.in, ignored))
      return fail(error(Code::not_found, "{}: no such folder; check the path", modelfile::escape(flags.in)));
    return fail(error(Code::invalid_argument,
                      "--base is for adapters and draft heads, and {} is neither: it has no adapter_config.json, and "
                      "its config.json names no head; leave --base out to convert a model",
                      modelfile::escape(flags.in)));
  }
  convert::ConvertOptions options;
  if (flags.dtype != "keep") {
    const auto type = modelfile::quantize_type_from_name(flags.dtype);
    if (!type.ok()) return fail(type.status());
    options.type = *type;
  }
  const auto importance = read_importance(flags.imatrix);
  if (!importance.ok()) return fail(importance.status());
  if (importance->has_value()) options.importance = &**importance;
  options.name = flags.name;
  options.work.threads = flags.threads;
  if (head) return convert_head(flags, options, program);
  if (!is_on_hub(flags.in)) return convert_folder(flags, flags.in, options, program);
  PullPrinter printer(program.quiet);
  store::PullOptions pull = pull_options(flags.fetch, printer);
  pull.type = options.type;
  store::Store store;
  auto checkpoint = store::fetch_checkpoint(store, flags.in, pull);
  if (!checkpoint.ok()) return fail(checkpoint.status());
  if (options.name.empty()) options.name = flags.in.substr(flags.in.rfind('/') + 1);
  const int code = convert_folder(flags, checkpoint->folder, options, program);
  if (code != 0) return code;
  checkpoint->remove();
  if (!program.quiet) say(stderr, "{} of safetensors are deleted again\n", format_bytes(checkpoint->bytes));
  return code;
}

Expected<convert::ExportOptions> export_options(const ExportFlags& flags) {
  convert::ExportOptions options;
  MR_ASSIGN_OR_RETURN(options.quantized, dtype_from_name(flags.dtype));
  if (options.quantized != DType::bf16 && options.quantized != DType::f16 && options.quantized != DType::f32)
    return error(Code::invalid_argument, "--dtype {}: checkpoints hold bf16, f16 or f32", flags.dtype);
  MR_ASSIGN_OR_RETURN(options.max_shard_bytes, parse_bytes(flags.shard));
  options.work.threads = flags.threads;
  return options;
}

int execute_export(const ExportFlags& flags, const Program& program) {
  auto options = export_options(flags);
  if (!options.ok()) return fail(options.status());
  const auto resolved = store::Store().resolve(flags.in);
  if (!resolved.ok()) return fail(resolved.status());
  Progress progress("Exporting", Unit::bytes, program.quiet);
  follow(progress, options->work);
  const auto report = convert::export_checkpoint(resolved->path, flags.out, *options);
  progress.finish();
  if (!report.ok()) return fail(report.status());
  if (report->decoded > 0)
    log::warn("{} quantized tensors were decoded to {}; converted again they are not what they were", report->decoded,
              flags.dtype);
  fmt::print("{}: {} as {}, {} tensors in {} file{}, {}\n", flags.out, report->architecture, report->model_type,
             report->tensors, report->shards, report->shards == 1 ? "" : "s", format_bytes(report->bytes));
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<ConvertFlags>();
  auto* command =
      app.add_subcommand("convert", "Convert a checkpoint (safetensors, config.json, tokenizer.json) to a GGUF file");
  std::string names = "keep";
  for (const auto& known : modelfile::quantize_types()) names += ", " + std::string(known.name);
  command->add_option("in", flags->in, "A folder, or a .safetensors file in one; or hf.co/user/repo, which is fetched")
      ->required();
  command->add_option("-o,--output", flags->out, "The GGUF file to write")->required();
  command->add_option("--dtype", flags->dtype, "What matrices become: " + names)->capture_default_str();
  command->add_option(
      "--imatrix", flags->imatrix,
      "Importance matrix of `millrace imatrix` or llama.cpp's tool, which weights the errors of each column");
  command->add_option("--base", flags->base,
                      "For a LoRA adapter (PEFT's folder) or a draft head (EAGLE-3): the GGUF file of its model");
  command->add_option("--name", flags->name, "The model's name (default: the folder's)");
  command->add_flag("--no-mmproj", flags->no_mmproj,
                    "Skip the vision tower (default: write it as an mmproj file beside the model)");
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  add_fetch_flags(*command, flags->fetch);
  command->callback([flags, &program, &exit_code] { exit_code = execute_convert(*flags, program); });
}

void add_export(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<ExportFlags>();
  auto* command =
      app.add_subcommand("export", "Convert a GGUF file to a checkpoint (safetensors, config.json, tokenizer.json)");
  command->add_option("model", flags->in, "A model by name, or a GGUF file")->required();
  command->add_option("folder", flags->out, "The folder to make")->required();
  command->add_option("--dtype", flags->dtype, "What quantized weights become: bf16, f16, f32")->capture_default_str();
  command->add_option("--max-shard", flags->shard, "The largest file")->capture_default_str();
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  command->callback([flags, &program, &exit_code] { exit_code = execute_export(*flags, program); });
}

}  // namespace millrace::cli
