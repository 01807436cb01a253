// The choice of a backend on Windows: what is taken, and how it is said. The stand-in for DirectStorage lies beside
// this program.
#include <string>

#include "storage/backends.h"
#include "storage/request.h"
#include "storage/storage_fixture.h"
#include "storage/win32/system.h"

namespace millrace::storage {
namespace {

std::string chosen(const std::string& path, const OpenOptions& options = {}) {
  auto backend = open_backend({path}, options);
  return backend.ok() ? (*backend)->traits().name : backend.status().message();
}

TEST(Choice, TakesTheBestThatIsOffered) {
  const TestFile file(10000);
  EXPECT_EQ(chosen(file.path()), "ReadFile+NO_BUFFERING");
  EXPECT_EQ(chosen(file.path(), {.everything_fits = true}), "ReadFile+NO_BUFFERING");
}

TEST(Choice, TakesDirectStorageOnlyWhereItWasMeasuredToBeFaster) {
  const TestFile file(10000);
  EXPECT_EQ(chosen(file.path(), {.directstorage_faster = true}), "DirectStorage");
}

TEST(Choice, TakesWhatIsForced) {
  const TestFile file(10000);
  EXPECT_EQ(chosen(file.path(), {.kind = BackendKind::pread_buffered}), "ReadFile");
  EXPECT_EQ(chosen(file.path(), {.kind = BackendKind::mmap}), "mmap");
  EXPECT_EQ(chosen(file.path(), {.kind = BackendKind::directstorage}), "DirectStorage");
}

TEST(Choice, TellsDoctorOfDirectStorage) {
  const SystemWay way = system_way();
  EXPECT_EQ(way.name, "DirectStorage");
  EXPECT_TRUE(way.works);
  EXPECT_NE(way.found.find("staging buffer"), std::string::npos) << way.found;
}

// Wine takes misaligned reads past the cache, and Windows answers them with error 87: so do we, everywhere.
TEST(OverlappedFile, RefusesWhatWindowsRefuses) {
  const TestFile file(100'000);
  auto files = FileSet::open({file.path()}, FileSet::Access::buffered);
  ASSERT_TRUE(files.ok());
  const auto opened = OverlappedFile::open_again(files->handle(0), file.path(), 4096);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Destination to(4096, 8192);
  std::byte* const data = to.read().destination;
  EXPECT_EQ(opened->read(4096, 8192, data), 8192);
  EXPECT_EQ(to.first_wrong(), 8192u);
  constexpr std::int64_t kRefused = -(kFirstWin32Code + 87);
  EXPECT_EQ(opened->read(4097, 4096, data), kRefused);
  EXPECT_EQ(opened->read(4096, 4095, data), kRefused);
  EXPECT_EQ(opened->read(4096, 4096, data + 512), kRefused);
  EXPECT_NE(attempt_cause(kFirstWin32Code + 87).find("(error 87)"), std::string::npos);
}

TEST(OverlappedFile, EndsWithTheFile) {
  const TestFile file(10'000);
  auto files = FileSet::open({file.path()}, FileSet::Access::buffered);
  ASSERT_TRUE(files.ok());
  const auto opened = OverlappedFile::open_again(files->handle(0), file.path(), 1);
  ASSERT_TRUE(opened.ok());
  const Destination to(9'000, 1'000);
  EXPECT_EQ(opened->read(9'000, 1'000, to.read().destination), 1'000);
  EXPECT_EQ(to.first_wrong(), 1'000u);
  EXPECT_EQ(opened->read(10'000, 10, to.read().destination), 0);
}

// Requests past the cache are whole multiples of 64 KiB, but for a read's last one.
TEST(CutReads, KeepsToAGranule) {
  const TestFile file(1 * kMiB);
  const FileSet files = FileSet::open({file.path()}, FileSet::Access::direct).value();
  const Destination to(5000, 900'000);
  const Read read = to.read();
  Completion completion;
  Fifo<Request> requests;
  cut_reads({&read, 1}, files, 200'000, completion, requests, 64 * kKiB);
  std::uint64_t bytes = 0;
  while (!requests.empty()) {
    const Request request = requests.pop();
    EXPECT_EQ(requests.empty() ? 0 : request.bytes % (64 * kKiB), 0u);
    EXPECT_LE(request.bytes, 192 * kKiB);
    bytes += request.bytes;
    completion.finish_one(Status());
  }
  EXPECT_EQ(bytes, widened(5000, 900'000, files.alignment()).bytes);
}

TEST(WidePath, IsFullAndLong) {
  EXPECT_TRUE(wide_path("a/b.gguf").ends_with(L"\\a\\b.gguf"));
  const std::wstring longer = wide_path(std::string(300, 'a'));
  EXPECT_TRUE(longer.starts_with(L"\\\\?\\"));
  EXPECT_EQ(wide_path("\xe6\xb0\xb4\xe8\xbb\x8a").substr(wide_path("x").size() - 1), L"\u6c34\u8eca");
}

}  // namespace
}  // namespace millrace::storage
