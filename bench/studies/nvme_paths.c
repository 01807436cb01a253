// CPU time of reading an NVMe device by three ways: O_DIRECT through io_uring, with registered buffers, and io_uring passthrough
// (IORING_OP_URING_CMD on the generic device). One processor is expected: what a spinning thread of idle priority does not get
// while reads run is what they took, interrupts included.
//
//   nvme_paths WAY PATH REQUEST_BYTES COUNT DEPTH     WAY: direct, fixed, command, commandfixed
// g++ -O2 -static (or gcc) nvme_paths.c -luring -lpthread
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <linux/nvme_ioctl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

struct uring_cmd {  // struct nvme_uring_cmd, which old headers lack
  unsigned char opcode, flags; unsigned short rsvd1; unsigned nsid, cdw2, cdw3; unsigned long long metadata, addr;
  unsigned metadata_len, data_len, cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, timeout_ms, rsvd2;
};
#define URING_CMD_IO _IOWR('N', 0x80, struct uring_cmd)

static volatile unsigned long spun;
static volatile int stop;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void* spin(void* unused) {
  struct sched_param p = {0};
  sched_setscheduler(0, SCHED_IDLE, &p);
  while (!stop) spun++;
  return unused;
}

int main(int argc, char** argv) {
  if (argc < 6) return 1;
  const int command = !strncmp(argv[1], "command", 7), fixed = strstr(argv[1], "fixed") != NULL;
  const size_t bytes = strtoul(argv[3], 0, 0);
  const int count = atoi(argv[4]), depth = atoi(argv[5]);
  const int fd = open(argv[2], command ? O_RDONLY : O_RDONLY | O_DIRECT);
  if (fd < 0) { perror(argv[2]); return 1; }
  const unsigned nsid = command ? ioctl(fd, NVME_IOCTL_ID) : 0;
  struct io_uring ring;
  struct io_uring_params params = {0};
  if (command) params.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
  int rc = io_uring_queue_init_params(64, &ring, &params);
  if (rc) { fprintf(stderr, "ring: %s\n", strerror(-rc)); return 1; }
  char* memory = mmap(0, bytes * depth + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memory = (char*)(((size_t)memory + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1));
  if (getenv("HUGE")) madvise(memory, bytes * depth, MADV_HUGEPAGE);
  memset(memory, 1, bytes * depth);
  if (fixed) {
    struct iovec v[64];
    for (int i = 0; i < depth; i++) v[i] = (struct iovec){memory + i * bytes, bytes};
    if ((rc = io_uring_register_buffers(&ring, v, depth))) { fprintf(stderr, "register: %s\n", strerror(-rc)); return 1; }
  }
  pthread_t thread;
  pthread_create(&thread, 0, spin, 0);
  struct timespec nap = {0, 200000000};
  nanosleep(&nap, 0);
  unsigned long s0 = spun; double t0 = now();  // how fast it spins alone
  nap.tv_nsec = 500000000;
  nanosleep(&nap, 0);
  const double rate = (spun - s0) / (now() - t0);
  struct rusage r0, r1;
  getrusage(RUSAGE_SELF, &r0);
  s0 = spun; t0 = now();
  int sent = 0, done = 0;
  const unsigned long span = 192ul << 20;
  while (done < count) {
    while (sent < count && sent - done < depth) {
      struct io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      const int slot = sent % depth;
      const unsigned long at = sent * bytes % span;
      if (!command) {
        if (fixed) io_uring_prep_read_fixed(sqe, fd, memory + slot * bytes, bytes, at, slot);
        else io_uring_prep_read(sqe, fd, memory + slot * bytes, bytes, at);
      } else {
        memset(sqe, 0, 128);
        sqe->opcode = IORING_OP_URING_CMD;
        sqe->fd = fd;
        ((unsigned*)sqe)[2] = URING_CMD_IO;  // cmd_op
        if (fixed) { sqe->rw_flags = 1; sqe->buf_index = slot; }  // IORING_URING_CMD_FIXED
        struct uring_cmd* c = (struct uring_cmd*)((char*)sqe + 48);
        c->opcode = 2; c->nsid = nsid; c->addr = (size_t)(memory + slot * bytes); c->data_len = bytes;
        c->cdw10 = at / 512; c->cdw11 = (at / 512) >> 32; c->cdw12 = bytes / 512 - 1;
      }
      sent++;
    }
    struct io_uring_cqe* cqe;
    if ((rc = io_uring_submit_and_wait(&ring, 1)) < 0) { fprintf(stderr, "submit: %s\n", strerror(-rc)); return 1; }
    while (!io_uring_peek_cqe(&ring, &cqe)) {
      if (cqe->res != (command ? 0 : (int)bytes)) { fprintf(stderr, "read: %d %s\n", cqe->res, cqe->res < 0 ? strerror(-cqe->res) : ""); return 1; }
      io_uring_cqe_seen(&ring, cqe);
      done++;
    }
  }
  const double wall = now() - t0, busy = wall - (spun - s0) / rate;
  getrusage(RUSAGE_SELF, &r1);
  stop = 1;
  printf("%s %s %zu: wall %.1f us, busy %.2f us a request, %.2f us a MiB; check %02x%02x\n", argv[1], getenv("HUGE") ? "huge" : "4k", bytes, wall / count * 1e6,
         busy / count * 1e6, busy / count * 1e6 * (1 << 20) / bytes, memory[0] & 255, memory[bytes - 1] & 255);
}
