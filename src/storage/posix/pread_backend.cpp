// pread from a pool of threads, past the page cache (O_DIRECT) or through it. Works everywhere.
#include <unistd.h>

#include <cerrno>

#include "storage/backends.h"
#include "storage/pool_backend.h"

namespace millrace::storage {
namespace {

class PreadBackend final : public PoolBackend {
 public:
  PreadBackend(FileSet files, bool direct, std::uint64_t request_bytes)
      : PoolBackend(std::move(files), direct ? "pread+O_DIRECT" : "pread", direct, request_bytes) {}
  ~PreadBackend() override { stop(); }
  using PoolBackend::start;

 private:
  std::int64_t attempt(const Request& request) override {
    const std::uint64_t next = request.next(files_.alignment());
    const ssize_t result = pread(static_cast<int>(files_.handle(request.file)), request.destination + next,
                                 request.bytes - next, static_cast<off_t>(request.offset + next));
    return result < 0 ? -errno : result;
  }
};

}  // namespace

Opened open_pread(const std::vector<std::string>& paths, const OpenOptions& options, bool direct) {
  using Access = FileSet::Access;
  MR_ASSIGN_OR_RETURN(FileSet files, FileSet::open(paths, direct ? Access::direct : Access::buffered));
  auto backend = std::make_unique<PreadBackend>(std::move(files), direct, options.request_bytes);
  MR_RETURN_IF_ERROR(backend->start(options.threads));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace::storage
