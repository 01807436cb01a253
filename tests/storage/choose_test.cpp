// The choice of a backend: what is taken, what is refused, and how it is said.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>

#include "storage/file_set.h"
#include "storage/request.h"
#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

std::string chosen(const std::string& path, const OpenOptions& options = {}) {
  auto backend = open_backend({path}, options);
  return backend.ok() ? (*backend)->traits().name : backend.status().message();
}

bool io_uring_offered(const std::string& path) { return open_or_none({path}, BackendKind::io_uring) != nullptr; }
bool direct_offered(const std::string& path) { return open_or_none({path}, BackendKind::pread_direct) != nullptr; }

TEST(Choice, TakesTheBestThatIsOffered) {
  const TestFile file(10000);
  const std::string best = io_uring_offered(file.path()) ? "io_uring+O_DIRECT"
                           : direct_offered(file.path()) ? "pread+O_DIRECT"
                                                         : "pread";
  EXPECT_EQ(chosen(file.path()), best);
  EXPECT_EQ(chosen(file.path(), {.everything_fits = true}), direct_offered(file.path()) ? best : "mmap");
}

TEST(Choice, TakesWhatIsForced) {
  const TestFile file(10000);
  EXPECT_EQ(chosen(file.path(), {.kind = BackendKind::pread_buffered}), "pread");
  EXPECT_EQ(chosen(file.path(), {.kind = BackendKind::mmap}), "mmap");
  EXPECT_EQ(chosen(file.path(), {.kind = BackendKind::pread_buffered, .everything_fits = true}), "pread");
}

TEST(Choice, MemoryFileSystemsAreReadThePlainWay) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const TestFile file(300000, "/dev/shm");
  testing::internal::CaptureStderr();
  auto backend = open_backend({file.path()}, {});
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->traits().name, "pread");
  EXPECT_EQ((*backend)->traits().alignment, 1u);
  EXPECT_FALSE((*backend)->traits().bypasses_page_cache);
  EXPECT_NE(said.find("memory file system"), std::string::npos) << said;
  EXPECT_EQ(chosen(file.path(), {.everything_fits = true}), "mmap");
  const Destination to(12345, 200000);
  ASSERT_TRUE(read_now(**backend, to.read()).ok());
  EXPECT_EQ(to.first_wrong(), 200000u);

  for (const BackendKind kind : {BackendKind::io_uring, BackendKind::pread_direct}) {
    auto forced = open_backend({file.path()}, {.kind = kind});
    ASSERT_FALSE(forced.ok());
    EXPECT_EQ(forced.status().code(), Code::unsupported);
    EXPECT_NE(forced.status().message().find("memory file system"), std::string::npos) << forced.status().message();
  }
  auto mapped = open_or_none({file.path()}, BackendKind::mmap);
  ASSERT_NE(mapped, nullptr);
  const Destination copied(1, 299999);
  ASSERT_TRUE(read_now(*mapped, copied.read()).ok());
  EXPECT_EQ(copied.first_wrong(), 299999u);
}

/// From here on io_uring_setup fails with EPERM in this process, as a container's filter makes it.
void forbid_io_uring() {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog filter = {program.size(), program.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(9);
}

TEST(ChoiceDeathTest, FallsBackAloudWithoutIoUring) {
  const TestFile file(10000);
  const std::string next_best = direct_offered(file.path()) ? "pread.O_DIRECT" : "pread";
  EXPECT_EXIT(
      {
        forbid_io_uring();
        const std::string name = chosen(file.path());
        const auto forced = open_backend({file.path()}, {.kind = BackendKind::io_uring});
        const bool right = name.starts_with("pread") && !forced.ok() && forced.status().code() == Code::unsupported;
        _exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "warning: storage: .*; reading with " + next_best + " instead");
}

TEST(Choice, SaysWhatIsWrongWithAPath) {
  for (const BackendKind kind : {BackendKind::automatic, BackendKind::io_uring, BackendKind::pread_direct,
                                 BackendKind::pread_buffered, BackendKind::mmap}) {
    for (const bool fits : {false, true}) {
      const OpenOptions options{.kind = kind, .everything_fits = fits};
      auto missing = open_backend({"/nowhere/model.gguf"}, options);
      ASSERT_FALSE(missing.ok());
      EXPECT_EQ(missing.status().code(), Code::not_found);
      EXPECT_NE(missing.status().message().find("/nowhere/model.gguf"), std::string::npos);

      auto directory = open_backend({MILLRACE_BINARY_DIR}, options);
      ASSERT_FALSE(directory.ok());
      EXPECT_NE(directory.status().message().find("not a regular file"), std::string::npos)
          << directory.status().message();
      EXPECT_EQ(open_backend({}, options).status().code(), Code::invalid_argument);
    }
  }
}

TEST(Choice, MissingSplitIsNamed) {
  const TestFile file(10000);
  auto opened = open_backend({file.path(), file.path() + "-00002-of-00002"}, {});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("-00002-of-00002"), std::string::npos);
}

TEST(Names, GoThereAndBack) {
  for (const BackendKind kind : {BackendKind::automatic, BackendKind::io_uring, BackendKind::pread_direct,
                                 BackendKind::pread_buffered, BackendKind::mmap}) {
    auto parsed = backend_from_name(backend_name(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  EXPECT_EQ(backend_from_name("uring").status().code(), Code::invalid_argument);
}

TEST(WidenedTest, CoversTheAskedBytesWithWholeBlocks) {
  const Widened wide = widened(5000, 200, 4096);
  EXPECT_EQ(wide.offset, 4096u);
  EXPECT_EQ(wide.bytes, 4096u);
  EXPECT_EQ(wide.lead, 904u);
  EXPECT_EQ(widened(4095, 2, 4096).bytes, 8192u);
  EXPECT_EQ(widened(7, 9, 1).bytes, 9u);
}

// The rule of exact lengths, attempt by attempt, as a kernel could answer.
class SettleTest : public testing::Test {
 protected:
  TestFile file_{100000};
  FileSet files_ = FileSet::open({file_.path()}, FileSet::Access::buffered).value();
  Completion completion_;
  Request request_{.offset = 4096, .bytes = 8192, .lead = 100, .needed = 8000, .completion = &completion_};
  Expected<Outcome> answer(std::int64_t result) { return settle(request_, result, files_); }
};

TEST_F(SettleTest, ShortReadsGoOnWhereTheyStopped) {
  EXPECT_EQ(*answer(3000), Outcome::again);
  EXPECT_EQ(request_.next(1), 3000u);
  EXPECT_EQ(request_.next(512), 2560u);  // O_DIRECT starts again on a block's edge
  EXPECT_EQ(*answer(-EINTR), Outcome::again);
  EXPECT_EQ(*answer(-EAGAIN), Outcome::again);
  EXPECT_EQ(request_.next(1), 3000u);
  EXPECT_EQ(*answer(5000), Outcome::done);  // the asked bytes are there, the block's rest is not needed
}

TEST_F(SettleTest, TheEndOfTheFileIsAnError) {
  EXPECT_EQ(*answer(3000), Outcome::again);
  auto ended = answer(0);
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().code(), Code::io_error);
  EXPECT_NE(ended.status().message().find("the file ends at byte 7096"), std::string::npos) << ended.status().message();
}

TEST_F(SettleTest, ErrorsNameThePlaceAndEndlessRetriesEnd) {
  auto failed = answer(-EIO);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find("reading 8192 bytes at 4096"), std::string::npos);
  int tries = 0;
  while (tries < 100000 && answer(-EAGAIN).ok()) ++tries;
  EXPECT_LT(tries, 100000);
}

TEST(FifoTest, KeepsOrderWhileItGrows) {
  Fifo<int> fifo;
  int pushed = 0, popped = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 37; ++i) fifo.push(pushed++);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(fifo.pop(), popped++);
  }
  while (!fifo.empty()) ASSERT_EQ(fifo.pop(), popped++);
  EXPECT_EQ(popped, pushed);
}

}  // namespace
}  // namespace millrace::storage
