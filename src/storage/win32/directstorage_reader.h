// A queue of DirectStorage with the thread that feeds it and waits for it. Internal to storage/; both backends of
// directstorage.h are made of it. Thread-safety: submit() and counters() from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/os/thread.h"
#include "storage/disk_queues.h"
#include "storage/request.h"
#include "storage/win32/directstorage.h"
#include "storage/win32/directstorage_library.h"
#include "storage/win32/system.h"

namespace millrace::storage {

/// Where the bytes of requests go. Called by the reader's thread alone.
class ReadTarget {
 public:
  virtual ~ReadTarget() = default;
  /// The device that fills the destinations; null: none does.
  virtual ID3D12Device* device() const { return nullptr; }
  /// Names the request's destination, for the entry `slot` of the requests under way. False: there is no room until
  /// one that is under way has landed. Errors: that request's.
  virtual Expected<bool> place(const Request& request, std::size_t slot, dstorage::Request& out) = 0;
  /// The request's bytes have arrived. Errors: that request's.
  virtual Status landed(const Request& request, std::size_t slot) = 0;
  /// It is over in another way.
  virtual void dropped(std::size_t slot) = 0;
};

class DirectStorageReader {
 public:
  /// Opens the files once more, with DirectStorage. `files` outlives the reader. Errors: those of open_directstorage().
  static Expected<std::unique_ptr<DirectStorageReader>> start(DirectStorageSession session, const FileSet& files,
                                                              std::unique_ptr<ReadTarget> target,
                                                              const DirectStorageOptions& options);
  /// Ends every read that is not over with Code::cancelled, and waits until nothing writes to memory any more.
  ~DirectStorageReader();
  DirectStorageReader(const DirectStorageReader&) = delete;
  DirectStorageReader& operator=(const DirectStorageReader&) = delete;

  /// Starts the requests that `cut` puts into a Fifo<Request>.
  template <typename Cut>
  void submit(const Cut& cut) {
    {
      const MutexLock lock(mutex_);
      meter_.started(waiting_.add(cut));
    }
    wake_.set();
  }
  Counters counters() const { return meter_.counters(); }

 private:
  /// A request under way. Its place among the others is the number of its entry of the status array.
  struct UnderWay {
    Request request;
    bool enqueued = false;  // false: it failed before
    Status failed;
  };

  DirectStorageReader(DirectStorageSession session, const FileSet& files, std::unique_ptr<ReadTarget> target,
                      const DirectStorageOptions& options);
  Status open(const DirectStorageOptions& options);
  void run();
  void wait_for_more();
  void retire();
  bool fill();
  std::optional<Request> take();
  void end(const Request& request, const Status& status);
  void drain(const Status& status);
  /// Why nothing can be read any more: closed, or the device lost.
  Status over();
  Status failed(const Request& request, HRESULT result) const;

  // In the order in which they must not go: the session last.
  DirectStorageSession session_;
  const FileSet& files_;
  const std::unique_ptr<ReadTarget> target_;
  std::vector<dstorage::Reference<dstorage::File>> opened_;
  dstorage::Reference<dstorage::Queue> queue_;
  dstorage::Reference<dstorage::Queue1> queue1_;  // the same; null: the library is too old to set an event
  dstorage::Reference<dstorage::StatusArray> status_;
  ScopedEvent wake_, arrived_;

  // The thread's own. Requests are under way in the ring [oldest_, next_), modulo its size.
  std::vector<UnderWay> ring_;
  std::uint64_t oldest_ = 0, next_ = 0;
  std::optional<Request> held_;  // taken from the queue, and without room at its target
  bool cancelled_ = false;
  Status lost_;

  Meter meter_;
  Mutex mutex_;
  DiskQueues waiting_ MR_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  os::Thread thread_;
};

}  // namespace millrace::storage
