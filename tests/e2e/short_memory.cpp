// Preloaded into a server, refuses it memory: MILLRACE_SHORT_MEMORY names a file of two int64, how many calls of
// operator new go on, and how many are refused then. The test writes them while the server runs.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

struct Refusals {
  std::atomic<std::int64_t> granted, refused;
};

Refusals* shared() {
  const char* const path = std::getenv("MILLRACE_SHORT_MEMORY");
  const int file = path == nullptr ? -1 : open(path, O_RDWR);
  if (file < 0) return nullptr;
  void* const at = mmap(nullptr, sizeof(Refusals), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return at == MAP_FAILED ? nullptr : static_cast<Refusals*>(at);
}

bool refuses() {
  static Refusals* const refusals = shared();
  return refusals != nullptr && refusals->refused.load() > 0 && refusals->granted.fetch_sub(1) <= 0 &&
         refusals->refused.fetch_sub(1) > 0;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = refuses() ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
