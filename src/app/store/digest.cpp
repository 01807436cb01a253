#include "app/store/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/bytes.h"
#include "modelfile/file_io.h"

namespace millrace::store {
namespace {

std::string as_hex(std::span<const unsigned char> digest) {
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

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
  return as_hex(std::span(digest).first(length));
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

/// Git hashes "blob", the length and a zero before the bytes.
Expected<std::string> git_sha1_of_file(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, file.size());
  std::string text = fmt::format("blob {}", bytes) + std::string(1, '\0');
  const std::size_t head = text.size();
  text.resize(head + static_cast<std::size_t>(bytes));
  MR_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text.data() + head, text.size() - head))));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  MR_ASSERT(EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha1(), nullptr) == 1);
  return as_hex(std::span(digest).first(length));
}

namespace {
bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
}  // namespace

bool is_sha1(std::string_view text) { return is_hex(text, 40); }
bool is_sha256(std::string_view text) { return is_hex(text, 64); }

}  // namespace millrace::store
