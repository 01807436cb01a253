// The pause instruction for loops that poll a variable which another thread is about to change.
#pragma once

namespace millrace {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace millrace
