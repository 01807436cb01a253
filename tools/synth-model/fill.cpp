#include "synth-model/fill.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/os/terminal.h"
#include "device/host_memory.h"

namespace millrace::synth {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kChunkBytes = 8u << 20, kPage = 4096;

struct Chunk {
  int file;
  std::uint64_t begin, end;  // begins on a page except at a data section's start
};

std::vector<Chunk> cut(const modelfile::Writer& writer) {
  std::vector<Chunk> chunks;
  for (std::size_t file = 0; file < writer.paths().size(); ++file) {
    const std::uint64_t end = writer.file_bytes()[file];
    std::uint64_t begin = writer.data_begin()[file];
    // Short pieces up to the first page and after the last one, so that what lies between can be written directly.
    const std::uint64_t first_page = std::min(round_up(begin, kPage), end), last_page = round_down(end, kPage);
    if (begin < first_page) chunks.push_back({static_cast<int>(file), begin, first_page});
    for (begin = first_page; begin < last_page; begin += kChunkBytes) {
      chunks.push_back({static_cast<int>(file), begin, std::min(begin + kChunkBytes, last_page)});
    }
    begin = std::max(first_page, last_page);
    if (begin < end) chunks.push_back({static_cast<int>(file), begin, end});
  }
  return chunks;
}

/// The state that the writing threads share.
class Job {
 public:
  Job(modelfile::Writer& writer, std::span<const Tensor> tensors, const Pools& pools, std::uint64_t seed)
      : writer_(writer), tensors_(tensors), pools_(pools), seed_(seed), chunks_(cut(writer)) {
    for (const Chunk& chunk : chunks_) total_ += chunk.end - chunk.begin;
  }

  Status run(int threads) {
    {
      const MutexLock lock(mutex_);
      running_ = threads;
    }
    std::vector<std::thread> workers;
    workers.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    show_progress();
    for (std::thread& worker : workers) worker.join();
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  void work() {
    // In huge pages: direct writes from them take far fewer segments.
    auto buffer = device::HostBuffer::reserve(kChunkBytes, device::Pages::huge);
    Status status = buffer.status();
    while (status.ok() && !failed_.load(std::memory_order_relaxed)) {
      const std::size_t next = next_.fetch_add(1, std::memory_order_relaxed);
      if (next >= chunks_.size()) break;
      const Chunk& chunk = chunks_[next];
      const auto bytes = std::span(buffer->data(), static_cast<std::size_t>(chunk.end - chunk.begin));
      compose(chunk, bytes);
      status = writer_.write_range(chunk.file, chunk.begin, bytes);
      done_.fetch_add(bytes.size(), std::memory_order_relaxed);
    }
    const MutexLock lock(mutex_);
    if (!status.ok()) {
      failed_ = true;
      if (status_.ok()) status_ = status;
    }
    if (--running_ == 0) ended_.notify_all();
  }

  /// The bytes of a chunk: pieces of tensors, zeros between them.
  void compose(const Chunk& chunk, std::span<std::byte> out) const {
    const auto& layout = writer_.layout();
    const auto before = [](const modelfile::TensorInfo& tensor, const Chunk& place) {
      return tensor.file < place.file || (tensor.file == place.file && tensor.offset + tensor.bytes <= place.begin);
    };
    std::uint64_t at = chunk.begin;
    for (auto it = std::lower_bound(layout.begin(), layout.end(), chunk, before);
         it != layout.end() && it->file == chunk.file && it->offset < chunk.end; ++it) {
      const std::uint64_t begin = std::max(it->offset, chunk.begin), end = std::min(it->offset + it->bytes, chunk.end);
      std::memset(out.data() + (at - chunk.begin), 0, begin - at);
      const auto index = static_cast<std::size_t>(it - layout.begin());
      pools_.of(tensors_[index])
          .fill(mix(seed_ ^ mix(index)), begin - it->offset, out.subspan(begin - chunk.begin, end - begin));
      at = end;
    }
    std::memset(out.data() + (at - chunk.begin), 0, chunk.end - at);
  }

  void show_progress() {
    const bool terminal = os::is_terminal(os::Stream::errors);
    const auto start = Clock::now();
    bool shown = false;
    const MutexLock lock(mutex_);
    while (!ended_.wait_for(mutex_, std::chrono::milliseconds(terminal ? 200 : 5000),
                            [&]() MR_REQUIRES(mutex_) { return running_ == 0; })) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (seconds < 1) continue;
      draw(terminal, seconds);
      shown = true;
    }
    if (shown && terminal) std::fprintf(stderr, "\r\033[K");
  }

  void draw(bool terminal, double seconds) const {
    const std::uint64_t done = done_.load(std::memory_order_relaxed);
    const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
    constexpr int width = 30;
    const int full = static_cast<int>(share * width);
    const double rate = static_cast<double>(done) / seconds;
    const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
    const std::string line =
        fmt::format("{}{:>4.0f} %  {} of {}  {}/s  {:.0f} s left",
                    terminal ? fmt::format("[{:#>{}}{:.>{}}]", "", full, "", width - full) : "writing", 100 * share,
                    format_bytes(done), format_bytes(total_), format_bytes(static_cast<std::uint64_t>(rate)), left);
    std::fprintf(stderr, terminal ? "\r%s\033[K" : "%s\n", line.c_str());
  }

  modelfile::Writer& writer_;
  std::span<const Tensor> tensors_;
  const Pools& pools_;
  const std::uint64_t seed_;
  const std::vector<Chunk> chunks_;
  std::uint64_t total_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  CondVar ended_;
  int running_ MR_GUARDED_BY(mutex_) = 0;
  Status status_ MR_GUARDED_BY(mutex_);
};

}  // namespace

Status fill_tensors(modelfile::Writer& writer, std::span<const Tensor> tensors, const Pools& pools, std::uint64_t seed,
                    int threads) {
  return Job(writer, tensors, pools, seed).run(threads);
}

}  // namespace millrace::synth
