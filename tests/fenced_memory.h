// Memory that ends where the process may no longer read or write.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>

#if defined(_WIN32)
extern "C" {  // windows.h gives many names a meaning
__declspec(dllimport) void* __stdcall VirtualAlloc(void*, std::size_t, unsigned long, unsigned long);
__declspec(dllimport) int __stdcall VirtualFree(void*, std::size_t, unsigned long);
}
#else
#include <sys/mman.h>
#endif

namespace millrace::test {

class Fenced {
 public:
  explicit Fenced(std::size_t bytes) : bytes_(bytes) {
    const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
    map_bytes_ = pages + kPage;
    map_ = static_cast<std::byte*>(map(pages));
    EXPECT_NE(map_, nullptr);
    data_ = map_ + pages - bytes;
  }
  ~Fenced() { unmap(); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  static constexpr std::size_t kPage = 4096;

#if defined(_WIN32)
  void* map(std::size_t usable) const {
    constexpr unsigned long reserve = 0x2000, commit = 0x1000, no_access = 1, read_write = 4;
    void* const all = VirtualAlloc(nullptr, map_bytes_, reserve, no_access);
    return usable == 0 ? all : VirtualAlloc(all, usable, commit, read_write);
  }
  void unmap() { VirtualFree(map_, 0, 0x8000); }
#else
  void* map(std::size_t usable) const {
    void* const all = mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return all != MAP_FAILED && mprotect(all, usable, PROT_READ | PROT_WRITE) == 0 ? all : nullptr;
  }
  void unmap() { munmap(map_, map_bytes_); }
#endif

  std::size_t bytes_, map_bytes_ = 0;
  std::byte *map_ = nullptr, *data_ = nullptr;
};

}  // namespace millrace::test
