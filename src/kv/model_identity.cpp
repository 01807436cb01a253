#include "kv/model_identity.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "modelfile/file_io.h"

namespace millrace::kv {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::int64_t kSecond = 1'000'000'000;

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }
  void add(std::uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

Status add_file(const modelfile::Model& model, int number, bool times, Hash& hash) {
  const std::string& path = model.paths()[static_cast<std::size_t>(number)];
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const os::FileInfo info, file.info());
  const std::uint64_t size = info.bytes;
  hash.add(size);
  if (times) hash.add(static_cast<std::uint64_t>(info.modified_ns / kSecond));
  if (times) hash.add(static_cast<std::uint64_t>(info.modified_ns % kSecond));
  std::uint64_t head = size;
  for (const modelfile::TensorInfo& tensor : model.tensors())
    if (tensor.file == number) head = std::min(head, tensor.offset);
  std::vector<std::byte> buffer(16 * kPage);
  for (std::uint64_t at = 0; at < head; at += buffer.size()) {
    const std::span<std::byte> part(buffer.data(), std::min<std::uint64_t>(buffer.size(), head - at));
    MR_RETURN_IF_ERROR(file.read_at(at, part));
    hash.add(part);
  }
  // A page of the middle: training that goes on changes every tensor it touches as a whole.
  for (const modelfile::TensorInfo& tensor : model.tensors()) {
    if (tensor.file != number || tensor.bytes == 0) continue;
    const std::span<std::byte> page(buffer.data(), std::min(kPage, tensor.bytes));
    MR_RETURN_IF_ERROR(file.read_at(tensor.offset + (tensor.bytes - page.size()) / 2, page));
    hash.add(page);
  }
  return {};
}

Expected<std::string> identity(const modelfile::Model& model, bool times, std::string_view made = {}) {
  Hash hash;
  for (int file = 0; file < static_cast<int>(model.paths().size()); ++file)
    MR_RETURN_IF_ERROR(add_file(model, file, times && model.paths()[static_cast<std::size_t>(file)] != made, hash));
  return hash.hex();
}

}  // namespace

Expected<std::string> model_identity(const modelfile::Model& model, std::string_view made) {
  return identity(model, true, made);
}
Expected<std::string> copy_identity(const modelfile::Model& model) { return identity(model, false); }

}  // namespace millrace::kv
