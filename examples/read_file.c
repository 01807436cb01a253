/* Reads a file at the disk's speed and prints it as a rate:  read_file FILE
 *
 * The loader alone: blocks of 8 MiB, four on their way at a time, straight into aligned memory.
 */
#define _POSIX_C_SOURCE 199309L
#include <millrace.h>
#include <stdio.h>
#include <time.h>

enum { kAhead = 4 };
static const uint64_t kBlock = 8u << 20;

static int fail(void) {
  fprintf(stderr, "error: %s\n", millrace_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  millrace_loader* loader = NULL;
  if (millrace_loader_open(argv[1], NULL, &loader) != MILLRACE_OK) return fail();
  const uint64_t size = millrace_loader_file_bytes(loader);
  void *blocks[kAhead], *begins[kAhead];
  uint64_t reads[kAhead] = {0}, offset = 0, done = 0;
  for (int i = 0; i < kAhead; ++i) {
    if (millrace_loader_allocate(0, kBlock, &blocks[i], &begins[i]) != MILLRACE_OK) return fail();
  }
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int slot = 0; done < size; slot = (slot + 1) % kAhead) {
    if (reads[slot] != 0) {
      if (millrace_loader_wait(loader, reads[slot]) != MILLRACE_OK) return fail();
      reads[slot] = 0;
      done += done + kBlock < size ? kBlock : size - done;
    }
    if (offset < size) {
      const uint64_t bytes = size - offset < kBlock ? size - offset : kBlock;
      if (millrace_loader_enqueue(loader, offset, bytes, begins[slot], 1, &reads[slot]) != MILLRACE_OK) return fail();
      if (millrace_loader_submit(loader) != MILLRACE_OK) return fail();
      offset += bytes;
    }
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  const double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
  printf("%s: %.1f MB in %.3f s by %s\n", argv[1], (double)size * 1e-6, seconds, millrace_loader_backend(loader));
  for (int i = 0; i < kAhead; ++i) millrace_free(blocks[i]);
  millrace_loader_close(loader);
  return 0;
}
