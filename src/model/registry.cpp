#include <fmt/format.h>

#include <array>

#include "model/architectures.h"
#include "model/model.h"

namespace millrace::model {
namespace {

struct Entry {
  std::string_view name;
  Expected<std::unique_ptr<Model>> (*make)(const modelfile::Model& file, const LoadOptions& options);
};

constexpr std::array kArchitectures{Entry{"llama", make_llama}, Entry{"qwen3moe", make_qwen3moe}};

}  // namespace

Expected<std::unique_ptr<Model>> load(const modelfile::Model& file, const LoadOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  for (const Entry& entry : kArchitectures)
    if (entry.name == name) return entry.make(file, options);
  return error(Code::unsupported, "models of architecture '{}' are not supported; this version runs {}", name,
               fmt::join(architectures(), " and "));
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const Entry& entry : kArchitectures) names.emplace_back(entry.name);
  return names;
}

}  // namespace millrace::model
