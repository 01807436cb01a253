// Files mapped read-only, whose bytes are used in place. For models that fit in memory: the page cache is the only
// copy.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "device/cpu.h"
#include "storage/backends.h"
#include "storage/guarded_map.h"
#include "storage/pool_backend.h"

namespace millrace::storage {
namespace {

class MmapBackend final : public PoolBackend {
 public:
  MmapBackend(FileSet files, std::vector<GuardedMap> maps, std::uint64_t request_bytes)
      : PoolBackend(std::move(files), "mmap", false, request_bytes), maps_(std::move(maps)) {}
  ~MmapBackend() override { stop(); }
  using PoolBackend::start;

  const std::byte* in_place(int file, std::uint64_t offset, std::uint64_t bytes) const override {
    if (file < 0 || file >= files_.count()) return nullptr;
    const GuardedMap& map = maps_[file];
    return offset > map.bytes() || bytes > map.bytes() - offset ? nullptr : map.data() + offset;
  }

  Status health() const override {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      if (maps_[i].failed()) {
        return error(Code::io_error,
                     "{}: mapped bytes could not be read (file truncated, or the disk failed): start again",
                     files_.path(static_cast<int>(i)));
      }
    }
    return files_.health();
  }

 private:
  /// Copies from the map. A page that fails meanwhile becomes zeros, and the whole file is no longer trusted.
  std::int64_t attempt(const Request& request) override {
    const GuardedMap& map = maps_[request.file];
    std::memcpy(request.destination, map.data() + request.offset, request.bytes);
    return map.failed() ? -EIO : static_cast<std::int64_t>(request.bytes);
  }

  const std::vector<GuardedMap> maps_;
};

/// Reading the whole file ahead helps only if all of it can stay in memory.
void advise(const FileSet& files, const std::vector<GuardedMap>& maps) {
  const device::MemoryLimits limits = device::memory_limits();
  if (files.total_bytes() > std::min(limits.available_bytes, limits.cgroup_bytes) / 10 * 9) return;
  for (const GuardedMap& map : maps) map.read_ahead();
}

}  // namespace

Opened open_mmap(const std::vector<std::string>& paths, const OpenOptions& options) {
  MR_ASSIGN_OR_RETURN(FileSet files, FileSet::open(paths, FileSet::Access::buffered));
  std::vector<GuardedMap> maps;
  maps.reserve(paths.size());
  for (int i = 0; i < files.count(); ++i) {
    MR_ASSIGN_OR_RETURN(GuardedMap map, GuardedMap::map(files.handle(i), files.bytes(i), files.path(i)));
    maps.push_back(std::move(map));
  }
  advise(files, maps);
  auto backend = std::make_unique<MmapBackend>(std::move(files), std::move(maps), options.request_bytes);
  MR_RETURN_IF_ERROR(backend->start(options.threads));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace::storage
