// Snapshot format, little-endian: Header, then the whole blocks that hold [0, length), then XXH3-64 of all before it.

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "kv/sequence.h"

namespace millrace::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are little-endian");

constexpr char kMagic[8] = {'M', 'R', 'K', 'V', 'S', 'N', 'A', 'P'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t dtype;
  std::int64_t layers, kv_heads, head_dim, block_tokens, length;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 56);

using Checksum = std::uint64_t;

Header header_of(const KvShape& shape, std::int64_t length) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.dtype = static_cast<std::uint32_t>(shape.dtype);
  header.layers = shape.layers;
  header.kv_heads = shape.kv_heads;
  header.head_dim = shape.head_dim;
  header.block_tokens = kBlockTokens;
  header.length = length;
  return header;
}

std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

/// The header of `bytes` once everything about them is known to be right for `shape`.
Expected<Header> checked_header(const std::vector<std::byte>& bytes, const KvShape& shape) {
  constexpr std::size_t least = sizeof(Header) + sizeof(Checksum);
  if (bytes.size() < least) return error(Code::corrupt, "the snapshot has only {} bytes", bytes.size());
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.version != kVersion)
    return error(Code::corrupt, "this is not a KV snapshot of this version; process the conversation again");
  Checksum stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof(stored), sizeof(stored));
  if (XXH3_64bits(bytes.data(), bytes.size() - sizeof(stored)) != stored)
    return error(Code::corrupt, "the KV snapshot was damaged (checksum mismatch); process the conversation again");
  const Header expected = header_of(shape, header.length);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0)
    return error(Code::corrupt,
                 "the KV snapshot is of another shape ({} layers x {} heads x {}); restore it with the "
                 "model and KV format that made it",
                 header.layers, header.kv_heads, header.head_dim);
  const std::uint64_t payload = bytes.size() - least;
  const std::uint64_t block_bytes = static_cast<std::uint64_t>(shape.block_bytes());
  if (header.length < 0 || payload % block_bytes != 0 ||
      static_cast<std::uint64_t>(blocks_for(header.length)) != payload / block_bytes)
    return error(Code::corrupt, "the KV snapshot claims {} tokens but holds {} bytes", header.length, payload);
  return header;
}

}  // namespace

Expected<std::vector<std::byte>> SequenceState::snapshot() const {
  const std::size_t block_bytes = static_cast<std::size_t>(shape().block_bytes());
  const std::size_t used_blocks = static_cast<std::size_t>(blocks_for(length_));
  const std::size_t body = sizeof(Header) + used_blocks * block_bytes;
  std::vector<std::byte> bytes(body + sizeof(Checksum));
  const Header header = header_of(shape(), length_);
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (std::size_t i = 0; i < used_blocks; ++i)
    MR_RETURN_IF_ERROR(pool_->read(blocks_[i], bytes.data() + sizeof(header) + i * block_bytes));
  const Checksum checksum = XXH3_64bits(bytes.data(), body);
  std::memcpy(bytes.data() + body, &checksum, sizeof(checksum));
  return bytes;
}

Status SequenceState::restore(const std::vector<std::byte>& bytes) {
  MR_ASSIGN_OR_RETURN(const Header header, checked_header(bytes, shape()));
  SequenceState restored(pool_);  // blocks of its own: the present ones may be shared
  MR_RETURN_IF_ERROR(restored.reserve(header.length));
  const std::size_t block_bytes = static_cast<std::size_t>(shape().block_bytes());
  for (std::size_t i = 0; i < static_cast<std::size_t>(blocks_for(header.length)); ++i)
    MR_RETURN_IF_ERROR(pool_->write(restored.blocks_[i], bytes.data() + sizeof(Header) + i * block_bytes));
  restored.length_ = header.length;
  *this = std::move(restored);
  return {};
}

}  // namespace millrace::kv
