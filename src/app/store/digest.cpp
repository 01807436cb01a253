#include "app/store/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/bytes.h"
#include "modelfile/file_io.h"

namespace millrace::store {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  MR_ASSERT(impl_->context != nullptr && EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  MR_ASSERT(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  MR_ASSERT(EVP_DigestFinal_ex(impl_->context, digest.data(), &length) == 1);
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_of(std::string_view text) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(text.data(), text.size())));
  return sum.hex();
}

Expected<std::string> sha256_of_file(const std::string& path, const std::function<void(std::uint64_t)>& on_bytes,
                                     const std::atomic<bool>* cancel) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, file.size());
  std::vector<std::byte> buffer(kMiB);
  Sha256 sum;
  for (std::uint64_t done = 0; done < bytes;) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
      return error(Code::cancelled, "stopped while checking {}", path);
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - done));
    MR_RETURN_IF_ERROR(file.read_at(done, piece));
    sum.add(piece);
    done += piece.size();
    if (on_bytes) on_bytes(done);
  }
  return sum.hex();
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace millrace::store
