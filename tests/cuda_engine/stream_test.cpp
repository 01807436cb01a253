// The ring through which layers cross to the device, by itself: what launches find behind the table's entries when the
// device is late, with and without units that are kept in spare memory, and where some passes need only a part of them.

#include "residency/gpu/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "cuda_engine/on_gpu.h"
#include "cuda_engine/stall.h"
#include "kernels/gpu/ops.h"

namespace millrace::residency {
namespace {

namespace gpu = kernels::gpu;

constexpr std::int32_t kGroups = 6, kCols = 1024, kRows = 8192;
constexpr std::uint64_t kGroupBytes = std::uint64_t{kCols} * kRows * sizeof(float);  // crosses in 0.6 ms

template <typename T>
void take(T& to, Expected<T> made) {
  ASSERT_TRUE(made.ok()) << made.status().message();
  to = std::move(*made);
}

class WeightStream : public engine::test::OnGpu {
 protected:
  /// Units of one group each, of which the first `kept` have spare memory. own: by group, how many of its rows a pass
  /// needs that is not whole; all, half or none.
  void open(std::uint64_t ring_groups, std::uint64_t kept, const std::vector<std::int32_t>& own) {
    own_ = own;
    std::vector<DeviceStream::Group> groups;
    std::vector<SpareUnits::Candidate> candidates;
    for (std::int32_t g = 0; g < kGroups; ++g) {
      std::byte* const bytes = host_.data() + static_cast<std::uint64_t>(g) * kGroupBytes;
      const auto entry = static_cast<std::size_t>(g);
      const std::uint64_t needed = static_cast<std::uint64_t>(own[entry]) * kCols * sizeof(float);
      groups.push_back({g, false, entry, kGroupBytes, needed, 0, {{bytes, 0, 0, kGroupBytes, needed, 0}}});
      candidates.push_back({entry, 1, kGroupBytes, false});
    }
    stream_.reset();
    vram_ = std::make_unique<Budget>(kept * device::allocation_bytes(kGroupBytes));
    take(stream_, DeviceStream::create(std::move(groups), ring_.data(), ring_groups * kGroupBytes,
                                       reinterpret_cast<const std::byte**>(table_.data()), nullptr, *backend_, nullptr,
                                       kept == 0 ? nullptr : std::make_unique<SpareUnits>(candidates, *vram_, 0)));
  }

  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    take(backend_, storage::open_backend({MILLRACE_SOURCE_DIR "/README.md"}, {}));
    take(host_, device::PinnedBuffer::allocate(kGroups * kGroupBytes));
    for (std::int32_t g = 0; g < kGroups; ++g)
      std::fill_n(reinterpret_cast<float*>(host_.data()) + std::int64_t{g} * kCols * kRows, kCols * kRows,
                  static_cast<float>(g));
    take(ring_, device::DeviceBuffer::allocate(kGroups * kGroupBytes));
    take(table_, device::DeviceBuffer::allocate(kGroups * sizeof(std::byte*)));
    const std::int32_t ends[] = {0, kRows - 1, 0, kRows / 2 - 1};
    take(tokens_, device::DeviceBuffer::allocate(sizeof ends));
    ASSERT_TRUE(device::write_device(tokens_.data(), ends, sizeof ends).ok());
    take(found_, device::DeviceBuffer::allocate(kGroups * 2 * kCols * sizeof(float)));
    take(compute_, device::Stream::create());
  }

  /// The first and last row that each group has in this pass, as a launch reads them that comes so much later.
  void pass(bool whole, const std::vector<int>& microseconds) {
    ASSERT_TRUE(device::clear_device(found_).ok());
    ASSERT_TRUE(stream_->begin_pass(whole).ok());
    for (std::int32_t g = 0; g < kGroups; ++g) {
      const auto group = static_cast<std::size_t>(g);
      ASSERT_TRUE(stream_->acquire(group, compute_).ok());
      stall(compute_, std::chrono::microseconds(microseconds[group]));
      if (!whole && own_[group] == 0) continue;
      const gpu::Matrix matrix{reinterpret_cast<const std::byte* const*>(table_.data()) + g, DType::f32, kRows};
      const auto* ends =
          reinterpret_cast<const std::int32_t*>(tokens_.data()) + (whole || own_[group] == kRows ? 0 : 2);
      ASSERT_TRUE(
          gpu::embed(matrix, ends, 2, kCols, reinterpret_cast<float*>(found_.data()) + g * 2 * kCols, compute_).ok());
    }
    ASSERT_TRUE(stream_->end_pass(compute_).ok());
    ASSERT_TRUE(compute_.synchronise().ok());
    std::vector<float> found(kGroups * 2 * kCols);
    ASSERT_TRUE(device::read_device(found.data(), found_.data(), found_.bytes()).ok());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t group = i / (2 * kCols);
      const float wanted = whole || own_[group] > 0 ? static_cast<float>(group) : 0.0f;
      ASSERT_EQ(found[i], wanted) << "float " << i % (2 * kCols) << " of group " << group;
    }
  }

  std::vector<std::int32_t> own_;
  std::unique_ptr<storage::Backend> backend_;
  device::PinnedBuffer host_;
  device::DeviceBuffer ring_, table_, tokens_, found_;
  device::Stream compute_;
  std::unique_ptr<Budget> vram_;
  std::unique_ptr<DeviceStream> stream_;
};

TEST_F(WeightStream, LaunchesFindTheirWeightsHoweverLateTheyAre) {
  std::mt19937 random(7);
  const std::vector<std::int32_t> all(kGroups, kRows), parts = {kRows, 0, 0, kRows / 2, 0, kRows};
  for (const bool splits : {false, true}) {
    for (const std::uint64_t ring : {2, 3, 4, 6}) {
      for (const std::uint64_t kept : {0, 1, 3, 6}) {
        if (splits && kept > 0) continue;  // who computes does not change with the memory that is free
        SCOPED_TRACE(::testing::Message() << "room for " << ring << " of " << kGroups << ", " << kept << " kept"
                                          << (splits ? ", in parts" : ""));
        open(ring, kept, splits ? parts : all);
        for (int i = 0; i < 25 && !HasFatalFailure(); ++i) {
          std::vector<int> late(kGroups);
          for (int& microseconds : late) microseconds = static_cast<int>(random() % 1000);
          pass(!splits || random() % 3 == 0, late);
        }
        if (HasFatalFailure()) return;
        EXPECT_EQ(kept == 0 ? 0 : stream_->spare()->kept_units(), static_cast<std::int64_t>(kept));
      }
    }
  }
}

}  // namespace
}  // namespace millrace::residency
