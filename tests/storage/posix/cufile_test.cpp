// cuFile without a GPU: what is said where the library is missing, and the whole backend over a stand-in for it that
// reads into host memory (fake_cufile.cpp). tests/cuda_engine has the real one.
#include "storage/cufile.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <thread>

#include "device/gpu.h"
#include "storage/fault_injection.h"
#include "storage/posix/fake_cufile.h"
#include "storage/request.h"
#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kFileBytes = 3 * kMiB + 777;  // ends inside a block

/// Host memory with a guard of a block on either side, at no alignment in particular.
class Anywhere {
 public:
  Anywhere(std::uint64_t offset, std::uint64_t bytes, std::uint64_t shift = 1)
      : offset_(offset), bytes_(bytes), shift_(kGuardBytes + shift), memory_(shift_ + bytes + kGuardBytes, kGuard) {}
  Read read(int file = 0) {
    return {.file = file, .offset = offset_, .bytes = bytes_, .destination = memory_.data() + shift_};
  }
  /// The first asked byte that is wrong, or the count of bytes.
  std::uint64_t first_wrong() const {
    std::uint64_t i = 0;
    while (i < bytes_ && memory_[shift_ + i] == byte_at(offset_ + i)) ++i;
    return i;
  }
  bool guards_stand() const {
    const auto stands = [](std::byte b) { return b == kGuard; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(shift_), stands) &&
           std::all_of(memory_.end() - kGuardBytes, memory_.end(), stands);
  }

 private:
  static constexpr std::byte kGuard{0xc3};
  static constexpr std::uint64_t kGuardBytes = 4096;
  std::uint64_t offset_, bytes_, shift_;
  std::vector<std::byte> memory_;
};

class CuFile : public testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(MILLRACE_FAKE_CUFILE, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    fake_ = static_cast<FakeCuFile*>(dlsym(library, "fake_cufile_state"));
    ASSERT_NE(fake_, nullptr);
    fake_->reads = fake_->unaligned_reads = fake_->based_reads = fake_->largest_read = 0;
    fake_->opened = 0;
  }
  void TearDown() override {
    backend_.reset();
    if (fake_ == nullptr) return;
    fake_->open_code = fake_->register_code = fake_->buffer_code = fake_->read_errno = fake_->read_code = 0;
    fake_->lie = 0;
    fake_->most_bytes = 0;
    fake_->features = 0xf;
    fake_->has_properties = true;
    EXPECT_EQ(fake_->handles, 0) << "files left registered";
    EXPECT_EQ(fake_->buffers, 0) << "memory left registered";
    EXPECT_EQ(fake_->open_now, 0) << "the session was left open";
  }
  static CuFileOptions options() {
    return {.device = -1, .threads = 4, .request_bytes = 256 * kKiB, .library = MILLRACE_FAKE_CUFILE};
  }
  void open() {
    auto opened = open_cufile({file_.path(), second_.path()}, options());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    backend_ = std::move(*opened);
  }
  Status refusal() {
    auto opened = open_cufile({file_.path()}, options());
    EXPECT_FALSE(opened.ok());
    return opened.status();
  }
  static void expect_one_line(const Status& status, std::string_view part) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }

  FakeCuFile* fake_ = nullptr;
  TestFile file_{kFileBytes};
  TestFile second_{100 * kKiB};
  std::unique_ptr<Backend> backend_;
};

TEST_F(CuFile, WithoutTheLibraryItIsRefusedInWords) {
  CuFileOptions missing = options();
  missing.library = "libmillrace-no-such-cufile.so.0";
  for (const Status& status :
       {open_cufile({file_.path()}, missing).status(), cufile_available(file_.path(), missing).status(),
        CuFileBuffer::make(std::span<std::byte>(reinterpret_cast<std::byte*>(4096), 4096), missing).status()}) {
    EXPECT_EQ(status.code(), Code::unsupported);
    expect_one_line(status, "cuFile is not on this machine");
    expect_one_line(status, "install libcufile");
  }
  missing.library = "libc.so.6";
  const Status other = open_cufile({file_.path()}, missing).status();
  EXPECT_EQ(other.code(), Code::unsupported);
  expect_one_line(other, "has no cuFileDriverOpen");
}

TEST_F(CuFile, WithoutAGpuItIsRefusedInWords) {
  const auto gpus = device::gpus();
  if (gpus.ok()) GTEST_SKIP() << "there is a GPU";
  CuFileOptions with_gpu = options();
  with_gpu.device = 0;
  const Status status = open_cufile({file_.path()}, with_gpu).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.message(), gpus.status().message());
}

TEST_F(CuFile, SaysWhatItIs) {
  open();
  ASSERT_NE(backend_, nullptr);
  const BackendTraits& traits = backend_->traits();
  EXPECT_EQ(traits.name, "cuFile");
  EXPECT_EQ(traits.alignment, 1u);
  EXPECT_EQ(traits.memory, Memory::device);
  EXPECT_NE(traits.reason.find("in compatibility mode"), std::string::npos) << traits.reason;
  EXPECT_EQ(traits.bypasses_page_cache, open_or_none({file_.path()}, BackendKind::pread_direct) != nullptr);
  EXPECT_EQ(open_or_none({file_.path()}, BackendKind::pread_buffered)->traits().memory, Memory::host);
}

TEST_F(CuFile, ReadsAnyRangeExactlyToAnyAddress) {
  open();
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t offset = random() % kFileBytes;
    const std::uint64_t bytes = 1 + random() % std::min(kFileBytes - offset, i % 3 == 0 ? kFileBytes : 100000);
    Anywhere to(offset, bytes, random() % 5000);
    const Status status = read_now(*backend_, to.read());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(to.first_wrong(), bytes) << "read of " << bytes << " at " << offset;
    ASSERT_TRUE(to.guards_stand()) << "read of " << bytes << " at " << offset;
  }
  EXPECT_LE(fake_->largest_read, static_cast<long>(256 * kKiB));
}

TEST_F(CuFile, OnlyTheEdgesOfALargeReadAreUnaligned) {
  open();
  Anywhere to(1000, 2 * kMiB);
  ASSERT_TRUE(read_now(*backend_, to.read()).ok());
  EXPECT_EQ(to.first_wrong(), 2 * kMiB);
  EXPECT_EQ(fake_->unaligned_reads, 2);
  EXPECT_EQ(fake_->reads, 2 + 8);
  const Counters counters = backend_->counters();
  EXPECT_EQ(counters.bytes, 2 * kMiB);
  EXPECT_EQ(counters.reads, 10u);
}

TEST_F(CuFile, ReadsABatchFromTwoFilesAndOutlivesTheThreadThatAsked) {
  open();
  std::mt19937_64 random(2);
  std::vector<Anywhere> destinations;
  destinations.reserve(200);
  std::vector<Read> reads;
  for (int i = 0; i < 200; ++i) {
    const int file = i % 2;
    const std::uint64_t size = file == 0 ? kFileBytes : 100 * kKiB, offset = random() % size;
    destinations.emplace_back(offset, random() % std::min<std::uint64_t>(size - offset, 90000));
    reads.push_back(destinations.back().read(file));
  }
  Completion completion;
  std::thread([&] { backend_->submit(reads, completion); }).join();
  const Status status = completion.wait();
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < reads.size(); ++i) ASSERT_EQ(destinations[i].first_wrong(), reads[i].bytes) << i;
}

TEST_F(CuFile, ShortReadsGoOnWhereTheyStopped) {
  open();
  fake_->most_bytes = 5000;
  Anywhere to(12345, 700000);
  const Status status = read_now(*backend_, to.read());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(to.first_wrong(), 700000u);
  EXPECT_TRUE(to.guards_stand());
}

TEST_F(CuFile, ReadsUpToTheEndAndNotBeyond) {
  open();
  Anywhere last(kFileBytes - 100, 100);
  EXPECT_TRUE(read_now(*backend_, last.read()).ok());
  EXPECT_EQ(last.first_wrong(), 100u);
  Anywhere beyond(kFileBytes - 100, 101);
  const Status status = read_now(*backend_, beyond.read());
  EXPECT_EQ(status.code(), Code::io_error);
  expect_one_line(status, "the file ends at byte 3146505");
  EXPECT_EQ(read_now(*backend_, last.read(2)).code(), Code::internal);
}

TEST_F(CuFile, NoticesAFileCutWhileOpen) {
  open();
  ASSERT_TRUE(backend_->health().ok());
  ASSERT_EQ(truncate(file_.path().c_str(), 1 * kMiB + 100), 0);
  EXPECT_EQ(backend_->health().code(), Code::io_error);
  Anywhere before(1000, 500000), across(1 * kMiB - 5000, 100000), behind(2 * kMiB, 5000);
  for (Anywhere* cut : {&across, &behind}) {
    const Status status = read_now(*backend_, cut->read());
    EXPECT_EQ(status.code(), Code::io_error);
    expect_one_line(status, "truncated?");
  }
  EXPECT_TRUE(read_now(*backend_, before.read()).ok());
  EXPECT_EQ(before.first_wrong(), 500000u);
}

TEST_F(CuFile, ErrorsSayWhatTheirNumbersMean) {
  open();
  Anywhere to(0, 10000);
  const auto fails_with = [&](std::string_view part) {
    const Status status = read_now(*backend_, to.read());
    EXPECT_EQ(status.code(), Code::io_error);
    expect_one_line(status, part);
    expect_one_line(status, file_.path());
  };
  fake_->read_errno = EIO;
  fails_with("Input/output error");
  fake_->read_errno = 5017;  // cuFile puts its own numbers there, too
  fails_with("cuFile error 5017, the range reaches beyond what is registered");
  fake_->read_errno = 0;
  fake_->read_code = 5011;
  fails_with("cuFile error 5011, the CUDA driver failed");
  fake_->read_code = 5099;
  fails_with("cuFile error 5099");
  fake_->read_code = 0;
  fake_->lie = 1;
  fails_with("cuFile error 5030");
  fake_->lie = 0;
  EXPECT_TRUE(read_now(*backend_, to.read()).ok());
  EXPECT_EQ(to.first_wrong(), 10000u);
}

TEST_F(CuFile, ReadsIntoRegisteredMemoryByItsBase) {
  open();
  std::vector<std::byte> memory(2 * kMiB);
  const auto read_at = [&](std::uint64_t place, std::uint64_t bytes) {
    fake_->reads = fake_->based_reads = 0;
    const Status status =
        read_now(*backend_, {.file = 0, .offset = 5000, .bytes = bytes, .destination = memory.data() + place});
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(memory[place + i], byte_at(5000 + i)) << i;
  };
  {
    auto buffer = CuFileBuffer::make(std::span(memory).subspan(4096, kMiB), options());
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(fake_->buffers, 1);
    read_at(4096 + 999, 700000);
    EXPECT_EQ(fake_->based_reads, fake_->reads);
    read_at(4096 + kMiB - 50000, 50000);
    EXPECT_EQ(fake_->based_reads, fake_->reads);
    read_at(4096 + kMiB - 50000, 50001);  // reaches out: as if nothing were registered
    EXPECT_EQ(fake_->based_reads, 0);
    read_at(0, 4096);
    EXPECT_EQ(fake_->based_reads, 0);
    for (const auto& [begin, bytes] : {std::pair{4095u, 2u}, {4096u, 4096u}, {500000u, 10u}, {0u, 2u << 20}}) {
      const auto overlapping = CuFileBuffer::make(std::span(memory).subspan(begin, bytes), options());
      EXPECT_EQ(overlapping.status().code(), Code::internal) << begin;
    }
    auto beside = CuFileBuffer::make(std::span(memory).subspan(4096 + kMiB), options());
    ASSERT_TRUE(beside.ok()) << beside.status().message();
    const CuFileBuffer moved = std::move(*beside);
    EXPECT_EQ(fake_->buffers, 2);
  }
  EXPECT_EQ(fake_->buffers, 0);
  read_at(4096 + 999, 700000);
  EXPECT_EQ(fake_->based_reads, 0);

  fake_->buffer_code = 5016;
  const Status refused = CuFileBuffer::make(memory, options()).status();
  EXPECT_EQ(refused.code(), Code::io_error);
  expect_one_line(refused, "cuFile error 5016, more memory than may be pinned");
}

TEST_F(CuFile, TheSessionLastsAsLongAsAnythingNeedsIt) {
  open();
  std::vector<std::byte> memory(8192);
  auto buffer = CuFileBuffer::make(memory, options());
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(cufile_available(file_.path(), options()).ok());
  EXPECT_EQ(fake_->handles, 2);
  backend_.reset();
  EXPECT_EQ(fake_->open_now, 1);
  EXPECT_EQ(fake_->opened, 1);
  *buffer = CuFileBuffer();
  EXPECT_EQ(fake_->open_now, 0);
  open();
  EXPECT_EQ(fake_->opened, 2);
}

TEST_F(CuFile, ADriverThatDoesNotOpenIsARefusal) {
  fake_->open_code = 5004;
  const Status status = refusal();
  EXPECT_EQ(status.code(), Code::unsupported);
  expect_one_line(status, "nvidia-fs and libcufile are of different versions");
}

TEST_F(CuFile, AFileThatIsNotTakenIsARefusalWithAdvice) {
  for (const int code : {5027, 5008, 5034}) {
    fake_->register_code = code;
    const Status status = refusal();
    EXPECT_EQ(status.code(), Code::unsupported);
    expect_one_line(status, file_.path());
    expect_one_line(status, fmt::format("cuFile error {}", code));
    EXPECT_EQ(cufile_available(file_.path(), options()).status().message(), status.message());
  }
}

TEST_F(CuFile, WrongPathsAreNotARefusal) {
  EXPECT_EQ(open_cufile({"/nowhere/model.gguf"}, options()).status().code(), Code::not_found);
  EXPECT_EQ(open_cufile({MILLRACE_BINARY_DIR}, options()).status().code(), Code::invalid_argument);
  EXPECT_EQ(open_cufile({}, options()).status().code(), Code::invalid_argument);
}

TEST_F(CuFile, ALibraryWithoutPropertiesIsTakenAsItIs) {
  fake_->has_properties = false;
  const auto way = cufile_available(file_.path(), options());
  ASSERT_TRUE(way.ok()) << way.status().message();
  EXPECT_FALSE(way->direct);
  EXPECT_EQ(way->reason.find("allows no compatibility"), std::string::npos) << way->reason;
}

TEST_F(CuFile, ClosesWithReadsInFlight) {
  open();
  Anywhere to(0, 3 * kMiB);
  const Read read = to.read();
  Completion completion;
  for (int i = 0; i < 20; ++i) backend_->submit({&read, 1}, completion);
  backend_.reset();
  ASSERT_TRUE(completion.done());
  const Status status = completion.wait();
  EXPECT_TRUE(status.ok() || status.code() == Code::cancelled) << status.message();
}

TEST_F(CuFile, FaultsCanBeInjected) {
  open();
  backend_ = inject_faults(std::move(backend_), {*parse_fault("eio@1"), *parse_fault("short@2")});
  EXPECT_EQ(backend_->traits().memory, Memory::device);
  Anywhere to(1234, 100000);
  EXPECT_TRUE(read_now(*backend_, to.read()).ok());
  EXPECT_EQ(read_now(*backend_, to.read()).code(), Code::io_error);
  const Status half = read_now(*backend_, to.read());
  EXPECT_EQ(half.code(), Code::io_error);
  expect_one_line(half, "50000 bytes came of 100000");
  EXPECT_TRUE(read_now(*backend_, to.read()).ok());
  EXPECT_EQ(to.first_wrong(), 100000u);
}

TEST(CuFileWayTest, SaysWhichWayAndWhatWouldMakeItDirect) {
  const CuFileFacts nvme{
      .nvidia_fs = true, .disk = "nvme0n1p2", .file_system = "ext4", .device = "259:2", .in_udev = true};
  EXPECT_TRUE(cufile_way(nvme).direct);
  EXPECT_EQ(cufile_way(nvme).reason, "direct: by DMA from nvme0n1p2 to the GPU, by nvidia-fs");

  CuFileFacts facts = nvme;
  facts.nvidia_fs = false;
  facts.peer_to_peer = true;
  EXPECT_EQ(cufile_way(facts).reason, "direct: by DMA from nvme0n1p2 to the GPU, by PCI peer-to-peer DMA");
  facts.peer_to_peer = false;
  EXPECT_FALSE(cufile_way(facts).direct);
  EXPECT_TRUE(cufile_way(facts).reason.ends_with("direct reads need nvidia-fs or PCI peer-to-peer DMA"))
      << cufile_way(facts).reason;
  facts.disk = "vda";
  EXPECT_TRUE(cufile_way(facts).reason.ends_with(
      "direct reads need an NVMe disk (the file is on vda) and nvidia-fs or PCI peer-to-peer DMA"))
      << cufile_way(facts).reason;
  facts.nvidia_fs = true;
  EXPECT_FALSE(cufile_way(facts).direct);
  EXPECT_TRUE(cufile_way(facts).reason.ends_with("direct reads need an NVMe disk (the file is on vda)"));
  facts.disk.clear();
  facts.file_system = "overlay";
  EXPECT_FALSE(cufile_way(facts).direct);
  facts.file_system = "lustre";
  EXPECT_EQ(cufile_way(facts).reason, "direct: by DMA from lustre to the GPU, by nvidia-fs");
  facts.compat_allowed = facts.nvidia_fs = false;
  EXPECT_TRUE(cufile_way(facts).reason.ends_with("cufile.json allows no compatibility mode"));
}

TEST(CuFileWayTest, AdvisesWhereAFileIsNotTaken) {
  CuFileFacts facts{.disk = "vda", .file_system = "xfs", .device = "252:1"};
  const std::string entry = cufile_advice(5027, facts);
  EXPECT_NE(entry.find("mkdir -p /run/udev/data; printf 'I:1\\nE:ID_FS_TYPE=xfs\\nE:ID_FS_USAGE=filesystem\\nV:1\\n' > "
                       "/run/udev/data/b252:1"),
            std::string::npos)
      << entry;
  EXPECT_EQ(entry.find('\n'), std::string::npos);
  facts.in_udev = true;
  EXPECT_EQ(cufile_advice(5027, facts), "cufile.log in the working directory has the reason");
  facts.compat_allowed = false;
  EXPECT_NE(cufile_advice(5049, facts).find("properties.allow_compat_mode"), std::string::npos);
  facts.disk.clear();
  facts.file_system = "overlay";
  EXPECT_EQ(cufile_advice(5027, facts),
            "its file system, overlay, has no block device that cuFile knows; put the file on ext4 or XFS");
}

TEST(CutExactly, CoversTheReadOnceWithAlignedMiddles) {
  const TestFile file(kFileBytes);
  const FileSet files = FileSet::open({file.path()}, FileSet::Access::buffered).value();
  std::mt19937_64 random(3);
  std::vector<std::byte> memory(kFileBytes);
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t offset = i % 5 == 0 ? random() % 700 * 4096 : random() % kFileBytes;
    const std::uint64_t bytes = random() % (kFileBytes - offset) + 1;
    const std::uint64_t limit = 4096 * (1 + random() % 100);
    const Read read{.file = 0, .offset = offset, .bytes = bytes, .destination = memory.data()};
    Completion completion;
    Fifo<Request> requests;
    cut_reads_exactly({&read, 1}, files, limit, completion, requests);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
    int unaligned = 0;
    while (!requests.empty()) {
      const Request request = requests.pop();
      EXPECT_EQ(request.destination, memory.data() + (request.offset - offset));
      EXPECT_EQ(request.needed, request.bytes);
      EXPECT_EQ(request.lead, 0u);
      EXPECT_GT(request.bytes, 0u);
      EXPECT_LE(request.bytes, std::max<std::uint64_t>(limit, 64 * kKiB));
      if (request.offset % 4096 != 0 || request.bytes % 4096 != 0) ++unaligned;
      parts.emplace_back(request.offset, request.bytes);
      request.completion->finish_one(Status());
    }
    EXPECT_TRUE(completion.done());
    std::sort(parts.begin(), parts.end());
    std::uint64_t at = offset;
    for (const auto& [begin, length] : parts) {
      ASSERT_EQ(begin, at) << "read of " << bytes << " at " << offset;
      at += length;
    }
    ASSERT_EQ(at, offset + bytes);
    EXPECT_LE(unaligned, 2);
  }
}

}  // namespace
}  // namespace millrace::storage
