#include "app/cli/control_vectors.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "app/cli/adapter_files.h"
#include "base/log.h"
#include "base/os/process.h"
#include "model/control_vector.h"
#include "modelfile/escape.h"
#include "modelfile/gguf.h"

namespace millrace::cli {

namespace fs = std::filesystem;

namespace {

Expected<model::ControlVector> scaled_vector(std::string_view text) {
  model::ControlVector vector;
  const std::size_t colon = text.rfind(':');
  const std::string_view number = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), vector.scale);
  vector.path = text.substr(0, colon);
  if (number.empty() || failure != std::errc() || end != number.data() + number.size() || vector.path.empty())
    return error(Code::invalid_argument, "--control-vector-scaled {}: write FILE:SCALE, as in happy.gguf:0.8",
                 modelfile::escape(text, 200));
  return vector;
}

/// The texts between commas, of all.
std::vector<std::string> parts_of(const std::vector<std::string>& lists) {
  std::vector<std::string> parts;
  for (const std::string& list : lists)
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      parts.push_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  return parts;
}

Expected<model::ControlOptions> control_options(const ControlFlags& flags) {
  model::ControlOptions options;
  for (const std::string& path : parts_of(flags.vectors)) options.vectors.push_back({path});
  for (const std::string& text : parts_of(flags.scaled)) {
    MR_ASSIGN_OR_RETURN(model::ControlVector vector, scaled_vector(text));
    options.vectors.push_back(std::move(vector));
  }
  for (const model::ControlVector& vector : options.vectors)
    if (std::error_code failure; !fs::exists(vector.path, failure))
      return error(Code::invalid_argument, "--control-vector {}: there is no such file",
                   modelfile::escape(vector.path, 200));
  if (flags.layers.empty()) return options;
  if (options.vectors.empty())
    return error(Code::invalid_argument, "--control-vector-layer-range is for control vectors; name some");
  options.first_layer = flags.layers[0];
  options.last_layer = flags.layers[1];
  if (options.last_layer < options.first_layer)
    return error(Code::invalid_argument, "--control-vector-layer-range {} {}: the last layer is before the first",
                 options.first_layer, options.last_layer);
  return options;
}

}  // namespace

void add_control_options(CLI::App& command, ControlFlags& flags) {
  const auto add = [&command](const char* name, std::vector<std::string>& values, const char* help) {
    command.add_option(name, values, help)
        ->allow_extra_args(false)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add("--control-vector", flags.vectors,
      "Control vector: a GGUF file whose directions are added to the residual stream; several: FILE,FILE, or again");
  add("--control-vector-scaled", flags.scaled, "The same at another strength: FILE:SCALE");
  command
      .add_option("--control-vector-layer-range", flags.layers,
                  "The first and the last layer that control vectors change (default: 1 and the last)")
      ->expected(2)
      ->check(at_least(1));
}

Status read_control_vectors(const ControlFlags& flags, engine::ModelOptions& model) {
  MR_ASSIGN_OR_RETURN(const model::ControlOptions options, control_options(flags));
  if (options.vectors.empty()) return {};
  if (model.path.empty()) return error(Code::invalid_argument, "--control-vector is for a model: name it with --model");
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  MR_ASSIGN_OR_RETURN(const modelfile::Model base, modelfile::Model::open(model.path, no_words));
  std::error_code failure;
  const fs::path made = fs::temp_directory_path(failure) / fmt::format("millrace-control-{}.gguf", os::process_id());
  const auto report = model::write_control(base, options, made.string());
  if (!report.ok()) return report.status().with_context("--control-vector");
  log::info("control vectors: {} layers, from {} to {}", report->layers, report->first_layer, report->last_layer);
  model.control = made.string();
  model.control_keeps = removal_of(made.string());
  return {};
}

}  // namespace millrace::cli
