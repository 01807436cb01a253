// ReadFile from a pool of threads, past the cache (FILE_FLAG_NO_BUFFERING) or through it. Works everywhere.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "storage/backends.h"
#include "storage/pool_backend.h"
#include "storage/win32/system.h"

namespace millrace::storage {
namespace {

// Requests past the cache are whole multiples of what Windows allocates and maps at once, but for a read's last one.
constexpr std::uint64_t kGranule = 64 * kKiB;

/// The files as one thread of the pool has them.
struct ThreadFiles {
  std::vector<OverlappedFile> files;  // as the backend reads them
  std::vector<OverlappedFile> tails;  // through the cache; empty where `files` are
};
thread_local const ThreadFiles* files_of_thread = nullptr;

class FileBackend final : public PoolBackend {
 public:
  FileBackend(FileSet files, bool direct, std::uint64_t request_bytes)
      : PoolBackend(std::move(files), direct ? "ReadFile+NO_BUFFERING" : "ReadFile", direct, request_bytes),
        direct_(direct) {}
  ~FileBackend() override { stop(); }

  /// Opens the files for every thread before the first one starts, so that an error is the caller's. threads: for each
  /// disk.
  Status start_threads(int threads) {
    threads = std::max(threads, 1);
    {
      const MutexLock lock(mutex_);
      for (int i = 0; i < threads * files_.disks(); ++i) {
        MR_ASSIGN_OR_RETURN(ThreadFiles files, open_again());
        of_threads_.push_back(std::make_unique<ThreadFiles>(std::move(files)));
      }
    }
    return start(threads);
  }

 private:
  Expected<ThreadFiles> open_again() const {
    ThreadFiles opened;
    for (int i = 0; i < files_.count(); ++i) {
      MR_ASSIGN_OR_RETURN(OverlappedFile file, OverlappedFile::open_again(files_.handle(i), files_.path(i),
                                                                          direct_ ? files_.alignment() : 1));
      opened.files.push_back(std::move(file));
      if (!direct_) continue;
      MR_ASSIGN_OR_RETURN(OverlappedFile tail, OverlappedFile::open_again(files_.handle(i), files_.path(i), 1));
      opened.tails.push_back(std::move(tail));
    }
    return opened;
  }

  Status enter_thread() override {
    const MutexLock lock(mutex_);
    files_of_thread = of_threads_[entered_++].get();
    return {};
  }

  void cut(std::span<const Read> reads, Completion& completion, Fifo<Request>& out) override {
    cut_reads(reads, files_, request_bytes(), completion, out, direct_ ? kGranule : kMaxAlignment);
  }

  std::int64_t attempt(const Request& request) override {
    const auto file = static_cast<std::size_t>(request.file);
    const std::uint64_t next = request.next(files_.alignment());
    const std::uint64_t offset = request.offset + next;
    const std::uint64_t bytes = request.bytes - next;
    std::byte* const to = request.destination + next;
    // A file's last part of a block comes through the cache: what a driver makes of a read past its end is its own.
    const std::uint64_t whole = round_down(files_.bytes(request.file), files_.alignment());
    if (!direct_ || offset < whole)
      return files_of_thread->files[file].read(offset, direct_ ? std::min(bytes, whole - offset) : bytes, to);
    return files_of_thread->tails[file].read(offset, bytes, to);
  }

  std::string (*cause() const)(int) override { return attempt_cause; }

  const bool direct_;
  Mutex mutex_;
  std::vector<std::unique_ptr<ThreadFiles>> of_threads_ MR_GUARDED_BY(mutex_);
  std::size_t entered_ MR_GUARDED_BY(mutex_) = 0;  // threads that have theirs
};

}  // namespace

Opened open_pread(const std::vector<std::string>& paths, const OpenOptions& options, bool direct) {
  using Access = FileSet::Access;
  MR_ASSIGN_OR_RETURN(FileSet files, FileSet::open(paths, direct ? Access::direct : Access::buffered));
  auto backend = std::make_unique<FileBackend>(std::move(files), direct, options.request_bytes);
  MR_RETURN_IF_ERROR(backend->start_threads(options.threads));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace::storage
