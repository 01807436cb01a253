// The choice of a backend on Linux: what is taken, and how it is said.
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

}  // namespace
}  // namespace millrace::storage
