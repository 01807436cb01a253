// 24 scenarios of DirectStorage, a row each: what is read of a file of known bytes, what the library does meanwhile,
// and how the read must end. Each runs twice over the stand-in for the library: to RAM, and to a device through
// Direct3D's heaps.
#include <optional>
#include <thread>

#include "storage/win32/direct3d.h"
#include "storage/win32/directstorage_fixture.h"

namespace millrace::storage {
namespace {

enum class Event { none, cut_file, library_fails, close, close_other };

struct Scenario {
  const char* name;
  std::uint64_t file_bytes, offset, bytes;
  Code code = Code::ok;
  const char* words = "";  // part of the message
  Event event = Event::none;
  HRESULT result = S_OK;  // of library_fails: the library's
  bool lost = false;      // the backend reads nothing afterwards
};

constexpr auto kFails = Event::library_fails;
const Scenario kScenarios[] = {
    {"AFileOf4KiB", 4 * kKiB, 0, 4 * kKiB},
    {"OneByte", 4 * kKiB, 4095, 1},
    {"AFileOf64KiBFromAnOddOffset", 64 * kKiB, 1, 64 * kKiB - 1},
    {"OneRequestExactly", 2 * kMiB, 1 * kMiB, 1 * kMiB},
    {"AcrossTwoRequests", 2 * kMiB, 4096, 1 * kMiB + 1},
    {"AFileOf4MiBAndAByte", 4 * kMiB + 1, 0, 4 * kMiB + 1},
    {"AFileLargerThanTheStagingBuffer", 33 * kMiB, 0, 33 * kMiB},
    {"AFileOf64MiBFromAnOddOffset", 64 * kMiB, 12'345, 64 * kMiB - 12'345},
    {"AFileOf256MiB", 256 * kMiB, 0, 256 * kMiB},
    {"TheMiddleOf256MiB", 256 * kMiB, 128 * kMiB - 7, 5 * kMiB},
    {"TheLastByteOfAnOddFile", 100'001, 100'000, 1},
    {"TheLastBlockOfAnOddFile", 100'001, 98'304, 1697},
    {"AByteTooMany", 100'001, 99'000, 1002, Code::io_error, "the file ends at byte 100001"},
    {"FromTheEnd", 100'001, 100'001, 1, Code::io_error, "the file ends at byte 100001"},
    {"FromFarBehindTheEnd", 4 * kKiB, 256 * kMiB, 4 * kKiB, Code::io_error, "the file ends at byte 4096"},
    {"AFileThatWasCut", 200'000, 90'000, 50'000, Code::io_error, "(0x89240007)", Event::cut_file},
    {"ARequestThatIsTooLarge", 2 * kMiB, 0, 2 * kMiB, Code::internal, "(0x89240008)", kFails,
     dstorage::kRequestTooLarge},
    {"NoAnswerInTime", 2 * kMiB, 0, 2 * kMiB, Code::io_error, "did not answer in time", kFails, dstorage::kIoTimeout},
    {"NoMemory", 2 * kMiB, 0, 2 * kMiB, Code::out_of_budget, "", kFails, E_OUTOFMEMORY},
    {"AnErrorWithoutWords", 2 * kMiB, 0, 2 * kMiB, Code::io_error, "(0x892400ee)", kFails, dstorage::failure(0xee)},
    {"ALostDevice", 2 * kMiB, 0, 2 * kMiB, Code::io_error, "the GPU was lost", kFails, dstorage::kDeviceRemoved, true},
    {"Cancelled", 4 * kMiB, 0, 4 * kMiB, Code::cancelled, "", Event::close},
    {"CancelledInAnotherQueue", 4 * kMiB, 3, 3 * kMiB, Code::ok, "", Event::close_other},
    {"ALostDeviceFromAnOddOffset", 4 * kMiB, 77, 3 * kMiB, Code::io_error, "the GPU was lost", kFails,
     dstorage::kDeviceRemoved, true},
};
static_assert(std::size(kScenarios) == 24);

enum class Where { ram, device };

class DirectStorageScenarios : public DirectStorageTest,
                               public testing::WithParamInterface<std::tuple<Scenario, Where>> {
 protected:
  void SetUp() override {
    DirectStorageTest::SetUp();
    if (where() == Where::ram) return;
    auto found = Direct3D::open();
    if (!found.ok()) GTEST_SKIP() << found.status().message();
    direct3d_ = std::move(*found);
  }
  static const Scenario& scenario() { return std::get<0>(GetParam()); }
  static Where where() { return std::get<1>(GetParam()); }

  std::unique_ptr<Backend> opened(const std::string& path) {
    auto backend = where() == Where::ram
                       ? open_directstorage({path}, {})
                       : open_directstorage_to_device({path}, std::make_unique<DoubleImporter>(direct3d_.luid), {},
                                                      {.slot_bytes = 1 * kMiB, .slots = 4, .export_handles = false});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    return backend.ok() ? std::move(*backend) : nullptr;
  }

  /// Submits `read` and lets happen what the scenario is about.
  void happens(const std::string& path, const Read& read, Completion& completion) {
    const Scenario& now = scenario();
    if (now.event == Event::cut_file) std::filesystem::resize_file(path, now.file_bytes / 2);
    if (now.event == kFails)
      fake().fail_with = now.result, fake().fail_after = 1, fake().fail_count = now.lost ? 1000 : 1;
    fake().hold = now.event == Event::close || now.event == Event::close_other;
    const Destination unread(0, now.file_bytes);
    const Read cancelled = unread.read();
    Completion completion_of_other;
    std::unique_ptr<Backend> other;
    if (now.event == Event::close_other) {
      other = opened(path);
      ASSERT_NE(other, nullptr);
      other->submit({&cancelled, 1}, completion_of_other);
    }
    backend_->submit({&read, 1}, completion);
    if (!fake().hold) return;
    const std::int64_t queues = other != nullptr ? 2 : 1;
    while (fake().submits < queues) std::this_thread::yield();
    (other != nullptr ? other : backend_).reset();
    fake().hold = false;
    if (now.event == Event::close_other) {
      EXPECT_EQ(completion_of_other.wait().code(), Code::cancelled);
    }
  }
  Direct3D direct3d_;
};

INSTANTIATE_TEST_SUITE_P(All, DirectStorageScenarios,
                         testing::Combine(testing::ValuesIn(kScenarios), testing::Values(Where::ram, Where::device)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) == Where::ram ? "ToRam" : "ToDevice");
                         });

TEST_P(DirectStorageScenarios, EndsAsDocumented) {
  const Scenario& wanted = scenario();
  const TestFile file(wanted.file_bytes);
  backend_ = opened(file.path());
  ASSERT_NE(backend_, nullptr);
  const Destination to(wanted.offset, wanted.bytes);
  Completion completion;
  happens(file.path(), to.read(), completion);
  const Status status = completion.wait();
  EXPECT_EQ(status.code(), wanted.code) << status.message();
  EXPECT_NE(status.message().find(wanted.words), std::string::npos) << status.message();
  EXPECT_TRUE(to.guards_stand());
  if (wanted.code == Code::ok) {
    EXPECT_EQ(to.first_wrong(), wanted.bytes);
  }
  if (backend_ == nullptr) return;

  // What comes later: right bytes again, or a refusal where the device was lost.
  fake().fail_after = -1;
  const Destination later(0, 4 * kKiB);
  const Status again = read_now(*backend_, later.read());
  if (wanted.lost) {
    EXPECT_EQ(again.code(), Code::io_error);
    EXPECT_NE(again.message().find("start again"), std::string::npos) << again.message();
  } else {
    ASSERT_TRUE(again.ok()) << again.message();
    EXPECT_EQ(later.first_wrong(), 4 * kKiB);
  }
}

}  // namespace
}  // namespace millrace::storage
