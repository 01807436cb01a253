// The metadata of models on any bytes: an architecture refuses it in one line or makes a model, and never crashes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "model/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const auto file = modelfile::Model::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file.ok()) return 0;
  for (const std::int64_t context : {0, 1 << 20}) {
    const Status loaded = model::load(*file, {.context_tokens = context}).status();
    const std::string& message = loaded.message();
    if (loaded.ok()) continue;
    if (message.empty() || message.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
