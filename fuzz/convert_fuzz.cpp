// A checkpoint's tensors on any bytes: the text of config.json, a zero, and a safetensors file. They are refused in one
// line, or integers with scales are unpacked to the last row, as blocks and as floats.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "convert/stored.h"
#include "modelfile/safetensors.h"

namespace {

using namespace millrace;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_refusal(const Status& status) {
  check(!status.message().empty() && status.message().find('\n') == std::string::npos);
}

void unpack(const convert::Integers& integers) {
  constexpr DType kTypes[] = {DType::q4_0, DType::q4_1, DType::q8_0};
  convert::Panel panel;
  std::vector<float> floats(static_cast<std::size_t>(integers.cols));
  std::vector<std::byte> blocks(static_cast<std::size_t>(integers.cols + 32) * 2);
  for (std::int64_t row = 0; row < integers.rows; ++row) {
    if (const Status read = convert::read_panel(integers, row, panel); !read.ok()) return check_refusal(read);
    convert::row_as_floats(panel, row, 0, integers.cols, floats.data());
    for (const DType dtype : kTypes)
      if (convert::has_blocks(integers, dtype))
        if (const Status made = convert::row_as_blocks(panel, row, dtype, blocks.data()); !made.ok())
          check_refusal(made);
  }
}

/// A file of memory alone.
Expected<modelfile::File> file_of(std::span<const std::byte> bytes) {
  const int fd = memfd_create("fuzz", 0);
  check(fd >= 0 && write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  auto file = modelfile::File::open_read("/proc/self/fd/" + std::to_string(fd));
  close(fd);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const void* zero = std::memchr(data, 0, size);
  if (zero == nullptr) return 0;
  const std::string text(reinterpret_cast<const char*>(data), static_cast<const char*>(zero));
  const auto rest = std::as_bytes(std::span(data, size).subspan(text.size() + 1));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return 0;
  const convert::Config config(std::move(json));
  const auto checkpoint = modelfile::Checkpoint::parse(rest, "fuzz.safetensors");
  if (!checkpoint.ok()) return 0;  // safetensors_fuzz has these
  std::vector<modelfile::File> files;
  auto file = file_of(rest);
  check(file.ok());
  files.push_back(std::move(*file));
  const auto tensors = convert::stored_tensors(*checkpoint, files, config);
  if (!tensors.ok()) {
    check_refusal(tensors.status());
    return 0;
  }
  for (const convert::NamedTensor& tensor : *tensors)
    if (tensor.stored.source.integers) unpack(*tensor.stored.source.integers);
  return 0;
}
