// The safetensors reader and its index on any bytes: they are refused in one line or give tensors that lie inside the
// file, none over another. The first byte says which of the two.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "modelfile/safetensors.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_refusal(const millrace::Status& status) {
  check(!status.message().empty() && status.message().find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  if (size == 0) return 0;
  const auto rest = std::span(data, size).subspan(1);
  if (data[0] % 2 == 1) {
    const auto index = modelfile::Checkpoint::parse_index({reinterpret_cast<const char*>(rest.data()), rest.size()});
    if (!index.ok())
      check_refusal(index.status());
    else
      for (const auto& [tensor, file] : *index) check(!file.empty() && file.find('/') == std::string::npos);
    return 0;
  }
  const auto read = modelfile::Checkpoint::parse(std::as_bytes(rest), "fuzz.safetensors");
  if (!read.ok()) {
    check_refusal(read.status());
    return 0;
  }
  std::uint64_t end = 0;
  for (const modelfile::CheckpointTensor& tensor : read->tensors()) {
    check(tensor.offset <= rest.size() && tensor.bytes <= rest.size() - tensor.offset);
    check(tensor.offset >= end || tensor.bytes == 0);
    end = tensor.offset + tensor.bytes;
    std::uint64_t elements = 1;
    for (const std::int64_t dim : tensor.shape) elements *= static_cast<std::uint64_t>(dim);
    check(elements * static_cast<std::uint64_t>(modelfile::element_bytes(tensor.element)) == tensor.bytes);
    check(read->find(tensor.name) == &tensor);
  }
  return 0;
}
