// The GGUF reader on any bytes: it refuses them in one line or gives tensors that lie inside them, and never crashes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "modelfile/gguf.h"
#include "modelfile/inspect.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto model = modelfile::Model::parse(bytes, "fuzz.gguf");
  if (!model.ok()) {
    check(model.status().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const modelfile::TensorInfo& tensor : model->tensors()) {
    check(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
    check(tensor.bytes == static_cast<std::uint64_t>(tensor.rows() * row_bytes(tensor.dtype, tensor.cols())));
    check(model->find(tensor.name) == &tensor);
  }
  for (const auto& [key, value] : model->metadata()) {
    static_cast<void>(model->get_int(key).ok() || model->get_float(key).ok() || model->get_bool(key).ok());
    static_cast<void>(model->get_strings(key).ok() || model->get_floats(key).ok() || model->get_ints(key).ok());
  }
  for (const char c : modelfile::render_inspect(*model, {.tensors = size % 2 == 0})) {
    check(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  }
  return 0;
}
