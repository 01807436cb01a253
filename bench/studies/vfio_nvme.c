// Reads an NVMe device from user space: the controller bound to vfio-pci behind an IOMMU, one queue pair, polled. What a request takes
// of the processor is the time of building and ringing it and of taking its completion; waiting is polling, and counted apart.
//
//   vfio_nvme PCI_ADDRESS GROUP REQUEST_BYTES COUNT DEPTH
// gcc -O2 -static vfio_nvme.c
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct command { uint8_t opcode, flags; uint16_t id; uint32_t nsid; uint64_t rsvd, metadata, prp1, prp2; uint32_t dw[6]; };
struct completion { uint32_t result, rsvd; uint16_t head, queue, id, status; };
enum { kEntries = 64, kPage = 4096 };
static volatile uint8_t* bar;
static unsigned stride;
struct queue { struct command* sq; volatile struct completion* cq; unsigned tail, head, phase, id; };

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void die(const char* what) { perror(what); exit(1); }
static void set32(unsigned at, uint32_t v) { *(volatile uint32_t*)(bar + at) = v; }
static void set64(unsigned at, uint64_t v) { set32(at, v); set32(at + 4, v >> 32); }
static uint32_t get32(unsigned at) { return *(volatile uint32_t*)(bar + at); }
static void push(struct queue* q, const struct command* c) { q->sq[q->tail] = *c; q->tail = (q->tail + 1) % kEntries; }
static void ring(struct queue* q) { __sync_synchronize(); set32(0x1000 + 2 * q->id * stride, q->tail); }
static int take(struct queue* q, uint16_t* id) {
  volatile struct completion* c = &q->cq[q->head];
  if ((c->status & 1) != q->phase) return 0;
  if (c->status >> 1) { fprintf(stderr, "status %x\n", c->status >> 1); exit(1); }
  *id = c->id;
  if (++q->head == kEntries) { q->head = 0; q->phase ^= 1; }
  set32(0x1000 + (2 * q->id + 1) * stride, q->head);
  return 1;
}
static void admin(struct queue* q, struct command c) { uint16_t id; push(q, &c); ring(q); while (!take(q, &id)) {} }

int main(int argc, char** argv) {
  if (argc < 6) return 1;
  const size_t bytes = strtoul(argv[3], 0, 0), pages = bytes / kPage;
  const int count = atoi(argv[4]), depth = atoi(argv[5]);
  char path[64];
  snprintf(path, sizeof path, "/dev/vfio/%s", argv[2]);
  const int container = open("/dev/vfio/vfio", O_RDWR), group = open(path, O_RDWR);
  if (container < 0 || group < 0) die(path);
  if (ioctl(group, VFIO_GROUP_SET_CONTAINER, &container)) die("container");
  if (ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1_IOMMU)) die("iommu");
  const int device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, argv[1]);
  if (device < 0) die("device");
  struct vfio_region_info config = {.argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX}, r = {.argsz = sizeof r, .index = VFIO_PCI_BAR0_REGION_INDEX};
  if (ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &config) || ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &r)) die("region");
  uint16_t word = 6;  // memory and bus mastering
  if (pwrite(device, &word, 2, config.offset + 4) != 2) die("config");
  bar = mmap(0, r.size, PROT_READ | PROT_WRITE, MAP_SHARED, device, r.offset);
  if (bar == MAP_FAILED) die("bar");
  // Memory of the device: five pages of queues, a page of addresses a request in flight, then the data.
  const size_t size = (size_t)(8 + depth) * kPage + depth * bytes, base = 1 << 30;
  char* memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(memory, 0, size);
  struct vfio_iommu_type1_dma_map map = {.argsz = sizeof map, .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE, .vaddr = (uintptr_t)memory, .iova = base, .size = size};
  if (ioctl(container, VFIO_IOMMU_MAP_DMA, &map)) die("map");
  stride = 4 << (get32(4) & 15);
  set32(0x14, 0);
  while (get32(0x1c) & 1) {}
  set32(0x24, (kEntries - 1) << 16 | (kEntries - 1));
  set64(0x28, base);
  set64(0x30, base + kPage);
  set32(0x14, 4 << 20 | 6 << 16 | 1);
  while (!(get32(0x1c) & 1)) {}
  struct queue a = {(void*)memory, (void*)(memory + kPage), 0, 0, 1, 0}, q = {(void*)(memory + 2 * kPage), (void*)(memory + 3 * kPage), 0, 0, 1, 1};
  admin(&a, (struct command){.opcode = 5, .prp1 = base + 3 * kPage, .dw = {(kEntries - 1) << 16 | 1, 1}});
  admin(&a, (struct command){.opcode = 1, .prp1 = base + 2 * kPage, .dw = {(kEntries - 1) << 16 | 1, 1 << 16 | 1}});
  for (int s = 0; s < depth; s++)  // lists are written once: buffers stay where they are
    for (size_t i = 1; i < pages; i++)
      ((uint64_t*)(memory + (8 + s) * kPage))[i - 1] = base + (8 + depth) * kPage + s * bytes + i * kPage;
  const double t0 = now();
  double work = 0;
  int sent = 0, done = 0, slots[64], left = depth;
  for (int s = 0; s < depth; s++) slots[s] = s;
  while (done < count) {
    double t = now();
    while (sent < count && left) {
      const int s = slots[--left];
      const uint64_t block = sent * bytes % (192ul << 20) / 512;
      push(&q, &(struct command){.opcode = 2, .id = s, .nsid = 1, .prp1 = base + (8 + depth) * kPage + s * bytes, .prp2 = base + (8 + s) * kPage,
                                 .dw = {block, 0, bytes / 512 - 1}});
      sent++;
    }
    ring(&q);
    work += now() - t;
    while ((q.cq[q.head].status & 1) != q.phase) {}
    t = now();
    uint16_t id;
    while (take(&q, &id)) { slots[left++] = id; done++; }
    work += now() - t;
  }
  const double wall = now() - t0;
  push(&q, &(struct command){.opcode = 2, .nsid = 1, .prp1 = base + (8 + depth) * kPage, .dw = {0, 0, 7}});
  ring(&q);
  uint16_t id;
  while (!take(&q, &id)) {}
  const double c0 = now();
  for (int i = 0; i < 1000; i++) now();
  const unsigned char* data = (void*)(memory + (8 + depth) * kPage);
  printf("vfio %zu: wall %.1f us, work %.3f us a request (a look at the clock %.3f us, two of four a round in it); the first page begins with %02x%02x and ends with %02x\n", bytes, wall / count * 1e6, work / count * 1e6,
         (now() - c0) * 1e3, data[0], data[1], data[kPage - 1]);
  return 0;
}
