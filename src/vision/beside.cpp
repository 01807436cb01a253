#include "vision/beside.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/os/folder.h"
#include "base/status.h"
#include "base/words.h"
#include "base/work_grant.h"
#include "modelfile/gguf.h"
#include "vision/spec.h"

namespace millrace::vision {
namespace {

namespace fs = std::filesystem;

bool wanted(std::string_view key) {
  return key == "general.architecture" || key == "general.alignment" || key.starts_with("clip.") ||
         key.ends_with(".embedding_length") || key.ends_with(".n_deepstack_layers");
}

constexpr std::uint64_t kMostHeader = 4 * kMiB;  // of an mmproj file

/// What is read of a model: numbers alone.
Expected<modelfile::Model> outline(const std::string& path) {
  modelfile::OpenOptions options;
  options.outline = true;
  options.wanted = wanted;
  return modelfile::Model::open(path, options);
}

/// As the public one. Rows are as wide as the model, or wider by as much for each layer that adds some (deepstack).
Status check_fits(const std::string& mmproj_path, const modelfile::Model& model) {
  MR_ASSIGN_OR_RETURN(const std::string architecture, model.get_string("general.architecture"));
  MR_ASSIGN_OR_RETURN(const std::int64_t width, model.get_int(architecture + ".embedding_length"));
  MR_ASSIGN_OR_RETURN(const std::int64_t layers, model.get_int_or(architecture + ".n_deepstack_layers", 0));
  GrantedBytes memory(kMostHeader, nullptr);
  modelfile::OpenOptions options;
  options.wanted = wanted;
  options.memory = &memory;
  MR_ASSIGN_OR_RETURN(const modelfile::Model mmproj, modelfile::Model::open(mmproj_path, options));
  MR_ASSIGN_OR_RETURN(const Spec spec, read_spec(mmproj));
  MR_RETURN_IF_ERROR(check_belongs(spec.projector, architecture));
  MR_ASSIGN_OR_RETURN(const std::int64_t projected, mmproj.get_int("clip.vision.projection_dim"));
  if (projected != width && projected != width * (1 + layers))
    return error(Code::invalid_argument, "its rows have {} values, the model's {}", projected, width);
  return {};
}

/// Whether a decoder of this architecture was trained with such a tower.
bool belongs(Projector projector, std::string_view architecture) {
  switch (projector) {
    case Projector::qwen3vl:
      return architecture == "qwen35" || architecture == "qwen35moe" || architecture == "qwen4exp" ||
             architecture == "qwen3vl" || architecture == "qwen3vlmoe";
    case Projector::qwen2vl:
    case Projector::qwen25vl:
      return architecture == "qwen2vl";
    case Projector::gemma3:
      return architecture == "gemma3";
    case Projector::gemma4:
    case Projector::gemma4u:
      return architecture == "gemma4";
    case Projector::pixtral:
      return architecture == "llama" || architecture == "mistral3";
    case Projector::internvl:
      return architecture == "qwen2" || architecture == "qwen3" || architecture == "qwen3moe" ||
             architecture == "internlm2" || architecture == "llama" || architecture == "phi3" ||
             architecture == "gpt-oss";
    case Projector::idefics3:
      return architecture == "llama";
    case Projector::lfm2:
      return architecture == "lfm2" || architecture == "lfm2moe";
    case Projector::glm4v:
      return architecture == "glm4" || architecture == "glm4moe";
    case Projector::kimivl:
      return architecture == "deepseek2";
  }
  return false;
}

}  // namespace

Status check_belongs(Projector projector, std::string_view architecture) {
  if (belongs(projector, architecture)) return {};
  return error(Code::unsupported,
               "its projector type '{}' does not belong to models of {}; give --mmproj the file that was published "
               "with the model",
               projector_name(projector), architecture);
}

Status check_fits(const std::string& mmproj_path, const std::string& model_path) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, outline(model_path));
  return check_fits(mmproj_path, model);
}

const std::vector<std::string>& MmprojFolders::files_in(const std::string& folder) {
  const auto [known, added] = known_.try_emplace(folder);
  std::vector<std::string>& files = known->second;
  if (!added) return files;
  const fs::path in = folder.empty() ? "." : folder;
  const Status ignored = os::for_each_name(in.string(), [&](const std::string& name) {
    if (fs::path(name).extension() == ".gguf" && is_mmproj_name(name)) files.push_back((in / name).string());
  });
  std::sort(files.begin(), files.end());
  return files;
}

bool is_mmproj_name(const std::string& path) {
  return lower(fs::path(path).filename().string()).find("mmproj") != std::string::npos;
}

std::string mmproj_for(const std::string& model_path, const std::string& given, MmprojFolders& folders) {
  if (!given.empty()) return given == "off" ? std::string() : given;
  if (is_mmproj_name(model_path)) return {};
  std::vector<std::string> files = folders.files_in(fs::path(model_path).parent_path().string());
  if (files.empty()) return {};
  const auto model = outline(model_path);
  if (!model.ok()) return {};
  std::erase_if(files, [&](const std::string& path) {
    const Status belongs = check_fits(path, *model);
    if (!belongs.ok()) log::info("{} is no mmproj file of {}: {}", path, model_path, belongs.message());
    return !belongs.ok();
  });
  if (files.size() == 1) return files.front();
  if (files.size() > 1)
    log::warn("{} mmproj files lie beside {}, so that it sees no pictures; choose one with --mmproj FILE", files.size(),
              model_path);
  return {};
}

}  // namespace millrace::vision
