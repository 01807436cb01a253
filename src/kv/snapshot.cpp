// Snapshot format, little-endian: Header, a GroupRecord for each group, then each group's blocks that hold [0, length)
// but for those its window has passed, or the one state behind them, then XXH3-64 of all before it.

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kv/sequence.h"

namespace millrace::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are little-endian");

constexpr char kSnapshotMagic[8] = {'M', 'R', 'K', 'V', 'S', 'N', 'A', 'P'};
constexpr std::uint32_t kSnapshotVersion = 5;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

struct Header {
  char magic[8];
  std::uint32_t version, groups;
  std::int64_t block_tokens, length;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 32);

struct GroupRecord {
  std::uint32_t keeps, dtype;
  std::int64_t layers, kv_heads, k_dim, v_dim, index_dim, window, ratio;
  StateShape state;
  std::int64_t first;  // block that is there; of states the last one
};
static_assert(std::is_trivially_copyable_v<GroupRecord> && sizeof(GroupRecord) == 112);

using Checksum = std::uint64_t;

Header header_of(const Layout& layout, std::int64_t length) {
  Header header{};
  std::memcpy(header.magic, kSnapshotMagic, sizeof(kSnapshotMagic));
  header.version = kSnapshotVersion;
  header.groups = static_cast<std::uint32_t>(layout.groups().size());
  header.block_tokens = kBlockTokens;
  header.length = length;
  return header;
}

GroupRecord record_of(const Group& group, std::int64_t first) {
  return {static_cast<std::uint32_t>(group.keeps),
          static_cast<std::uint32_t>(group.dtype),
          group.layers,
          group.kv_heads,
          group.k_dim,
          group.v_dim,
          group.index_dim,
          group.window,
          group.ratio,
          group.state,
          first};
}

/// Of a group of a sequence of `length` tokens whose table begins at block `first`: the first one that is written.
std::int64_t first_block(const Group& group, std::int64_t length, std::int64_t first) {
  return group.is_state() ? std::max<std::int64_t>(0, blocks_for(length) - 1) : first;
}

/// Blocks of a group that are written of so many: of a plain one the first, too.
std::vector<std::int64_t> written_blocks(const Group& group, std::int64_t first, std::int64_t used) {
  std::vector<std::int64_t> blocks;
  if (group.ends && first > 0 && used > 0) blocks.push_back(0);
  for (std::int64_t i = first; i < used; ++i) blocks.push_back(i);
  return blocks;
}

std::size_t head_bytes(const Layout& layout) { return sizeof(Header) + layout.groups().size() * sizeof(GroupRecord); }

/// What a snapshot says of itself, once everything about it is known to be right for a layout.
struct Contents {
  std::int64_t length = 0;
  std::vector<std::int64_t> first;  // block of each group
};

Status wrong_layout(const Layout& layout) {
  return error(Code::corrupt,
               "the KV snapshot is of another layout than {}; restore it with the model and KV format "
               "that made it",
               layout.describe());
}

Expected<Contents> checked(const std::vector<std::byte>& bytes, const Layout& layout) {
  const std::size_t least = head_bytes(layout) + sizeof(Checksum);
  Header header{};
  if (bytes.size() < sizeof(Header) + sizeof(Checksum))
    return error(Code::corrupt, "the snapshot has only {} bytes", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kSnapshotMagic, sizeof(kSnapshotMagic)) != 0 || header.version != kSnapshotVersion)
    return error(Code::corrupt, "this is not a KV snapshot of this version; process the conversation again");
  Checksum stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof(stored), sizeof(stored));
  if (XXH3_64bits(bytes.data(), bytes.size() - sizeof(stored)) != stored)
    return error(Code::corrupt, "the KV snapshot was damaged (checksum mismatch); process the conversation again");
  const Header expected = header_of(layout, header.length);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0 || bytes.size() < least) return wrong_layout(layout);
  const auto too_little = [&] {
    return error(Code::corrupt, "the KV snapshot claims {} tokens but holds {} bytes", header.length, bytes.size());
  };
  if (header.length < 0 || header.length > kMostTokens) return too_little();
  Contents contents{header.length, {}};
  std::uint64_t payload = bytes.size() - least;
  for (const Group& group : layout.groups()) {
    GroupRecord record;
    std::memcpy(&record, bytes.data() + sizeof(Header) + contents.first.size() * sizeof(record), sizeof(record));
    const GroupRecord right = record_of(group, record.first);
    if (std::memcmp(&record, &right, sizeof(record)) != 0) return wrong_layout(layout);
    if (record.first < 0 || record.first > group.first_seen(header.length) / kBlockTokens ||
        (group.is_state() && record.first != first_block(group, header.length, 0)))
      return too_little();
    const std::uint64_t blocks = written_blocks(group, record.first, blocks_for(header.length)).size();
    const auto block_bytes = static_cast<std::uint64_t>(group.block_bytes());
    if (blocks > payload / block_bytes) return too_little();
    payload -= blocks * block_bytes;
    contents.first.push_back(record.first);
  }
  return payload == 0 ? Expected<Contents>(std::move(contents)) : too_little();
}

}  // namespace

Expected<std::vector<std::byte>> SequenceState::snapshot() const {
  const std::int64_t used = blocks_for(length_);
  std::size_t body = head_bytes(layout());
  std::vector<std::int64_t> first;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    first.push_back(first_block(group(g), length_, tables_[g].first));
    body += written_blocks(group(g), first[g], used).size() * static_cast<std::size_t>(group(g).block_bytes());
    if (group(g).is_state() && states_[g].at != length_)
      return error(Code::internal, "a sequence of {} tokens has lost its states", length_);
  }
  std::vector<std::byte> bytes(body + sizeof(Checksum));
  const Header header = header_of(layout(), length_);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::byte* to = bytes.data() + head_bytes(layout());
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const GroupRecord record = record_of(group(g), first[g]);
    std::memcpy(bytes.data() + sizeof(header) + g * sizeof(record), &record, sizeof(record));
    for (const std::int64_t i : written_blocks(group(g), first[g], used)) {
      MR_RETURN_IF_ERROR(pool_->read(g, group(g).is_state() ? states_[g].now : block(g, i), to));
      to += group(g).block_bytes();
    }
  }
  const Checksum checksum = XXH3_64bits(bytes.data(), body);
  std::memcpy(bytes.data() + body, &checksum, sizeof(checksum));
  return bytes;
}

Status SequenceState::restore(const std::vector<std::byte>& bytes) {
  MR_ASSIGN_OR_RETURN(const Contents contents, checked(bytes, layout()));
  SequenceState restored(pool_);  // blocks of its own: the present ones may be shared
  const std::byte* from = bytes.data() + head_bytes(layout());
  const std::int64_t used = blocks_for(contents.length);
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    if (group(g).is_state()) continue;
    restored.tables_[g].blocks.assign(static_cast<std::size_t>(contents.first[g]), nullptr);
    restored.tables_[g].first = contents.first[g];
  }
  Status status = used > 0 ? restored.reserve_states() : Status();
  if (status.ok()) status = restored.grow(used);
  for (std::size_t g = 0; g < tables_.size() && status.ok(); ++g) {
    if (!group(g).ends || contents.first[g] == 0 || used == 0) continue;
    const Expected<std::byte*> first = pool_->allocate(g);
    status = first.status();
    if (first.ok()) restored.tables_[g].blocks[0] = *first;
  }
  if (!status.ok()) return status.with_context(fmt::format("no room to remember {} tokens", contents.length));
  for (std::size_t g = 0; g < tables_.size(); ++g)
    for (const std::int64_t i : written_blocks(group(g), contents.first[g], used)) {
      MR_RETURN_IF_ERROR(pool_->write(g, group(g).is_state() ? restored.states_[g].next : restored.block(g, i), from));
      from += group(g).block_bytes();
    }
  restored.set_length(contents.length);
  *this = std::move(restored);
  return {};
}

}  // namespace millrace::kv
