// Headers of packs: any bytes are refused in one line, or the pack is read to its end without harm. The first byte says
// whether a file holds them as they are, or put into one that was written, where the checksum is then made to hold: a
// header that somebody wrote on purpose.
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/log.h"
#include "patched.h"
#include "residency/expert_pack.h"

namespace {

using namespace millrace;
using namespace millrace::residency;

constexpr std::string_view kModel = "0123456789abcdef0123456789abcdef";
constexpr std::int64_t kRows = 4, kCols = 32;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Setting {
  std::string folder, model, path;
  UnitTable units;
  std::vector<char> good;
  std::size_t checksum_at = 0;  // of the header: its last eight bytes before the padding

  Setting() {
    log::set_level(log::Level::off);
    char name[] = "/tmp/pack-fuzz-XXXXXX";
    check(mkdtemp(name) != nullptr);
    folder = name;
    model = folder + "/model";
    path = folder + "/model.pack";
    std::uint64_t offset = 0;
    for (int expert = 0; expert < 3; ++expert) {
      Unit unit;
      unit.kind = UnitKind::expert;
      unit.layer = 0;
      unit.expert = expert;
      for (const char* part : {"gate", "up", "down"}) {
        unit.parts.push_back({part, DType::f32, kRows, kCols, 0, offset});
        offset += unit.parts.back().bytes();
      }
      units.add(std::move(unit));
    }
    units.cut(1 << 20);
    std::ofstream(model, std::ios::binary) << std::string(offset, 'w');
    check(write_pack(path, units, {model}, kModel, {}).ok());
    std::ifstream file(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(file), {});
    for (std::size_t at = 8; at < 4096 && checksum_at == 0; ++at)
      if (const std::uint64_t sum = XXH3_64bits(good.data(), at); std::memcmp(&sum, good.data() + at, sizeof(sum)) == 0)
        checksum_at = at;
    check(checksum_at > 0);
  }
  ~Setting() { std::filesystem::remove_all(folder); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Setting setting;
  if (size < 3) return 0;
  std::vector<char> file(data + 3, data + size);
  if (data[0] % 4 != 0) {
    file = patched(setting.good, data, file);
    if (data[0] % 4 != 1) {
      const std::uint64_t sum = XXH3_64bits(file.data(), setting.checksum_at);
      std::memcpy(file.data() + setting.checksum_at, &sum, sizeof(sum));
    }
  }
  std::ofstream(setting.path, std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
  const auto pack = ExpertPack::open(setting.path, setting.units, kModel);
  if (!pack.ok()) {
    check(!pack.status().message().empty() && pack.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const UnitTable moved = (*pack)->moved(setting.units, 1 << 20, 1);
  check(moved.experts() == setting.units.experts());
  std::vector<std::byte> slot;
  for (std::size_t t = 0; t < moved.tiles().size(); ++t) {
    const Tile& tile = moved.tiles()[t];
    slot.assign(tile.slot_bytes, std::byte{'w'});
    for (const Span& span : tile.spans) {
      check(span.file_offset + span.bytes <= file.size());
      std::memcpy(slot.data() + span.slot_offset, file.data() + span.file_offset, span.bytes);
    }
    (void)(*pack)->check(moved, static_cast<std::int32_t>(t), slot.data());
  }
  return 0;
}
