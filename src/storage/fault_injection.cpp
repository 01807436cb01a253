#include "storage/fault_injection.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "storage/request.h"

namespace millrace::storage {
namespace {

using Clock = std::chrono::steady_clock;

struct KindName {
  std::string_view name;
  Fault::Kind kind;
};
constexpr std::array<KindName, 5> kKinds = {{{"eio", Fault::Kind::eio},
                                             {"short", Fault::Kind::short_read},
                                             {"stall", Fault::Kind::stall},
                                             {"truncated", Fault::Kind::truncated},
                                             {"slow", Fault::Kind::slow}}};

/// Removes "<sign><number>" from the front of `text`; nullopt, and nothing is removed, if it is missing.
std::optional<std::uint64_t> take_number(std::string_view& text, char sign) {
  if (text.empty() || text[0] != sign) return std::nullopt;
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data() + 1, end, value);
  if (code != std::errc{} || stop == text.data() + 1) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return value;
}

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, std::vector<Fault> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)), delayer_([this] { release_stalled(); }) {}
  ~FaultyBackend() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    delayer_.join();
  }

  const BackendTraits& traits() const override { return inner_->traits(); }
  // in_place() stays nullptr, because bytes used in place bypass the faults.
  void register_memory(std::span<std::byte> range) override { inner_->register_memory(range); }
  Counters counters() const override { return inner_->counters(); }

  Status health() const override {
    if (truncated_) return error(Code::io_error, "injected fault: the file was truncated: start again");
    return inner_->health();
  }

  void submit(std::span<const Read> reads, Completion& completion) override {
    const Hold hold(completion);
    std::vector<Read> sound;
    for (const Read& read : reads) {
      const Fault* fault = next_fault();
      if (fault == nullptr) {
        sound.push_back(read);
      } else {
        fail(*fault, read, completion);
      }
    }
    inner_->submit(sound, completion);
  }

 private:
  struct Stalled {
    Clock::time_point until;
    Read read;
    Completion* completion;
  };

  /// The fault for the next read, if any.
  const Fault* next_fault() {
    const std::uint64_t index = reads_.fetch_add(1);
    for (const Fault& fault : faults_) {
      if (index >= fault.after_reads && index - fault.after_reads < fault.count) return &fault;
    }
    return nullptr;
  }

  void fail(const Fault& fault, Read read, Completion& completion) {
    completion.expect(1);
    switch (fault.kind) {
      case Fault::Kind::eio:
        completion.finish_one(error(Code::io_error, "injected fault: reading {} bytes at {} failed: Input/output error",
                                    read.bytes, read.offset));
        break;
      case Fault::Kind::short_read: {
        const std::uint64_t asked = read.bytes;
        read.bytes /= 2;
        inner_->submit({&read, 1}, completion);
        completion.finish_one(error(Code::io_error,
                                    "injected fault: {} bytes came of {} at {}: truncated? Get it again", read.bytes,
                                    asked, read.offset));
        break;
      }
      case Fault::Kind::truncated:
        truncated_ = true;
        completion.finish_one(error(Code::io_error,
                                    "injected fault: the file ends before byte {}: truncated? Get it again",
                                    read.offset + read.bytes));
        break;
      case Fault::Kind::stall: {
        const MutexLock lock(mutex_);
        stalled_.push_back({Clock::now() + std::chrono::milliseconds(fault.stall_ms), read, &completion});
        wake_.notify_all();
        break;
      }
      case Fault::Kind::slow: {
        const std::chrono::duration<double, std::milli> takes(static_cast<double>(read.bytes) / 1e6 *
                                                              static_cast<double>(fault.stall_ms));
        const MutexLock lock(mutex_);
        disk_free_ = std::max(disk_free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
        stalled_.push_back({disk_free_, read, &completion});
        wake_.notify_all();
        break;
      }
    }
  }

  /// The delaying thread: forwards each stalled read after its delay, or when the backend is closed.
  void release_stalled() {
    MutexLock lock(mutex_);
    while (true) {
      const auto first = std::min_element(stalled_.begin(), stalled_.end(),
                                          [](const Stalled& a, const Stalled& b) { return a.until < b.until; });
      if (first == stalled_.end()) {
        if (stopping_) return;
        wake_.wait(mutex_);
        continue;
      }
      if (!stopping_ && Clock::now() < first->until) {
        wake_.wait_until(mutex_, Clock::time_point(first->until));
        continue;
      }
      const Stalled due = *first;
      stalled_.erase(first);
      lock.unlock();
      inner_->submit({&due.read, 1}, *due.completion);
      due.completion->finish_one(Status());
      lock.lock();
    }
  }

  const std::unique_ptr<Backend> inner_;
  const std::vector<Fault> faults_;
  std::atomic<std::uint64_t> reads_{0};
  std::atomic<bool> truncated_{false};
  Mutex mutex_;
  CondVar wake_;
  std::vector<Stalled> stalled_ MR_GUARDED_BY(mutex_);
  Clock::time_point disk_free_ MR_GUARDED_BY(mutex_){};  // slow: when all reads so far are complete
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread delayer_;  // last: it uses all of the above
};

}  // namespace

Expected<Fault> parse_fault(std::string_view text) {
  const auto bad = [&] {
    return error(Code::invalid_argument,
                 "'{}' is not a fault; write for example eio@100, short@5x3, stall:5000@20, slow:50 or truncated",
                 text);
  };
  const std::string_view name = text.substr(0, text.find_first_of(":@x"));
  const auto* const kind =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const KindName& known) { return known.name == name; });
  if (kind == kKinds.end()) return bad();
  std::string_view rest = text.substr(name.size());
  Fault fault;
  fault.kind = kind->kind;
  const bool slow = fault.kind == Fault::Kind::slow;
  if (slow || fault.kind == Fault::Kind::stall) {
    const auto stall_ms = take_number(rest, ':');
    if (!stall_ms || *stall_ms > 3'600'000) return bad();
    fault.stall_ms = *stall_ms;
  }
  fault.after_reads = take_number(rest, '@').value_or(0);
  fault.count = take_number(rest, 'x').value_or(slow ? UINT64_MAX : 1);
  if (!rest.empty()) return bad();
  return fault;
}

std::unique_ptr<Backend> inject_faults(std::unique_ptr<Backend> inner, std::vector<Fault> faults) {
  return std::make_unique<FaultyBackend>(std::move(inner), std::move(faults));
}

}  // namespace millrace::storage
