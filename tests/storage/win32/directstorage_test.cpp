// DirectStorage over a stand-in for its library (fake_dstorage.cpp), which lies beside this program: scenarios of the
// backend, and of the rules that it relies on. What the real library does was never seen here.
#include "storage/win32/directstorage.h"

#include <array>
#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "storage/win32/direct3d.h"
#include "storage/win32/directstorage_fixture.h"
#include "storage/win32/directstorage_library.h"
#include "storage/win32/system.h"

namespace millrace::storage {
namespace {

namespace fs = std::filesystem;

std::string program_folder() {
  std::array<wchar_t, 1024> path{};
  GetModuleFileNameW(nullptr, path.data(), static_cast<DWORD>(path.size()));
  return fs::path(path.data()).parent_path().string();
}

/// An empty folder, gone when the test ends.
class Folder {
 public:
  explicit Folder(const char* name) : path_(fs::path(MILLRACE_BINARY_DIR) / name) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code in_use;  // a loaded DLL
    fs::remove_all(path_, in_use);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// ---- the library

TEST_F(DirectStorageTest, SaysWhatIsMissingAndThatItIsNotShipped) {
  const Folder empty("no_dstorage");
  const auto found = find_directstorage({.folder = empty.path().string()});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::unsupported);
  EXPECT_NE(found.status().message().find("dstoragecore.dll is neither in"), std::string::npos)
      << found.status().message();
  EXPECT_NE(found.status().message().find("not shipped with Millrace"), std::string::npos);
}

TEST_F(DirectStorageTest, AsksForBothOfItsLibraries) {
  const Folder half("half_dstorage");
  fs::copy_file(fs::path(program_folder()) / "dstorage.dll", half.path() / "dstorage.dll");
  const auto found = find_directstorage({.folder = half.path().string()});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::unsupported);
  EXPECT_NE(found.status().message().find("dstoragecore.dll"), std::string::npos) << found.status().message();
}

TEST_F(DirectStorageTest, LoadsNothingFromTheCurrentFolder) {
  const Folder planted("planted");
  fs::copy_file(fs::path(program_folder()) / "dstoragecore.dll", planted.path() / "planted.dll");
  const fs::path before = fs::current_path();
  fs::current_path(planted.path());
  EXPECT_EQ(load_system_library(L"planted.dll"), nullptr);
  // The usual order would have found it.
  const HMODULE usual = LoadLibraryW(L"planted.dll");
  EXPECT_NE(usual, nullptr);
  if (usual != nullptr) FreeLibrary(usual);
  fs::current_path(before);
}

TEST_F(DirectStorageTest, ConfiguresBeforeTheFirstFactory) {
  ASSERT_TRUE(find_directstorage().ok());
  EXPECT_EQ(fake().configured, 1);
  EXPECT_EQ(fake().no_telemetry, 1);
  EXPECT_EQ(fake().configured_too_late, 0);
}

TEST_F(DirectStorageTest, WordsEveryErrorWithItsNumber) {
  for (const std::uint32_t number :
       {3u, 5u, 7u, 8u, 9u, 0x0au, 0x0bu, 0x0fu, 0x10u, 0x16u, 0x1bu, 0x1fu, 0x21u, 0x40u}) {
    const std::string words = result_words(dstorage::failure(number));
    EXPECT_TRUE(words.ends_with(fmt::format("(0x{:08x})", 0x89240000u | number))) << words;
    EXPECT_EQ(words.find("without words"), std::string::npos) << words;
  }
  EXPECT_EQ(result_status(dstorage::kEndOfFile, "x").code(), Code::io_error);
  EXPECT_EQ(result_status(dstorage::kUnsupportedVolume, "x").code(), Code::unsupported);
  EXPECT_EQ(result_status(E_OUTOFMEMORY, "x").code(), Code::out_of_budget);
  EXPECT_EQ(result_status(HRESULT_FROM_WIN32(ERROR_FILE_NOT_FOUND), "x").code(), Code::not_found);
  EXPECT_EQ(result_status(dstorage::failure(0xee), "x").code(), Code::io_error);
  EXPECT_TRUE(result_status(S_OK, "x").ok());
}

// ---- reads

class DirectStorageSizes : public DirectStorageTest, public testing::WithParamInterface<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Sizes, DirectStorageSizes,
                         testing::Values(4 * kKiB, 64 * kKiB, 1 * kMiB, 4 * kMiB + 1, 33 * kMiB, 64 * kMiB, 256 * kMiB),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(DirectStorageSizes, ReadsWholeFiles) {
  const TestFile file(GetParam());
  open(file.path());
  expect_right(0, GetParam());
  EXPECT_LE(fake().largest, static_cast<std::int64_t>(1 * kMiB));
}

TEST_F(DirectStorageTest, ReadsAnyOffsetAndLength) {
  constexpr std::uint64_t kBytes = 3 * kMiB + 777;
  const TestFile file(kBytes);
  open(file.path(), {.request_bytes = 64 * kKiB});
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t offset = random() % kBytes;
    expect_right(offset, 1 + random() % std::min<std::uint64_t>(kBytes - offset, i % 5 == 0 ? kBytes : 9000));
  }
}

TEST_F(DirectStorageTest, ReadsUpToTheEndAndNotBeyond) {
  const TestFile file(100'001);
  open(file.path());
  expect_right(99'000, 1001);
  const Destination beyond(99'000, 1002);
  const Status status = read_now(*backend_, beyond.read());
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("the file ends at byte 100001"), std::string::npos) << status.message();
}

TEST_F(DirectStorageTest, SaysThatAFileWasCut) {
  const TestFile file(200'000);
  open(file.path());
  fs::resize_file(file.path(), 100'000);
  const Destination to(90'000, 50'000);
  const Status status = read_now(*backend_, to.read());
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("truncated?"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("(0x89240007)"), std::string::npos) << status.message();
  EXPECT_EQ(backend_->health().code(), Code::io_error);
  expect_right(0, 90'000);
}

TEST_F(DirectStorageTest, CutsRequestsAtTheStagingBuffer) {
  const TestFile file(8 * kMiB + 5);
  open(file.path(), {.request_bytes = 256 * kMiB, .staging_bytes = 2u << 20});
  expect_right(1, 8 * kMiB + 4);
  EXPECT_LE(fake().largest, static_cast<std::int64_t>(2 * kMiB));
  EXPECT_EQ(fake().requests, 5);
}

TEST_F(DirectStorageTest, SubmitsABatchOnce) {
  const TestFile file(2 * kMiB);
  open(file.path(), {.queue_depth = 64, .request_bytes = 64 * kKiB});
  fake().hold = true;
  std::vector<Destination> destinations;
  std::vector<Read> reads;
  for (std::uint64_t i = 0; i < 20; ++i) {
    destinations.emplace_back(i * 100'000, 60'000);
    reads.push_back(destinations.back().read());
  }
  Completion completion;
  backend_->submit(reads, completion);
  while (fake().submits == 0) std::this_thread::yield();
  fake().hold = false;
  ASSERT_TRUE(completion.wait().ok());
  EXPECT_EQ(fake().submits, 1);
  EXPECT_EQ(fake().requests, 20);
  EXPECT_EQ(fake().statuses, 20);
  for (const Destination& to : destinations) EXPECT_EQ(to.first_wrong(), 60'000u);
}

TEST_F(DirectStorageTest, KeepsToItsDepthAndItsBytes) {
  const TestFile file(2 * kMiB);
  for (const auto& [depth, bytes, most] : {std::tuple{3, UINT64_MAX, 3}, {32, std::uint64_t{200'000}, 4}}) {
    fake().reset();
    open(file.path(), {.queue_depth = depth, .request_bytes = 64 * kKiB, .bytes_in_flight = bytes});
    fake().hold = true;
    const Destination to(0, 2 * kMiB);
    const Read read = to.read();
    Completion completion;
    backend_->submit({&read, 1}, completion);
    while (fake().submits == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(fake().requests, most);
    fake().hold = false;
    ASSERT_TRUE(completion.wait().ok());
    EXPECT_EQ(to.first_wrong(), 2 * kMiB);
    backend_.reset();
  }
}

TEST_F(DirectStorageTest, TwoQueuesReadSideBySide) {
  const TestFile first(3 * kMiB), second(3 * kMiB);
  open(first.path(), {.request_bytes = 64 * kKiB});
  auto other = open_directstorage({second.path(), first.path()}, {.request_bytes = 128 * kKiB});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(fake().queues, 2);
  EXPECT_EQ(fake().files, 3);
  const Destination here(5, 2 * kMiB), there(77, 2 * kMiB), also(3, 2 * kMiB);
  const Read reads[] = {there.read(0), also.read(1)};
  const Read read = here.read();
  Completion completion, completion_of_other;
  backend_->submit({&read, 1}, completion);
  (*other)->submit(reads, completion_of_other);
  EXPECT_TRUE(completion.wait().ok());
  EXPECT_TRUE(completion_of_other.wait().ok());
  for (const Destination* to : {&here, &there, &also}) EXPECT_EQ(to->first_wrong(), 2 * kMiB);
}

TEST_F(DirectStorageTest, PollsALibraryThatSetsNoEvent) {
  fake().old = true;
  const TestFile file(3 * kMiB);
  open(file.path());
  for (int i = 0; i < 5; ++i) expect_right(17, 2 * kMiB);
}

TEST_F(DirectStorageTest, ServesManyThreads) {
  const TestFile file(3 * kMiB);
  open(file.path(), {.queue_depth = 8, .request_bytes = 32 * kKiB});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < 30; ++i) {
        const Destination to(random() % (3 * kMiB - 100'000), 100'000);
        if (!read_now(*backend_, to.read()).ok() || to.first_wrong() != 100'000) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// ---- failures

TEST_F(DirectStorageTest, OneFailureFailsItsBatchAndNothingElse) {
  const TestFile file(1 * kMiB);
  open(file.path(), {.request_bytes = 64 * kKiB});
  fake().fail_with = dstorage::kIoTimeout;
  fake().fail_after = 5;
  const Destination to(0, 1 * kMiB);
  const Status status = read_now(*backend_, to.read());
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("reading 65536 bytes at 327680 of"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("did not answer in time"), std::string::npos) << status.message();
  expect_right(0, 1 * kMiB);
}

TEST_F(DirectStorageTest, ClosingCancelsAndBelievesNoEntry) {
  const TestFile file(4 * kMiB);
  open(file.path(), {.queue_depth = 4, .request_bytes = 64 * kKiB});
  fake().hold = true;
  const Destination to(0, 4 * kMiB);
  const Read read = to.read();
  Completion completion;
  backend_->submit({&read, 1}, completion);
  while (fake().submits == 0) std::this_thread::yield();
  backend_.reset();
  ASSERT_TRUE(completion.done());
  const Status status = completion.wait();
  EXPECT_EQ(status.code(), Code::cancelled) << status.message();
  EXPECT_EQ(fake().cancels, 1);
  EXPECT_EQ(fake().cancelled, 4);
}

TEST_F(DirectStorageTest, ALostDeviceEndsAllReads) {
  const TestFile file(1 * kMiB);
  open(file.path(), {.request_bytes = 64 * kKiB});
  fake().fail_with = dstorage::kDeviceRemoved;
  fake().fail_after = 0;
  fake().fail_count = 1000;
  const Destination to(0, 1 * kMiB);
  const Status status = read_now(*backend_, to.read());
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("the GPU was lost"), std::string::npos) << status.message();
  fake().fail_after = -1;
  const std::int64_t before = fake().requests;
  const Status later = read_now(*backend_, to.read());
  EXPECT_EQ(later.code(), Code::io_error);
  EXPECT_NE(later.message().find("start again"), std::string::npos) << later.message();
  EXPECT_EQ(fake().requests, before);  // nothing is asked of it any more
}

TEST_F(DirectStorageTest, NamesAFileThatIsNotThere) {
  const auto missing = open_directstorage({"/nowhere/model.gguf"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::not_found);
  EXPECT_EQ(open_directstorage({}).status().code(), Code::invalid_argument);
}

// ---- the staging buffer

TEST_F(DirectStorageTest, TheStagingBufferKeepsItsSizeWhileOneIsOpen) {
  const TestFile file(5 * kMiB);
  open(file.path(), {.request_bytes = 16 * kMiB, .staging_bytes = 4u << 20});
  EXPECT_EQ(fake().staging_bytes, static_cast<std::int64_t>(4 * kMiB));
  auto other = open_directstorage({file.path()}, {.request_bytes = 16 * kMiB, .staging_bytes = 16u << 20});
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_NE((*other)->traits().reason.find("staging buffer " + format_bytes(4 * kMiB)), std::string::npos)
      << (*other)->traits().reason;
  const Destination to(0, 5 * kMiB);
  ASSERT_TRUE(read_now(**other, to.read()).ok());
  EXPECT_EQ(to.first_wrong(), 5 * kMiB);
  EXPECT_LE(fake().largest, static_cast<std::int64_t>(4 * kMiB));
}

TEST_F(DirectStorageTest, TheStagingBufferChangesWhenAllAreClosed) {
  const TestFile file(5 * kMiB);
  open(file.path(), {.request_bytes = 16 * kMiB, .staging_bytes = 4u << 20});
  backend_.reset();
  open(file.path(), {.request_bytes = 16 * kMiB, .staging_bytes = 8u << 20});
  expect_right(0, 5 * kMiB);
  EXPECT_EQ(fake().largest, static_cast<std::int64_t>(5 * kMiB));
}

TEST_F(DirectStorageTest, RefusesAStagingBufferThatTheLibraryDoesNotTake) {
  const TestFile file(100);
  const auto refused = open_directstorage({file.path()}, {.staging_bytes = 4096});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::invalid_argument);
  EXPECT_NE(refused.status().message().find("(0x89240020)"), std::string::npos) << refused.status().message();
}

// ---- the rules themselves, as documented

class DirectStorageRules : public DirectStorageTest {
 protected:
  void SetUp() override {
    DirectStorageTest::SetUp();
    auto session = DirectStorageSession::open({}, dstorage::kUsualStagingBytes);
    ASSERT_TRUE(session.ok()) << session.status().message();
    session_ = std::move(*session);
    ASSERT_EQ(session_->factory().OpenFile(wide_path(file_.path()).c_str(), dstorage::kFileId, opened_.out()), S_OK);
    ASSERT_EQ(make_queue(dstorage::kLeastCapacity, queue_), S_OK);
    ASSERT_EQ(session_->factory().CreateStatusArray(4, "test", dstorage::kStatusArrayId, status_.out()), S_OK);
  }
  void TearDown() override {
    queue_ = {};
    opened_ = {};
    DirectStorageTest::TearDown();
  }
  HRESULT make_queue(std::uint16_t capacity, dstorage::Reference<dstorage::Queue>& queue) {
    const dstorage::QueueDescription description{
        .source = dstorage::kSourceFile, .capacity = capacity, .priority = 0, .name = "test", .device = nullptr};
    return session_->factory().CreateQueue(&description, dstorage::kQueueId, queue.out());
  }
  dstorage::Request request(std::uint64_t offset, std::uint32_t bytes) {
    room_.resize(bytes);
    dstorage::Request made{};
    made.source = {.file = opened_.get(), .offset = offset, .bytes = bytes};
    made.destination.memory = {.data = room_.data(), .bytes = bytes};
    made.uncompressed_bytes = bytes;
    return made;
  }
  HRESULT result_of(const dstorage::Request& request) {
    queue_->EnqueueRequest(&request);
    queue_->EnqueueStatus(status_.get(), 0);
    queue_->Submit();
    while (!status_->IsComplete(0)) std::this_thread::yield();
    return status_->GetHResult(0);
  }
  const TestFile file_{34 * kMiB};
  DirectStorageSession session_;
  dstorage::Reference<dstorage::File> opened_;
  dstorage::Reference<dstorage::Queue> queue_;
  dstorage::Reference<dstorage::StatusArray> status_;
  std::vector<std::byte> room_;
};

TEST_F(DirectStorageRules, ARequestLargerThanTheStagingBufferFailsWithARecord) {
  EXPECT_EQ(result_of(request(0, 33u << 20)), dstorage::kRequestTooLarge);
  EXPECT_EQ(WaitForSingleObject(queue_->GetErrorEvent(), 0), WAIT_OBJECT_0);
  dstorage::ErrorRecord record{};
  queue_->RetrieveErrorRecord(&record);
  EXPECT_EQ(record.failures, 1u);
  EXPECT_EQ(record.result, dstorage::kRequestTooLarge);
  EXPECT_EQ(record.first.request.request.source.bytes, 33u << 20);
  EXPECT_EQ(WaitForSingleObject(queue_->GetErrorEvent(), 0), static_cast<DWORD>(WAIT_TIMEOUT));
  EXPECT_EQ(result_of(request(0, 32u << 20)), S_OK);
  EXPECT_EQ(room_.back(), byte_at(32 * kMiB - 1));
}

TEST_F(DirectStorageRules, AnEntryHasTheFirstFailureSinceTheOneBefore) {
  const dstorage::Request good = request(0, 4096), late = request(34 * kMiB - 10, 4096), wrong = [&] {
    dstorage::Request made = request(0, 4096);
    made.destination.memory.bytes = 100;
    return made;
  }();
  for (const dstorage::Request* one : {&good, &late, &wrong}) queue_->EnqueueRequest(one);
  queue_->EnqueueStatus(status_.get(), 0);
  queue_->EnqueueRequest(&good);
  queue_->EnqueueStatus(status_.get(), 1);
  queue_->Submit();
  while (!status_->IsComplete(1)) std::this_thread::yield();
  EXPECT_EQ(status_->GetHResult(0), dstorage::kEndOfFile);
  EXPECT_EQ(status_->GetHResult(1), S_OK);
}

TEST_F(DirectStorageRules, WrongRequestsHaveTheirNumbers) {
  dstorage::Request made = request(0, 4096);
  made.options.kinds = dstorage::kToBuffer << 1;
  made.destination.buffer = {.resource = nullptr, .offset = 0, .bytes = 4096};
  EXPECT_EQ(result_of(made), dstorage::kInvalidDestinationType);
  made = request(0, 4096);
  made.options.kinds = dstorage::kSourceMemory;
  EXPECT_EQ(result_of(made), dstorage::kInvalidSourceType);
  made = request(0, 4096);
  made.options.zero[3] = 1;
  EXPECT_EQ(result_of(made), dstorage::kReservedFields);
  made = request(0, 4096);
  opened_->Close();
  EXPECT_EQ(result_of(made), dstorage::kFileNotOpen);
}

TEST_F(DirectStorageRules, QueuesHaveBounds) {
  dstorage::Reference<dstorage::Queue> queue;
  EXPECT_EQ(make_queue(dstorage::kLeastCapacity - 1, queue), dstorage::kInvalidCapacity);
  EXPECT_EQ(make_queue(dstorage::kMostCapacity + 1, queue), dstorage::kInvalidCapacity);
  EXPECT_EQ(make_queue(dstorage::kMostCapacity, queue), S_OK);
  EXPECT_EQ(session_->factory().SetStagingBufferSize(64u << 20), dstorage::kStagingLocked);
}

TEST_F(DirectStorageRules, HalfAQueueSubmitsItself) {
  fake().hold = true;
  const dstorage::Request made = request(0, 4096);
  for (int i = 0; i < dstorage::kLeastCapacity / 2 - 1; ++i) queue_->EnqueueRequest(&made);
  dstorage::QueueInfo info{};
  queue_->Query(&info);
  EXPECT_EQ(info.empty_slots, dstorage::kLeastCapacity / 2 + 1);
  EXPECT_EQ(info.until_submit, 1);
  fake().hold = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  queue_->Query(&info);
  EXPECT_EQ(info.empty_slots, dstorage::kLeastCapacity / 2 + 1);  // nothing was submitted
  queue_->EnqueueRequest(&made);
  do queue_->Query(&info);
  while (info.empty_slots != dstorage::kLeastCapacity);
  EXPECT_EQ(fake().submits, 0);
}

// ---- to a device

class DirectStorageToDevice : public DirectStorageTest {
 protected:
  void SetUp() override {
    DirectStorageTest::SetUp();
    auto found = Direct3D::open();
    if (!found.ok()) GTEST_SKIP() << found.status().message();
    direct3d_ = std::move(*found);
  }
  /// Opens with a double importer, which the backend owns.
  Status open_ring(const std::string& path, const DeviceRing& ring, const DirectStorageOptions& options = {}) {
    auto importer = std::make_unique<DoubleImporter>(luid_ ? *luid_ : direct3d_.luid);
    importer->fail_import = fail_import_;
    importer->fail_copy = fail_copy_;
    importer_ = importer.get();
    auto opened = open_directstorage_to_device({path}, std::move(importer), options, ring);
    if (opened.ok()) backend_ = std::move(*opened);
    return opened.status();
  }
  Direct3D direct3d_;
  std::optional<device::AdapterLuid> luid_;
  bool fail_import_ = false, fail_copy_ = false;
  DoubleImporter* importer_ = nullptr;
};

TEST_F(DirectStorageToDevice, ReadsThroughFewerBuffersThanRequests) {
  const TestFile file(5 * kMiB + 123);
  const Status status = open_ring(file.path(), {.slot_bytes = 256 * kKiB, .slots = 3, .export_handles = false});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(backend_->traits().memory, Memory::device);
  EXPECT_NE(backend_->traits().reason.find("through 3 heaps of " + format_bytes(256 * kKiB)), std::string::npos)
      << backend_->traits().reason;
  EXPECT_EQ(importer_->imported, 3u);
  // Destinations in device memory need not be congruent to their offsets.
  std::vector<std::byte> memory(5 * kMiB);
  const Read reads[] = {{.file = 0, .offset = 7, .bytes = 4 * kMiB, .destination = memory.data() + 1},
                        {.file = 0, .offset = 5 * kMiB, .bytes = 123, .destination = memory.data() + 4 * kMiB + 5}};
  Completion completion;
  backend_->submit(reads, completion);
  const Status read = completion.wait();
  ASSERT_TRUE(read.ok()) << read.message();
  for (const Read& one : reads)
    for (std::uint64_t i = 0; i < one.bytes; ++i) ASSERT_EQ(one.destination[i], byte_at(one.offset + i)) << i;
  EXPECT_EQ(memory[0], std::byte{0});
  EXPECT_EQ(memory[4 * kMiB + 1], std::byte{0});
  EXPECT_EQ(importer_->copies, 17u);  // 16 of 256 KiB, and the short one
  EXPECT_LE(fake().largest, static_cast<std::int64_t>(256 * kKiB));
}

TEST_F(DirectStorageToDevice, RefusesAnotherAdapter) {
  const TestFile file(100'000);
  luid_ = device::AdapterLuid{.low = 0xdead, .high = 0xbeef};
  const Status status = open_ring(file.path(), {.export_handles = false});
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("no adapter of Direct3D is the device that computes"), std::string::npos)
      << status.message();
}

// Wine 8 has no CreateSharedHandle; Windows has, and the double has no use for the handle.
TEST_F(DirectStorageToDevice, ExportsHeapsOrSaysThatItCannot) {
  const TestFile file(100'000);
  const Status status = open_ring(file.path(), {.slot_bytes = 64 * kKiB, .slots = 1});
  if (status.ok()) return;
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("cannot be handed to another driver"), std::string::npos) << status.message();
}

TEST_F(DirectStorageToDevice, TellsWhatTheImporterRefuses) {
  const TestFile file(100'000);
  fail_import_ = true;
  EXPECT_EQ(open_ring(file.path(), {.export_handles = false}).code(), Code::unsupported);
  fail_import_ = false;
  fail_copy_ = true;
  ASSERT_TRUE(open_ring(file.path(), {.slot_bytes = 64 * kKiB, .slots = 2, .export_handles = false}).ok());
  std::vector<std::byte> memory(100'000);
  const Read read{.file = 0, .offset = 0, .bytes = memory.size(), .destination = memory.data()};
  EXPECT_EQ(read_now(*backend_, read).code(), Code::io_error);
}

TEST_F(DirectStorageToDevice, ClosesWithBuffersUnderWay) {
  const TestFile file(2 * kMiB);
  ASSERT_TRUE(open_ring(file.path(), {.slot_bytes = 64 * kKiB, .slots = 2, .export_handles = false}).ok());
  fake().hold = true;
  std::vector<std::byte> memory(2 * kMiB);
  const Read read{.file = 0, .offset = 0, .bytes = memory.size(), .destination = memory.data()};
  Completion completion;
  backend_->submit({&read, 1}, completion);
  while (fake().submits == 0) std::this_thread::yield();
  EXPECT_LE(fake().requests, 2);
  backend_.reset();
  EXPECT_EQ(completion.wait().code(), Code::cancelled);
}

}  // namespace
}  // namespace millrace::storage
