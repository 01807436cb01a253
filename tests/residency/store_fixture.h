// A real file of known bytes, a small model cut into tiles over it, plans made by hand, and backends that record.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/os/file.h"
#include "residency/plan.h"
#include "residency/unit.h"
#include "residency/weight_store.h"
#include "storage/storage.h"

namespace millrace::residency::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasuresMemory = false;  // shadow memory counts too
#else
constexpr bool kMeasuresMemory = true;
#endif

/// A file whose byte at each offset is known, removed at the end.
class WeightFile {
 public:
  explicit WeightFile(std::uint64_t bytes) : bytes_(bytes) {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("millrace-residency-{}-{}", getpid(), count++);
    std::ofstream out(path_, std::ios::binary);
    std::vector<char> block(1 << 16);
    for (std::uint64_t at = 0; at < bytes; at += block.size()) {
      for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(byte_at(at + i));
      out.write(block.data(), static_cast<std::streamsize>(std::min<std::uint64_t>(block.size(), bytes - at)));
    }
    EXPECT_TRUE(out.good());
  }
  ~WeightFile() { std::filesystem::remove(path_); }
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  static std::uint8_t byte_at(std::uint64_t offset) {
    std::uint64_t x = (offset >> 3) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return static_cast<std::uint8_t>(x >> ((offset & 7) * 8));
  }
  std::string path() const { return path_.string(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::uint64_t bytes_;
};

struct ModelShape {
  int layers = 4, experts = 0;
  std::int64_t dim = 96, trunk_rows = 200, expert_rows = 40, vocab = 300;
  bool tied = false;
  std::int64_t layer_rows = 0;     // of a second table, behind the embedding
  std::int64_t rows_of_token = 1;  // of it
  std::uint64_t tile_bytes = 32 << 10;
};

/// The units of a small f32 model whose tensors lie in the file as a GGUF lays them: embedding, then layer by layer
/// (experts as slices of three stacked tensors), then the head. Offsets are multiples of 32 and of nothing more.
inline UnitTable make_units(const ModelShape& shape, std::uint64_t* file_bytes) {
  UnitTable units;
  std::uint64_t at = 4096 + 32 * 7;
  const auto part = [&](std::string name, std::int64_t rows) {
    Part p{std::move(name), DType::f32, rows, shape.dim, 0, at};
    at = round_up(at + p.bytes(), 32);
    return p;
  };
  const auto unit = [&](UnitKind kind, int layer, std::vector<Part> parts, int expert = -1) {
    Unit u;
    u.kind = kind;
    u.layer = layer;
    u.expert = expert;
    u.by_rows = kind == UnitKind::embedding && (!shape.tied || units.units().size() == 1);
    u.parts = std::move(parts);
    if (u.parts.front().name.starts_with("per_layer")) u.rows_of_token = shape.rows_of_token;
    units.add(std::move(u));
  };
  unit(UnitKind::embedding, -1, {part("token_embd.weight", shape.vocab)});
  if (shape.layer_rows > 0) unit(UnitKind::embedding, -1, {part("per_layer_token_embd.weight", shape.layer_rows)});
  for (int l = 0; l < shape.layers; ++l) {
    std::vector<Part> trunk = {part(fmt::format("blk.{}.attn_norm.weight", l), 1),
                               part(fmt::format("blk.{}.attn_q.weight", l), shape.trunk_rows),
                               part(fmt::format("blk.{}.ffn_norm.weight", l), 1)};
    std::vector<Part> stacks;
    if (shape.experts > 0) {
      for (const char* name : {"gate", "up", "down"})
        stacks.push_back(part(fmt::format("blk.{}.ffn_{}_exps.weight", l, name), shape.experts * shape.expert_rows));
    } else {
      trunk.push_back(part(fmt::format("blk.{}.ffn_gate.weight", l), shape.trunk_rows));
      trunk.push_back(part(fmt::format("blk.{}.ffn_up.weight", l), shape.trunk_rows));
    }
    unit(UnitKind::trunk, l, std::move(trunk));
    for (int e = 0; e < shape.experts; ++e) {
      std::vector<Part> slices;
      for (const Part& stack : stacks) {
        Part slice = stack;
        slice.rows = shape.expert_rows;
        slice.offset += static_cast<std::uint64_t>(e) * slice.bytes();
        slices.push_back(slice);
      }
      unit(UnitKind::expert, l, std::move(slices), e);
    }
  }
  std::vector<Part> last = {part("output_norm.weight", 1)};
  if (!shape.tied) last.push_back(part("output.weight", shape.vocab));
  unit(shape.tied ? UnitKind::trunk : UnitKind::head, -1, std::move(last));
  units.cut(shape.tile_bytes);
  *file_bytes = at + 1000;
  return units;
}

/// Ordered tiles in the order a pass uses them.
inline std::vector<std::int32_t> pass_order(const UnitTable& units) {
  std::vector<std::int32_t> order, embedding;
  for (std::size_t t = 0; t < units.tiles().size(); ++t) {
    const Unit& unit = units.units()[units.tiles()[t].unit];
    if (unit.kind == UnitKind::trunk || unit.kind == UnitKind::head) order.push_back(static_cast<std::int32_t>(t));
    if (unit.is_tied_head()) embedding.push_back(static_cast<std::int32_t>(t));
  }
  order.insert(order.end(), embedding.begin(), embedding.end());
  return order;
}

inline std::vector<std::int32_t> expert_tiles(const UnitTable& units) {
  std::vector<std::int32_t> tiles;
  for (std::size_t t = 0; t < units.tiles().size(); ++t)
    if (units.units()[units.tiles()[t].unit].kind == UnitKind::expert) tiles.push_back(static_cast<std::int32_t>(t));
  return tiles;
}

/// A plan by hand: every `resident_every`-th ordered tile at home (0: none, 1: all), the rest through the ring.
inline Plan make_test_plan(const UnitTable& units, int ring_slots, int expert_slots, int resident_every) {
  Plan plan;
  plan.homes.resize(units.units().size(), Tier::disk);
  plan.resident_tiles.assign(units.tiles().size(), false);
  plan.embedding_rows_from_disk = true;
  plan.row_scratch_bytes = 16384;
  const auto order = pass_order(units);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tile& tile = units.tiles()[order[i]];
    if (resident_every > 0 && i % resident_every == 0) {
      plan.resident_tiles[order[i]] = true;
      plan.resident_bytes += tile.slot_bytes;
    } else {
      plan.ring_slot_bytes = std::max(plan.ring_slot_bytes, tile.slot_bytes);
    }
  }
  plan.ring_slots = plan.ring_slot_bytes == 0 ? 0 : ring_slots;
  for (const std::int32_t t : expert_tiles(units))
    plan.expert_slot_bytes = std::max(plan.expert_slot_bytes, units.tiles()[t].slot_bytes);
  plan.expert_slots = plan.expert_slot_bytes == 0 ? 0 : expert_slots;
  return plan;
}

/// Every byte of every segment against the file.
inline void expect_exact(const UnitTable& units, const Lease& lease) {
  const Tile& tile = units.tiles()[lease.tile()];
  for (std::size_t i = 0; i < tile.segments.size(); ++i) {
    const Segment& segment = tile.segments[i];
    const std::byte* data = lease.segment(i);
    std::uint64_t wrong = 0;
    for (std::uint64_t b = 0; b < segment.bytes; ++b)
      wrong += std::to_integer<std::uint8_t>(data[b]) != WeightFile::byte_at(segment.file_offset + b) ? 1 : 0;
    ASSERT_EQ(wrong, 0u) << "tile " << lease.tile() << " segment " << i;
  }
}

/// Passes reads on and remembers them.
class RecordingBackend : public storage::Backend {
 public:
  explicit RecordingBackend(std::unique_ptr<storage::Backend> inner) : inner_(std::move(inner)) {}
  const storage::BackendTraits& traits() const override { return inner_->traits(); }
  void submit(std::span<const storage::Read> reads, storage::Completion& completion) override {
    {
      std::lock_guard lock(mutex_);
      for (const storage::Read& read : reads) ++reads_[read.offset];
    }
    inner_->submit(reads, completion);
  }
  const std::byte* in_place(int file, std::uint64_t offset, std::uint64_t bytes) const override {
    return inner_->in_place(file, offset, bytes);
  }
  Status health() const override { return inner_->health(); }
  storage::Counters counters() const override { return inner_->counters(); }

  int reads_of(const Tile& tile) const {
    std::lock_guard lock(mutex_);
    const auto it = reads_.find(tile.spans.front().file_offset);
    return it == reads_.end() ? 0 : it->second;
  }
  void forget() {
    std::lock_guard lock(mutex_);
    reads_.clear();
  }

 private:
  std::unique_ptr<storage::Backend> inner_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, int> reads_;  // by offset
};

/// Holds every read until it is let go, so that a test decides what has come and what is still on its way.
class GatedBackend : public storage::Backend {
 public:
  explicit GatedBackend(const std::string& path) : file_(os::File::open(path).value()) {}
  const storage::BackendTraits& traits() const override { return traits_; }
  void submit(std::span<const storage::Read> reads, storage::Completion& completion) override {
    completion.expect(static_cast<std::uint32_t>(reads.size()));
    for (const storage::Read& read : reads) held_.push_back({read, &completion});
    if (open_gate_) let_go();
  }
  Status health() const override { return {}; }
  storage::Counters counters() const override { return {}; }

  std::size_t held() const { return held_.size(); }
  std::vector<std::uint64_t> held_offsets() const {
    std::vector<std::uint64_t> offsets;
    for (const Held& h : held_) offsets.push_back(h.read.offset);
    return offsets;
  }
  void let_go(Status status = {}) {
    for (const Held& h : std::exchange(held_, {})) {
      if (status.ok()) {
        std::vector<std::byte> bytes(h.read.bytes);  // the destination may have no memory yet, which the system refuses
        const auto got = file_.read_at(h.read.offset, bytes);
        EXPECT_TRUE(got.ok() && *got == bytes.size());
        std::memcpy(h.read.destination, bytes.data(), bytes.size());
      }
      h.completion->finish_one(status);
    }
  }
  void open_gate(bool open) {
    open_gate_ = open;
    if (open) let_go();
  }

 private:
  struct Held {
    storage::Read read;
    storage::Completion* completion;
  };
  os::File file_;
  bool open_gate_ = false;
  std::vector<Held> held_;
  storage::BackendTraits traits_{"gated", 1, false};
};

/// File, units and a recording backend over a real one.
struct Model {
  UnitTable units;
  std::unique_ptr<WeightFile> file;
  std::unique_ptr<RecordingBackend> backend;
  Budget budget{1ull << 40};

  explicit Model(const ModelShape& shape, storage::BackendKind kind = storage::BackendKind::pread_buffered) {
    std::uint64_t bytes = 0;
    units = make_units(shape, &bytes);
    file = std::make_unique<WeightFile>(bytes);
    storage::OpenOptions options;
    options.kind = kind;
    auto opened = storage::open_backend({file->path()}, options);
    if (opened.ok())
      backend = std::make_unique<RecordingBackend>(std::move(opened).value());
    else
      why_not = opened.status().message();
  }
  std::string why_not;

  std::unique_ptr<WeightStore> store(const Plan& plan, const StoreOptions& options = {}) {
    auto made = WeightStore::create(units, plan, *backend, budget, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(made).value() : nullptr;
  }
};

}  // namespace millrace::residency::test
