// Maps on Windows. No file can be cut there while it is mapped, so pages that cannot be read are made otherwise: the
// system is asked to take the view away, which is what the handler meets when a disk fails under it.
#include <windows.h>

#include "storage/guarded_map.h"
#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kFileBytes = 3 * kMiB + 777;  // ends inside a block

TEST(Mmap, GivesBytesInPlace) {
  const TestFile file(kFileBytes);
  auto backend = open_or_none({file.path()}, BackendKind::mmap);
  ASSERT_NE(backend, nullptr);
  const std::byte* bytes = backend->in_place(0, 0, kFileBytes);
  ASSERT_NE(bytes, nullptr);
  for (std::uint64_t i = 0; i < kFileBytes; ++i) ASSERT_EQ(bytes[i], byte_at(i));
  EXPECT_EQ(backend->in_place(0, kFileBytes - 1, 2), nullptr);
  EXPECT_EQ(backend->in_place(1, 0, 1), nullptr);
  EXPECT_EQ(backend->in_place(0, ~0ull, 2), nullptr);
}

TEST(Mmap, APageThatCannotBeReadIsZerosAndNoCrash) {
  const TestFile file(kFileBytes);
  auto files = FileSet::open({file.path()}, FileSet::Access::buffered);
  ASSERT_TRUE(files.ok());
  auto map = GuardedMap::map(files->handle(0), kFileBytes, file.path());
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map->data()[2 * kMiB], byte_at(2 * kMiB));
  EXPECT_FALSE(map->failed());
  DWORD before = 0;
  ASSERT_NE(VirtualProtect(const_cast<std::byte*>(map->data()) + 1 * kMiB, 4096, PAGE_NOACCESS, &before), 0);
  EXPECT_EQ(map->data()[1 * kMiB + 5], std::byte{0});
  EXPECT_TRUE(map->failed());
  EXPECT_EQ(map->data()[0], std::byte{0});  // all of it: no page of a view can be replaced alone
  EXPECT_EQ(map->data()[kFileBytes - 1], std::byte{0});

  auto again = GuardedMap::map(files->handle(0), kFileBytes, file.path());
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->failed());  // a new map starts clean
  EXPECT_EQ(again->data()[0], byte_at(0));
}

TEST(MmapDeathTest, ForeignViolationsStillEndTheProcess) {
  const TestFile file(4096);
  auto backend = open_or_none({file.path()}, BackendKind::mmap);
  ASSERT_NE(backend, nullptr);
  void* const nobodys = VirtualAlloc(nullptr, 4096, MEM_RESERVE, PAGE_NOACCESS);
  EXPECT_DEATH(
      {
        // The system's last word, without a window or a debugger.
        SetUnhandledExceptionFilter([](EXCEPTION_POINTERS*) -> LONG { return EXCEPTION_EXECUTE_HANDLER; });
        (void)*static_cast<volatile int*>(nobodys);
      },
      "");
}

}  // namespace
}  // namespace millrace::storage
