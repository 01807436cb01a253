// Maps on Linux: what a truncated file does to one.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kFileBytes = 3 * kMiB + 777;  // ends inside a block

TEST(Mmap, GivesBytesInPlaceAndTurnsBusErrorsIntoErrors) {
  const TestFile file(kFileBytes);
  auto backend = open_or_none({file.path()}, BackendKind::mmap);
  ASSERT_NE(backend, nullptr);
  const std::byte* bytes = backend->in_place(0, 0, kFileBytes);
  ASSERT_NE(bytes, nullptr);
  for (std::uint64_t i = 0; i < kFileBytes; ++i) ASSERT_EQ(bytes[i], byte_at(i));
  EXPECT_EQ(backend->in_place(0, kFileBytes - 1, 2), nullptr);
  EXPECT_EQ(backend->in_place(1, 0, 1), nullptr);
  EXPECT_EQ(backend->in_place(0, ~0ull, 2), nullptr);

  ASSERT_EQ(truncate(file.path().c_str(), 4096), 0);
  EXPECT_EQ(bytes[2 * kMiB], std::byte{0});  // SIGBUS, were it not for the handler
  EXPECT_EQ(bytes[0], byte_at(0));
  ASSERT_EQ(truncate(file.path().c_str(), kFileBytes), 0);
  const Status status = backend->health();
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("mapped bytes could not be read"), std::string::npos) << status.message();

  auto again = open_or_none({file.path()}, BackendKind::mmap);
  EXPECT_TRUE(again->health().ok());  // a new map starts clean
}

TEST(MmapDeathTest, ForeignBusErrorsStillEndTheProcess) {
  const TestFile file(4096);
  auto backend = open_or_none({file.path()}, BackendKind::mmap);
  ASSERT_NE(backend, nullptr);
  // By the signal itself, or by what was there before us: a sanitizer's handler ends the process with an exit code.
  const auto died = [](int status) { return WIFSIGNALED(status) || WEXITSTATUS(status) != 0; };
  EXPECT_EXIT(raise(SIGBUS), died, "");
}

}  // namespace
}  // namespace millrace::storage
