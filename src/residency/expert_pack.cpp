#include "residency/expert_pack.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "storage/storage.h"

namespace millrace::residency {
namespace {

constexpr std::string_view kMagic = "MRPACK01";
constexpr std::size_t kIdentity = 32, kMostPath = 4096, kMostStripes = 64;
constexpr std::uint64_t kBlock = storage::kMaxAlignment, kPartAlignment = 32, kMostHeader = 64 * kMiB;

/// Where an expert lies.
struct Room {
  std::size_t stripe = 0;
  std::uint64_t offset = 0;  // behind the stripe's header
};

/// Bytes of an expert in a pack, and where its parts begin.
std::uint64_t place_parts(const Unit& expert, std::vector<std::uint64_t>& begins) {
  std::uint64_t at = 0;
  begins.clear();
  for (const Part& part : expert.parts) {
    begins.push_back(at);
    at = round_up(at + part.bytes(), kPartAlignment);
  }
  return at;
}

/// By expert, and the bytes of data of each stripe.
std::vector<Room> lay_out(const UnitTable& units, std::size_t stripes, std::vector<std::uint64_t>& data_bytes) {
  std::vector<Room> rooms;
  std::vector<std::uint64_t> begins;
  data_bytes.assign(stripes, 0);
  for (const Unit& unit : units.units()) {
    if (unit.kind != UnitKind::expert) continue;
    const std::size_t stripe = rooms.size() % stripes;
    rooms.push_back({stripe, data_bytes[stripe]});
    data_bytes[stripe] += round_up(place_parts(unit, begins), kBlock);
  }
  return rooms;
}

std::uint64_t header_bytes(std::size_t number, std::size_t experts, std::span<const std::string> paths) {
  std::uint64_t bytes = kMagic.size() + kIdentity + 2 * sizeof(std::uint32_t) + 3 * sizeof(std::uint64_t);
  if (number == 0) {
    bytes += experts * sizeof(std::uint64_t);
    for (std::size_t i = 1; i < paths.size(); ++i) bytes += sizeof(std::uint32_t) + paths[i].size();
  }
  return round_up(bytes, kBlock);
}

template <typename T>
void append(std::string& to, T number) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &number, sizeof(T));
  to.append(bytes, sizeof(T));
}

struct Header {
  std::string identity;
  std::uint32_t stripes = 0, number = 0;
  std::uint64_t experts = 0, file_bytes = 0;
  std::vector<std::uint64_t> checksums;
  std::vector<std::string> further;  // paths

  std::string bytes() const {
    std::string out(kMagic);
    out += identity;
    append(out, stripes);
    append(out, number);
    append(out, experts);
    append(out, file_bytes);
    for (const std::uint64_t sum : checksums) append(out, sum);
    for (const std::string& path : further) {
      append(out, static_cast<std::uint32_t>(path.size()));
      out += path;
    }
    append(out, std::uint64_t{XXH3_64bits(out.data(), out.size())});
    out.resize(round_up(out.size(), kBlock));
    return out;
  }
};

Status damaged(const std::string& path, std::string_view what) {
  return error(Code::corrupt, "{} is damaged ({}): remove it, or make it anew with `millrace pack`",
               modelfile::escape(path), what);
}

/// The header of a stripe, held to its checksum, to `number`, and to the file's size.
Expected<Header> read_header(const std::string& path, std::size_t number, std::size_t experts) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  std::string read;
  const auto take = [&](void* out, std::size_t bytes) {
    if (bytes > size - read.size() || read.size() + bytes > kMostHeader) return damaged(path, "it ends early");
    const std::size_t at = read.size();
    read.resize(at + bytes);
    MR_RETURN_IF_ERROR(file.read_at(at, std::as_writable_bytes(std::span(read).subspan(at))));
    std::memcpy(out, read.data() + at, bytes);
    return Status();
  };
  Header header;
  char magic[8];
  header.identity.resize(kIdentity);
  MR_RETURN_IF_ERROR(take(magic, sizeof magic));
  if (std::string_view(magic, sizeof magic) != kMagic) return damaged(path, "it does not begin as a pack does");
  MR_RETURN_IF_ERROR(take(header.identity.data(), kIdentity));
  MR_RETURN_IF_ERROR(take(&header.stripes, sizeof header.stripes));
  MR_RETURN_IF_ERROR(take(&header.number, sizeof header.number));
  MR_RETURN_IF_ERROR(take(&header.experts, sizeof header.experts));
  MR_RETURN_IF_ERROR(take(&header.file_bytes, sizeof header.file_bytes));
  if (header.stripes < 1 || header.stripes > kMostStripes || header.number != number)
    return damaged(path, "another part of it was expected");
  if (header.experts != experts) return damaged(path, "it has other experts");
  if (header.file_bytes != size) return damaged(path, "its size is not what it was");
  if (number == 0) {
    header.checksums.resize(experts);
    MR_RETURN_IF_ERROR(take(header.checksums.data(), experts * sizeof(std::uint64_t)));
    for (std::uint32_t i = 1; i < header.stripes; ++i) {
      std::uint32_t length = 0;
      MR_RETURN_IF_ERROR(take(&length, sizeof length));
      if (length > kMostPath) return damaged(path, "a path is too long");
      std::string further(length, '\0');
      MR_RETURN_IF_ERROR(take(further.data(), length));
      header.further.push_back(std::move(further));
    }
  }
  const std::uint64_t want = XXH3_64bits(read.data(), read.size());
  std::uint64_t sum = 0;
  MR_RETURN_IF_ERROR(take(&sum, sizeof sum));
  if (sum != want) return damaged(path, "its header's checksum differs");
  return header;
}

/// A file that is written aside, and put in place when whole.
struct Aside {
  std::string path, part;
  modelfile::File file;

  Aside() = default;
  Aside(Aside&&) = default;
  Aside& operator=(Aside&&) = default;
  ~Aside() {
    std::error_code ignored;
    if (!part.empty() && file.valid()) std::filesystem::remove(part, ignored);
  }
  Status put() {
    MR_RETURN_IF_ERROR(file.sync());
    std::error_code failed;
    std::filesystem::rename(part, path, failed);
    if (failed)
      return error(Code::io_error, "{}: cannot be put in place: {}", modelfile::escape(path), failed.message());
    part.clear();
    return {};
  }
};

}  // namespace

Status write_pack(const std::string& path, const UnitTable& units, const std::vector<std::string>& files,
                  std::string_view identity, const PackWriting& writing) {
  if (units.experts() == 0) return error(Code::unsupported, "the model has no experts to pack");
  if (identity.size() != kIdentity) return error(Code::internal, "an identity of {} characters", identity.size());
  namespace fs = std::filesystem;
  std::vector<std::string> paths{path};
  for (const std::string& folder : writing.folders)
    paths.push_back(
        fs::absolute(fs::path(folder) / fmt::format("{}.{}", fs::path(path).filename().string(), paths.size()))
            .string());
  if (paths.size() > kMostStripes) return error(Code::invalid_argument, "a pack has {} stripes at most", kMostStripes);
  for (const std::string& one : paths) MR_RETURN_IF_ERROR(modelfile::check_output(one, files));
  std::vector<modelfile::File> sources;
  for (const std::string& file : files) {
    MR_ASSIGN_OR_RETURN(modelfile::File source, modelfile::File::open_read(file));
    sources.push_back(std::move(source));
  }
  std::vector<std::uint64_t> data_bytes;
  const std::vector<Room> rooms = lay_out(units, paths.size(), data_bytes);
  std::vector<Aside> outs(paths.size());
  std::vector<std::uint64_t> begins, headers;
  std::uint64_t total = 0, done = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    headers.push_back(header_bytes(i, rooms.size(), paths));
    outs[i].path = paths[i];
    outs[i].part = paths[i] + ".part";
    MR_RETURN_IF_ERROR(modelfile::check_replaceable(outs[i].path));
    MR_ASSIGN_OR_RETURN(outs[i].file, modelfile::File::create(outs[i].part));
    MR_RETURN_IF_ERROR(outs[i].file.reserve(headers[i] + data_bytes[i]));
    total += data_bytes[i];
  }
  Header header;
  header.identity = identity;
  header.stripes = static_cast<std::uint32_t>(paths.size());
  header.experts = rooms.size();
  std::vector<std::byte> expert;
  for (const Unit& unit : units.units()) {
    if (unit.kind != UnitKind::expert) continue;
    const Room& room = rooms[header.checksums.size()];
    expert.assign(round_up(place_parts(unit, begins), kBlock), std::byte{0});
    for (std::size_t p = 0; p < unit.parts.size(); ++p) {
      const Part& part = unit.parts[p];
      MR_RETURN_IF_ERROR(sources[static_cast<std::size_t>(part.file)].read_at(
          part.offset, std::span(expert).subspan(begins[p], part.bytes())));
    }
    // Of the weights alone: what lies between parts is not read by anybody.
    std::uint64_t sum = 0;
    for (std::size_t p = 0; p < unit.parts.size(); ++p)
      sum = XXH3_64bits_withSeed(expert.data() + begins[p], unit.parts[p].bytes(), sum);
    header.checksums.push_back(sum);
    MR_RETURN_IF_ERROR(outs[room.stripe].file.write_at(headers[room.stripe] + room.offset, expert));
    done += expert.size();
    if (writing.progress && !writing.progress(done, total)) return error(Code::cancelled, "stopped");
  }
  for (std::size_t i = outs.size(); i-- > 0;) {  // the first one last: it names the others
    Header own;
    own.identity = header.identity;
    own.stripes = header.stripes;
    own.number = static_cast<std::uint32_t>(i);
    own.experts = header.experts;
    own.file_bytes = headers[i] + data_bytes[i];
    if (i == 0) {
      own.checksums = header.checksums;
      own.further.assign(paths.begin() + 1, paths.end());
    }
    const std::string bytes = own.bytes();
    if (bytes.size() != headers[i]) return error(Code::internal, "a header of {} bytes", bytes.size());
    MR_RETURN_IF_ERROR(outs[i].file.write_at(0, std::as_bytes(std::span(bytes))));
    MR_RETURN_IF_ERROR(outs[i].put());
  }
  return {};
}

Expected<std::unique_ptr<ExpertPack>> ExpertPack::open(const std::string& path, const UnitTable& units,
                                                       std::string_view identity) {
  const auto experts = static_cast<std::size_t>(units.experts());
  std::unique_ptr<ExpertPack> pack(new ExpertPack());
  MR_ASSIGN_OR_RETURN(Header first, read_header(path, 0, experts));
  if (first.identity != identity)
    return error(Code::invalid_argument,
                 "{} is stale: it was made for another model, or this one has changed since; make it anew with "
                 "`millrace pack`",
                 modelfile::escape(path));
  pack->paths_.push_back(path);
  pack->paths_.insert(pack->paths_.end(), first.further.begin(), first.further.end());
  std::vector<std::uint64_t> data_bytes;
  lay_out(units, pack->paths_.size(), data_bytes);
  for (std::size_t i = 0; i < pack->paths_.size(); ++i) {
    const std::string& one = pack->paths_[i];
    Header header = i == 0 ? first : Header();
    if (i > 0) {
      MR_ASSIGN_OR_RETURN(header, read_header(one, i, experts));
    }
    if (header.identity != first.identity || header.stripes != first.stripes)
      return damaged(one, fmt::format("it belongs to another pack than {}", modelfile::escape(path)));
    if (header.file_bytes != header_bytes(i, experts, pack->paths_) + data_bytes[i])
      return damaged(one, "its experts are others");
  }
  pack->checksums_ = std::move(first.checksums);
  pack->checked_.assign(experts, false);
  std::int32_t next = 0;
  for (const Unit& unit : units.units()) pack->number_of_.push_back(unit.kind == UnitKind::expert ? next++ : -1);
  return pack;
}

UnitTable ExpertPack::moved(const UnitTable& units, std::uint64_t tile_bytes, int first_file) const {
  UnitTable moved;
  std::vector<std::uint64_t> begins, data_bytes;
  const std::vector<Room> rooms = lay_out(units, paths_.size(), data_bytes);
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    Unit unit = units.units()[u];
    if (number_of_[u] >= 0) {
      const Room& room = rooms[static_cast<std::size_t>(number_of_[u])];
      place_parts(unit, begins);
      for (std::size_t p = 0; p < unit.parts.size(); ++p) {
        unit.parts[p].file = first_file + static_cast<int>(room.stripe);
        unit.parts[p].offset = header_bytes(room.stripe, checksums_.size(), paths_) + room.offset + begins[p];
      }
    }
    moved.add(std::move(unit));
  }
  moved.cut(tile_bytes);
  return moved;
}

Status ExpertPack::check(const UnitTable& units, std::int32_t tile, const std::byte* slot) {
  const Tile& what = units.tiles()[static_cast<std::size_t>(tile)];
  const std::int32_t number = number_of_[static_cast<std::size_t>(what.unit)];
  if (number < 0 || checked_[static_cast<std::size_t>(number)]) return {};
  std::uint64_t sum = 0;
  for (const Segment& segment : what.segments)
    sum = XXH3_64bits_withSeed(slot + segment.slot_offset, segment.bytes, sum);
  const Unit& unit = units.units()[static_cast<std::size_t>(what.unit)];
  if (sum != checksums_[static_cast<std::size_t>(number)])
    return damaged(paths_[static_cast<std::size_t>(number) % paths_.size()],
                   fmt::format("expert {} of layer {} is not what it was", unit.expert, unit.layer));
  checked_[static_cast<std::size_t>(number)] = true;
  return {};
}

}  // namespace millrace::residency
