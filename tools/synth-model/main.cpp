// synth-model: writes a GGUF model of a real shape with random weights, for benchmarks of speed and memory. Its text
// means nothing; its numbers are tame (a forward pass neither explodes nor dies).
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "base/bytes.h"
#include "synth-model/shapes.h"
#include "synth-model/write.h"

namespace millrace::synth {
namespace {

struct Arguments {
  std::string out, preset, dtype = "F16", split;
  Shape shape;
  std::uint64_t seed = 1;
  std::uint32_t alignment = 32;
  int threads = 0;
  bool hollow = false;
};

std::string preset_names() {
  std::string names;
  for (const Shape& shape : presets()) names += (names.empty() ? "" : ", ") + shape.name;
  return names;
}

/// Flags for a shape write into `flags`; those given override the preset's values in merged().
void add_shape_flags(CLI::App& app, Shape& flags) {
  app.add_option("--arch", flags.architecture,
                 "llama, qwen3, qwen3moe, qwen35, qwen35moe, gemma3, gemma4, gpt-oss or glm4moe; deepseek2, "
                 "deepseek32, deepseek4, glm-dsa, mistral4, nemotron_h_moe, falcon-h1, kimi-linear, bailingmoe3, "
                 "minimax-m3 and qwen4exp by "
                 "--preset");
  app.add_option("--layers", flags.layers, "transformer layers");
  app.add_option("--dim", flags.dim, "width of the residual stream");
  app.add_option("--ff", flags.ff, "width of a dense feed-forward layer");
  app.add_option("--heads", flags.heads, "query heads");
  app.add_option("--kv-heads", flags.kv_heads, "key and value heads");
  app.add_option("--head-dim", flags.head_dim, "width of a head");
  app.add_option("--vocab", flags.vocab, "tokens");
  app.add_option("--experts", flags.experts, "experts a layer (0: dense)");
  app.add_option("--top-k", flags.top_k, "experts that work on a token");
  app.add_option("--expert-ff", flags.expert_ff, "width of an expert");
  app.add_option("--ctx", flags.context, "context length");
  app.add_option("--rope-theta", flags.rope_theta, "base of the rotary frequencies");
  app.add_option("--state-heads", flags.state_heads,
                 "heads of values in a layer that keeps a state (qwen35*, qwen4exp, nemotron_h_moe, falcon-h1, "
                 "kimi-linear, bailingmoe3)");
  app.add_option("--ngram-rows", flags.engram.head_rows,
                 "rows of each of the 16 heads of a table of n-grams (qwen4exp)");
  app.add_flag("--tie", flags.tied, "use the embedding as the head");
}

/// The preset (or the default shape) with every shape flag that was given.
Expected<Shape> merged(const CLI::App& app, const Arguments& arguments) {
  Shape shape;
  if (!arguments.preset.empty()) {
    MR_ASSIGN_OR_RETURN(shape, preset(arguments.preset));
  }
  const Shape& flags = arguments.shape;
  const auto given = [&](const char* flag) { return app.count(flag) > 0; };
  if (given("--arch")) shape.architecture = flags.architecture;
  if (given("--layers")) shape.layers = flags.layers;
  if (given("--dim")) shape.dim = flags.dim;
  if (given("--ff")) shape.ff = flags.ff;
  if (given("--heads")) shape.heads = flags.heads;
  if (given("--kv-heads")) shape.kv_heads = flags.kv_heads;
  if (given("--head-dim")) shape.head_dim = flags.head_dim;
  if (given("--vocab")) shape.vocab = flags.vocab;
  if (given("--experts")) shape.experts = flags.experts;
  if (given("--top-k")) shape.top_k = flags.top_k;
  if (given("--expert-ff")) shape.expert_ff = flags.expert_ff;
  if (given("--ctx")) shape.context = flags.context;
  if (given("--rope-theta")) shape.rope_theta = flags.rope_theta;
  if (given("--state-heads")) shape.state_heads = flags.state_heads;
  if (given("--ngram-rows")) shape.engram.head_rows = flags.engram.head_rows;
  if (given("--tie")) shape.tied = true;
  if (shape.architecture == "llama" && shape.experts > 0 && shape.expert_ff == 0) shape.expert_ff = shape.ff;
  MR_RETURN_IF_ERROR(check(shape));
  return shape;
}

Status write_model(const Shape& shape, const Arguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  WriteOptions options;
  MR_ASSIGN_OR_RETURN(options.types, types_from_name(arguments.dtype));
  options.alignment = arguments.alignment;
  options.seed = arguments.seed;
  options.threads = arguments.threads;
  options.hollow = arguments.hollow;
  if (!arguments.split.empty()) {
    MR_ASSIGN_OR_RETURN(options.max_file_bytes, parse_bytes(arguments.split));
  }
  MR_ASSIGN_OR_RETURN(const Written written, write(arguments.out, shape, options));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} {}, {} tensors, {:.2f}B parameters, {} in {:.1f} s ({}/s)\n", written.paths[0], shape.name,
             arguments.dtype, written.tensors, static_cast<double>(written.parameters) * 1e-9,
             format_bytes(written.bytes), seconds,
             format_bytes(static_cast<std::uint64_t>(static_cast<double>(written.bytes) / seconds)));
  return {};
}

int run(int argc, char** argv) {
  CLI::App app(
      "Writes a GGUF model of a real shape with random weights, for benchmarks.\n"
      "Presets: " +
          preset_names(),
      "synth-model");
  Arguments arguments;
  app.add_option("out", arguments.out, "the .gguf file to write")->required();
  app.add_option("-p,--preset", arguments.preset, "a shape by name; shape flags override its values");
  app.add_option("-d,--dtype", arguments.dtype,
                 "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, IQ1_S to "
                 "IQ3_S, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0, Q2_0 or "
                 "Q4_K_M (the usual mixture)");
  add_shape_flags(app, arguments.shape);
  app.add_option("--seed", arguments.seed, "the same seed gives the same file");
  app.add_option("--align", arguments.alignment, "alignment of tensors, a multiple of 8");
  app.add_option("--split", arguments.split, "largest size of a file, for example 2G; makes -00001-of-0000N files");
  app.add_flag("--hollow", arguments.hollow, "no weights: the file takes no disk, and serves plans alone");
  app.add_option("-t,--threads", arguments.threads, "writing threads (0: one a processor, 16 at most)")
      ->check(CLI::Range(0, 256));
  CLI11_PARSE(app, argc, argv);
  const auto shape = merged(app, arguments);
  const Status status = shape.ok() ? write_model(shape.value(), arguments) : shape.status();
  if (!status.ok()) fmt::print(stderr, "synth-model: {}\n", status.message());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace millrace::synth

int main(int argc, char** argv) { return millrace::synth::run(argc, argv); }
