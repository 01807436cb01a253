/* g++ 12's std::random_device asks for arc4random(), which the C library has since 2.36 only: Ubuntu 22.04 has 2.35. The
 * portable build brings its own, of the kernel's random bytes. */
#include <stdint.h>
#include <sys/random.h>

__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) { /* four bytes come whole, or a signal came */
  }
  return value;
}
