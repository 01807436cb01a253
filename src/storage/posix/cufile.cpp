#include "storage/cufile.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/bytes.h"
#include "base/log.h"
#include "storage/pool_backend.h"

#ifdef MILLRACE_HAS_GPU
#include "device/device.h"
#endif
#include "device/gpu.h"

namespace millrace::storage {
namespace {

namespace fs = std::filesystem;

/// The default stack size, because the needs of NVIDIA's libraries are unknown.
constexpr std::size_t kStackBytes = 8u << 20;
constexpr unsigned kCompatAllowed = 1u << 1;  // of CuFileProperties::control_flags
constexpr unsigned kPeerToPeer = 1u << 4;     // of CuFileProperties::feature_flags
/// File systems that nvidia-fs can let the network card write to the GPU.
constexpr std::array<std::string_view, 6> kRemote = {"lustre", "wekafs", "gpfs", "nfs", "nfs4", "beegfs"};

/// cuFile works in the calling thread's CUDA context.
Status use_device(int device) {
  if (device < 0) return {};
#ifdef MILLRACE_HAS_GPU
  return device::use_gpu(device);
#else
  return device::gpus().status();
#endif
}

/// If there is no GPU, reports that; the failing call's own error would not.
Status ready(const CuFileOptions& options) {
  if (options.device >= 0) {
    const auto gpus = device::gpus();
    if (!gpus.ok()) return gpus.status();
    MR_RETURN_IF_ERROR(use_device(options.device));
  }
  return {};
}

/// "ext4" for "252:1", from the table of mounts; empty if it is missing.
std::string file_system_of(const std::string& device) {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, place, word;
    words >> id >> parent >> place;
    if (place != device) continue;
    while (words >> word && word != "-") {
    }
    if (words >> word) return word;
  }
  return {};
}

bool known_to_udev(const std::string& device) {
  std::ifstream entry("/run/udev/data/b" + device);
  bool type = false, usage = false;
  for (std::string line; std::getline(entry, line);) {
    type = type || line.starts_with("E:ID_FS_TYPE=");
    usage = usage || line.starts_with("E:ID_FS_USAGE=");
  }
  return type && usage;
}

CuFileFacts facts_of(const CuFileLibrary& library, const FileSet& files, int file) {
  CuFileFacts facts;
  std::error_code code;
  if (const auto told = library.properties(); told.has_value()) {
    facts.nvidia_fs = fs::exists("/proc/driver/nvidia-fs", code) && told->driver_major + told->driver_minor > 0;
    facts.peer_to_peer = (told->feature_flags & kPeerToPeer) != 0;
    facts.compat_allowed = (told->control_flags & kCompatAllowed) != 0;
  }
  facts.device = files.device(file);
  const fs::path disk = fs::read_symlink("/sys/dev/block/" + facts.device, code);
  if (!code) facts.disk = disk.filename().string();
  facts.file_system = file_system_of(facts.device);
  facts.in_udev = known_to_udev(facts.device);
  return facts;
}

class CuFileBackend final : public PoolBackend {
 public:
  CuFileBackend(CuFileSession session, FileSet files, std::vector<CuFileHandle> handles, BackendTraits traits,
                const CuFileOptions& options)
      : PoolBackend(std::move(files), std::move(traits), options.request_bytes),
        session_(std::move(session)),
        handles_(std::move(handles)),
        device_(options.device) {}
  ~CuFileBackend() override {
    stop();
    handles_.clear();  // before the session, and before the base closes the descriptors
  }
  using PoolBackend::start;

 private:
  Status enter_thread() override { return use_device(device_); }

  void cut(std::span<const Read> reads, Completion& completion, Fifo<Request>& out) override {
    cut_reads_exactly(reads, files_, request_bytes(), completion, out);
  }

  std::int64_t attempt(const Request& request) override {
    const std::uint64_t next = request.next(files_.alignment());
    return session_->read(handles_[static_cast<std::size_t>(request.file)].get(), request.destination + next,
                          request.bytes - next, request.offset + next);
  }

  std::string (*cause() const)(int) override { return cufile_cause; }

  CuFileSession session_;
  std::vector<CuFileHandle> handles_;
  const int device_;
};

/// Opens with O_DIRECT if the file system supports it; otherwise cuFile reads through the page cache.
Expected<FileSet> open_files(const std::vector<std::string>& paths) {
  Expected<FileSet> direct = FileSet::open(paths, FileSet::Access::direct);
  if (direct.ok() || direct.status().code() != Code::unsupported) return direct;
  log::info("storage: {}; cuFile reads through the page cache", direct.status().message());
  return FileSet::open(paths, FileSet::Access::buffered);
}

Expected<std::vector<CuFileHandle>> register_files(CuFileLibrary* library, const FileSet& files) {
  std::vector<CuFileHandle> handles;
  for (int i = 0; i < files.count(); ++i) {
    void* handle = nullptr;
    if (const int code = library->register_handle(static_cast<int>(files.handle(i)), handle); code != 0)
      return error(Code::unsupported, "cuFile does not take {} ({}): {}", files.path(i), cufile_cause(code),
                   cufile_advice(code, facts_of(*library, files, i)));
    handles.emplace_back(library, handle);
  }
  return handles;
}

/// Direct only if every file is; the reason is that of the first file that is not.
CuFileWay way_of(const CuFileLibrary& library, const FileSet& files) {
  CuFileWay way;
  for (int i = 0; i < files.count(); ++i) {
    way = cufile_way(facts_of(library, files, i));
    if (!way.direct) break;
  }
  return way;
}

}  // namespace

CuFileWay cufile_way(const CuFileFacts& facts) {
  const bool nvme = facts.disk.starts_with("nvme");
  const bool network = facts.disk.empty();
  const bool remote_dma = std::find(kRemote.begin(), kRemote.end(), facts.file_system) != kRemote.end();
  const bool dma = facts.nvidia_fs || facts.peer_to_peer;
  if (dma && (nvme || (remote_dma && facts.nvidia_fs))) {
    return {true, fmt::format("direct: by DMA from {} to the GPU, by {}", nvme ? facts.disk : facts.file_system,
                              facts.nvidia_fs ? "nvidia-fs" : "PCI peer-to-peer DMA")};
  }
  std::string change;
  if (!nvme && !network) change = fmt::format("an NVMe disk (the file is on {})", facts.disk);
  if (network)
    change = fmt::format("a local NVMe disk (the file is on {})",
                         facts.file_system.empty() ? "no block device" : facts.file_system);
  if (!dma) change += fmt::format("{}nvidia-fs or PCI peer-to-peer DMA", change.empty() ? "" : " and ");
  return {false, fmt::format("in compatibility mode: the library reads into host memory and copies from there to the "
                             "GPU; direct reads need {}{}",
                             change, facts.compat_allowed ? "" : ", and cufile.json allows no compatibility mode")};
}

std::string cufile_advice(int code, const CuFileFacts& facts) {
  constexpr std::array kAboutTheDisk = {5008, 5027, 5030};
  const bool about_disk = std::find(kAboutTheDisk.begin(), kAboutTheDisk.end(), code) != kAboutTheDisk.end();
  if (about_disk && facts.disk.empty())
    return fmt::format("its file system{} has no block device that cuFile knows; put the file on ext4 or XFS",
                       facts.file_system.empty() ? "" : ", " + facts.file_system + ",");
  if (about_disk && !facts.in_udev) {
    const std::string& type = facts.file_system.empty() ? "ext4" : facts.file_system;
    return fmt::format(
        "cuFile asks udev what {} holds, and udev does not know it; start udevd, or (as root) mkdir -p /run/udev/data; "
        "printf 'I:1\\nE:ID_FS_TYPE={}\\nE:ID_FS_USAGE=filesystem\\nV:1\\n' > /run/udev/data/b{}",
        facts.disk, type, facts.device);
  }
  if (!facts.compat_allowed)
    return "cufile.json forbids compatibility mode; set properties.allow_compat_mode to true there";
  return "cufile.log in the working directory has the reason";
}

Expected<std::unique_ptr<Backend>> open_cufile(const std::vector<std::string>& paths, const CuFileOptions& options) {
  MR_ASSIGN_OR_RETURN(FileSet files, open_files(paths));
  MR_RETURN_IF_ERROR(CuFileLibrary::load(options.library).status());  // before a GPU is asked for anything
  MR_RETURN_IF_ERROR(ready(options));
  MR_ASSIGN_OR_RETURN(CuFileSession session, CuFileSession::open(options.library));
  MR_ASSIGN_OR_RETURN(std::vector<CuFileHandle> handles, register_files(session.get(), files));
  const CuFileWay way = way_of(*session.get(), files);
  log::info("storage: cuFile {}; requests of up to {}, {} threads", way.reason, format_bytes(options.request_bytes),
            options.threads);
  BackendTraits traits{.name = "cuFile",
                       .alignment = 1,
                       .bypasses_page_cache = files.alignment() > 1,
                       .memory = Memory::device,
                       .reason = way.reason};
  auto backend = std::make_unique<CuFileBackend>(std::move(session), std::move(files), std::move(handles),
                                                 std::move(traits), options);
  MR_RETURN_IF_ERROR(backend->start(options.threads, kStackBytes));
  return std::unique_ptr<Backend>(std::move(backend));
}

Expected<CuFileWay> cufile_available(const std::string& path, const CuFileOptions& options) {
  MR_ASSIGN_OR_RETURN(const FileSet files, open_files({path}));
  MR_RETURN_IF_ERROR(CuFileLibrary::load(options.library).status());
  MR_RETURN_IF_ERROR(ready(options));
  MR_ASSIGN_OR_RETURN(const CuFileSession session, CuFileSession::open(options.library));
  MR_ASSIGN_OR_RETURN(const std::vector<CuFileHandle> handles, register_files(session.get(), files));
  return way_of(*session.get(), files);
}

Expected<CuFileBuffer> CuFileBuffer::make(std::span<std::byte> memory, const CuFileOptions& options) {
  if (memory.empty()) return error(Code::internal, "no memory to register with cuFile");
  MR_RETURN_IF_ERROR(CuFileLibrary::load(options.library).status());
  MR_RETURN_IF_ERROR(ready(options));
  CuFileBuffer buffer;
  MR_ASSIGN_OR_RETURN(buffer.session_, CuFileSession::open(options.library));
  MR_RETURN_IF_ERROR(buffer.session_->register_buffer(memory));
  buffer.data_ = memory.data();
  return buffer;
}

CuFileBuffer::~CuFileBuffer() {
  if (data_ != nullptr) session_->release_buffer(data_);
}

}  // namespace millrace::storage
