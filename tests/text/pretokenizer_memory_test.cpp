// Where PCRE2 gets no memory, the pre-tokenizer fails: other pieces would be other tokens. This program refuses its own
// thread large blocks of malloc. Not with sanitizers, which have a malloc of their own.
#include <gtest/gtest.h>  // which defines __GLIBC__, too

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "text/pretokenizer.h"

extern "C" void* __libc_malloc(std::size_t bytes);

namespace {
thread_local std::size_t refused_from_bytes = 0;  // 0: nothing is refused
thread_local int refused_blocks = 0;
}  // namespace

extern "C" [[gnu::visibility("default"), gnu::noinline]] void* malloc(std::size_t bytes) noexcept {
  if (refused_from_bytes == 0 || bytes < refused_from_bytes) return __libc_malloc(bytes);
  ++refused_blocks;
  return nullptr;
}

namespace millrace::text {
namespace {

TEST(PreTokenizer, FailsWherePcre2GetsNoMemory) {
  constexpr std::size_t kFrames = 16 << 10;  // PCRE2's first block of frames takes 20 KiB
  const std::string words = "It's 2026, and the mill's race runs: 1234567 litres.\n\n  Über Öl läuft's.";
  for (const PreTokenizerFamily& family : pretokenizer_families()) {
    if (family.patterns.empty()) continue;
    const auto made = PreTokenizer::make(family);
    ASSERT_TRUE(made.ok()) << made.status().message();
    std::vector<std::uint32_t> whole, ends;
    made->split(words, whole);
    refused_blocks = 0;
    refused_from_bytes = kFrames;
    bool failed = false;
    try {
      made->split(words, ends);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    refused_from_bytes = 0;
    if (refused_blocks == 0) GTEST_SKIP() << "this PCRE2 takes no block of frames";
    EXPECT_TRUE(failed) << family.names.front();
    made->split(words, ends);
    EXPECT_EQ(ends, whole) << family.names.front();
  }
}

}  // namespace
}  // namespace millrace::text
#endif
