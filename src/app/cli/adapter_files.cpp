#include "app/cli/adapter_files.h"

#include <fmt/core.h>

#include <filesystem>

#include "base/log.h"
#include "base/os/process.h"
#include "convert/adapter.h"
#include "modelfile/escape.h"

namespace millrace::cli {

namespace fs = std::filesystem;

std::shared_ptr<void> removal_of(const std::string& path) {
  return {nullptr, [path](void*) {
            std::error_code ignored;
            fs::remove(path, ignored);
          }};
}

CLI::Option* add_adapter_option(CLI::App& command, std::vector<std::string>& adapters) {
  return command
      .add_option("--lora", adapters,
                  "LoRA adapter of the model, FILE or FILE=SCALE: a GGUF file or a folder of PEFT's; repeatable")
      ->allow_extra_args(false)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

Expected<std::vector<engine::AdapterOptions>> read_adapters(const std::vector<std::string>& texts,
                                                            const std::string& base) {
  std::vector<engine::AdapterOptions> adapters;
  for (const std::string& text : texts) {
    MR_ASSIGN_OR_RETURN(engine::AdapterOptions adapter, engine::parse_adapter(text));
    std::error_code failure;
    if (!fs::exists(adapter.path, failure))
      return error(Code::invalid_argument, "--lora {}: there is no such file", modelfile::escape(adapter.path, 200));
    if (convert::is_peft_adapter(adapter.path)) {
      if (base.empty())
        return error(Code::invalid_argument, "--lora {}: PEFT's adapters are for a model, and none is named",
                     modelfile::escape(adapter.path, 200));
      const fs::path made = fs::temp_directory_path(failure) /
                            fmt::format("millrace-adapter-{}-{}.gguf", os::process_id(), adapters.size());
      const auto report = convert::convert_adapter(adapter.path, base, made.string());
      if (!report.ok()) return report.status().with_context("--lora " + modelfile::escape(adapter.path, 200));
      log::info("--lora {}: {} matrices converted to {}", adapter.path, report->matrices, made.string());
      adapter.path = made.string();
      adapter.keeps = removal_of(made.string());
    } else if (fs::is_directory(adapter.path, failure)) {
      return error(Code::invalid_argument,
                   "--lora {}: there is no adapter_config.json in this folder; give an adapter's",
                   modelfile::escape(adapter.path, 200));
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

}  // namespace millrace::cli
