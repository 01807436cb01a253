// device/device.h and the GPUs of device/gpu.h over simulated devices. See device.h.
#include "device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "device/gpu.h"
#include "device/link_pace.h"

namespace millrace {
namespace {

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* const said = std::getenv(name);
  return said == nullptr ? otherwise : std::strtoull(said, nullptr, 10);
}
int device_count() { return static_cast<int>(number_of("MILLRACE_SIMULATED_GPUS", 1)); }
std::uint64_t capacity() { return number_of("MILLRACE_SIMULATED_VRAM", 6144) * kMiB; }
bool valid(int device) { return device >= 0 && device < device_count(); }
Status no_device(int device) { return error(Code::unsupported, "there is no simulated GPU {}", device); }

thread_local int present = 0;

/// What is to become of a device, and whether it has.
struct Fault {
  std::atomic<std::int64_t> launches_left{INT64_MAX};
  std::atomic<bool> lost{false};
};
Fault& fault_of(int device) {
  static Fault faults[8];
  return faults[device];
}
Status lost(int device) { return error(Code::io_error, "the simulated GPU {} is lost", device); }
/// What a call about a device gives that may be lost.
Status here(int device) { return fault_of(device).lost ? lost(device) : Status(); }

/// A device's memory and link where they have rates; else null.
struct Pace {
  std::atomic<bool> given{false};
  std::mutex mutex;
  std::shared_ptr<device::LinkPace> memory, link;
  double host_slower = 1;  // products take so many times as long across the link as copies do
};
Pace& pace_of(int device) {
  static Pace paces[8];
  return paces[device];
}
/// The time by the rates at which this thread's stream has arrived. Without rates: the time.
thread_local Clock::time_point arrived{};

/// Takes the time of so many bytes on the present device.
void pass(std::size_t bytes, std::shared_ptr<device::LinkPace> Pace::*by) {
  Pace& pace = pace_of(present);
  if (!pace.given) return;
  std::shared_ptr<device::LinkPace> own;
  {
    const std::lock_guard lock(pace.mutex);
    own = pace.*by;
  }
  if (own == nullptr) return;
  arrived = own->crossed(arrived, bytes);
  std::this_thread::sleep_until(arrived);
}
/// Small copies travel between the packets of large ones.
constexpr std::size_t kSmallCopy = 4096;
void pass_link(std::size_t bytes) {
  if (bytes >= kSmallCopy) pass(bytes, &Pace::link);
}

std::atomic<std::uint64_t> graph_launches{0}, kernel_launches{0}, host_copies{0}, synchronisations{0}, allocations{0};

/// What each device has given out.
struct Memory {
  std::mutex mutex;
  std::map<int, std::uint64_t> used;
  std::map<void*, int> device_of;                       // of DeviceBuffers
  std::map<const std::byte*, std::size_t> page_locked;  // PinnedBuffers

  bool is_page_locked(const void* at, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(at);
    const std::lock_guard lock(mutex);
    auto next = page_locked.upper_bound(first);
    return next != page_locked.begin() && first + bytes <= std::prev(next)->first + std::prev(next)->second;
  }
  static Memory& get() {
    static Memory memory;
    return memory;
  }
};

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t asked = 0, reached = 0;
  int device = 0;  // that it was recorded on last
  Clock::time_point when{};

  std::uint64_t number() {
    const std::lock_guard lock(mutex);
    return asked;
  }
  /// When it was reached. Ends as well where the device is lost that would reach it.
  Clock::time_point await(std::uint64_t number) {
    constexpr std::chrono::milliseconds kLookAgain{10};
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kLookAgain, [&] { return reached >= number || fault_of(device).lost; })) {
    }
    return when;
  }
};
/// What stands on streams keeps the state, also when the event has gone.
using SharedEvent = std::shared_ptr<EventState>;
const SharedEvent& state_of(device::EventRef event) { return *static_cast<SharedEvent*>(event.native); }

using Recorded = std::vector<Work>;

struct Queued {
  Work work;
  Clock::time_point added;
};

struct StreamState {
  explicit StreamState(int of) : device(of), thread([this] { work(); }) {}
  ~StreamState() {
    {
      const std::lock_guard lock(mutex);
      stops = true;
    }
    changed.notify_all();
    thread.join();
  }

  void add(Work one) {
    {
      const std::lock_guard lock(mutex);
      if (recorded != nullptr) return recorded->push_back(std::move(one));
      queue.push_back({std::move(one), Clock::now()});
    }
    changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty() && !busy;
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !busy; });
  }
  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stops || !queue.empty(); });
      if (queue.empty()) return;
      const Queued next = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      present = device;
      arrived = std::max(arrived, next.added);
      if (!fault_of(device).lost) next.work();
      if (!pace_of(device).given) arrived = Clock::now();
      lock.lock();
      busy = false;
      if (queue.empty()) changed.notify_all();
    }
  }

  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Queued> queue;
  std::shared_ptr<Recorded> recorded;
  bool busy = false, stops = false;
  std::thread thread;
};
StreamState& state_of(device::StreamRef stream) { return *static_cast<StreamState*>(stream.native); }

/// All that there are; whoever waits for one keeps it.
struct Streams {
  std::mutex mutex;
  std::map<StreamState*, std::shared_ptr<StreamState>> all;

  static Streams& get() {
    static Streams streams;
    return streams;
  }
};

void drain_device(int device) {
  Streams& streams = Streams::get();
  std::vector<std::shared_ptr<StreamState>> its;
  {
    const std::lock_guard lock(streams.mutex);
    for (const auto& [raw, stream] : streams.all)
      if (stream->device == device) its.push_back(stream);
  }
  for (const auto& stream : its) stream->drain();
}

Work copy(void* to, const void* from, std::size_t bytes) {
  return [=] { std::memcpy(to, from, bytes); };
}

}  // namespace

namespace simulated {

Status enqueue(device::StreamRef stream, std::function<void()> work) {
  if (stream.native == nullptr) {
    MR_RETURN_IF_ERROR(here(present));
    continue_now();
    work();
    return {};
  }
  StreamState& state = state_of(stream);
  Fault& fault = fault_of(state.device);
  if (fault.launches_left.fetch_sub(1) <= 0) fault.lost = true;
  MR_RETURN_IF_ERROR(here(state.device));
  state.add(std::move(work));
  return {};
}

void lose_after(int device, std::uint64_t launches) {
  fault_of(device).launches_left = static_cast<std::int64_t>(launches);
}
void restore(int device) {
  fault_of(device).launches_left = INT64_MAX;
  fault_of(device).lost = false;
}
bool is_lost(int device) { return fault_of(device).lost; }

void set_rates(int device, const DeviceRates& rates) {
  const auto at = [](double rate) { return rate > 0 ? std::make_shared<device::LinkPace>(rate) : nullptr; };
  Pace& pace = pace_of(device);
  const std::lock_guard lock(pace.mutex);
  pace.memory = at(rates.weights);
  pace.link = at(rates.copies);
  pace.host_slower = rates.weights_host > 0 ? rates.copies / rates.weights_host : 1;
  pace.given = pace.memory != nullptr || pace.link != nullptr;
}
void read_weights(const std::byte* weights, std::int64_t bytes) {
  Pace& pace = pace_of(present);
  if (!pace.given) return;
  if (Memory::get().is_page_locked(weights, static_cast<std::size_t>(bytes)))
    pass(static_cast<std::size_t>(static_cast<double>(bytes) * pace.host_slower), &Pace::link);
  else
    pass(static_cast<std::size_t>(bytes), &Pace::memory);
}
void continue_now() { arrived = std::max(arrived, Clock::now()); }

bool take(int device, std::uint64_t bytes) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  if (memory.used[device] + bytes > capacity()) return false;
  memory.used[device] += bytes;
  return true;
}

void give(int device, std::uint64_t bytes) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  memory.used[device] -= bytes;
}

}  // namespace simulated

namespace device {

using simulated::enqueue;

std::string_view gpu_kind() { return "cuda"; }
std::string built_cuda_version() { return "simulated"; }
std::string driver_cuda_version() { return {}; }

Expected<std::vector<Gpu>> gpus() {
  constexpr std::uint64_t kBlockShared = 163 * kKiB;
  std::vector<Gpu> found;
  for (int i = 0; i < device_count(); ++i)
    found.push_back({i, "Simulated GPU", capacity(), 8, 0, 2, at_most_block_shared(kBlockShared), {}, {}});
  if (found.empty()) return error(Code::unsupported, "MILLRACE_SIMULATED_GPUS is 0");
  return found;
}

DeviceCounters device_counters() {
  return {graph_launches.load(), kernel_launches.load(), host_copies.load(), synchronisations.load(),
          allocations.load()};
}
void count_kernels(std::uint64_t kernels) { kernel_launches += kernels; }

void load_all_kernels_first() {}
Status use_gpu(int index) {
  if (!valid(index)) return no_device(index);
  present = index;
  return {};
}
Expected<int> present_gpu() { return present; }
Status synchronise_gpu() {
  drain_device(present);
  return here(present);
}
OnGpu::OnGpu(int index) : before_(present) {
  if (valid(index)) present = index;
}
OnGpu::~OnGpu() { present = before_; }
Status allow_stores_to(int other) { return valid(other) ? Status() : no_device(other); }

Expected<VramState> vram_state() {
  MR_RETURN_IF_ERROR(here(present));
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  return VramState{capacity() - memory.used[present], capacity()};
}
Expected<VramState> vram_state_without_context(int index) {
  const OnGpu on(index);
  return vram_state();
}

Expected<DeviceBuffer> DeviceBuffer::allocate(std::size_t bytes) {
  MR_RETURN_IF_ERROR(here(present));
  const std::size_t taken = allocation_bytes(std::max<std::size_t>(bytes, 1));
  const Status full = error(Code::out_of_budget, "{} of VRAM: the simulated GPU is out of memory", format_bytes(bytes));
  if (!simulated::take(present, taken)) return full;
  void* const data = mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    simulated::give(present, taken);
    return full;
  }
  if (taken <= kMiB) std::memset(data, 0xcb, taken);  // nobody may count on zeros
  {
    Memory& memory = Memory::get();
    const std::lock_guard lock(memory.mutex);
    memory.device_of[data] = present;
  }
  ++allocations;
  DeviceBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  int its = 0;
  {
    Memory& memory = Memory::get();
    const std::lock_guard lock(memory.mutex);
    const auto found = memory.device_of.find(data_);
    its = found->second;
    memory.device_of.erase(found);
  }
  drain_device(its);  // freeing waits for the device, as CUDA's does
  const std::size_t taken = allocation_bytes(std::max<std::size_t>(bytes_, 1));
  munmap(data_, taken);
  simulated::give(its, taken);
}

std::uint64_t allocation_bytes(std::uint64_t bytes) {
  return bytes < kMiB ? round_up(bytes, 512) : round_up(bytes, 2 * kMiB);
}

Expected<PinnedBuffer> PinnedBuffer::allocate(std::size_t bytes, bool) {
  PinnedBuffer buffer;
  MR_ASSIGN_OR_RETURN(buffer.memory_, HostBuffer::reserve(bytes, Pages::normal));
  buffer.registered_ = true;
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  memory.page_locked[buffer.data()] = buffer.bytes();
  return buffer;
}
PinnedBuffer::~PinnedBuffer() {
  if (!registered_) return;
  for (int i = 0; i < device_count(); ++i) drain_device(i);
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  memory.page_locked.erase(data());
}
Expected<std::byte*> seen_by_gpu(const void* host) { return static_cast<std::byte*>(const_cast<void*>(host)); }

Expected<Stream> Stream::create() {
  MR_RETURN_IF_ERROR(here(present));
  auto made = std::make_shared<StreamState>(present);
  Stream stream;
  stream.stream_ = {made.get()};
  Streams& streams = Streams::get();
  const std::lock_guard lock(streams.mutex);
  streams.all.emplace(made.get(), std::move(made));
  return stream;
}
Stream::~Stream() {
  if (stream_.native == nullptr) return;
  Streams& streams = Streams::get();
  std::shared_ptr<StreamState> its;
  {
    const std::lock_guard lock(streams.mutex);
    its = std::move(streams.all.extract(&state_of(stream_)).mapped());
  }
  its->drain();
}
Status Stream::synchronise() const {
  ++synchronisations;
  state_of(stream_).drain();
  return here(state_of(stream_).device);
}
Expected<bool> is_idle(StreamRef stream) {
  if (stream.native == nullptr) return true;
  MR_RETURN_IF_ERROR(here(state_of(stream).device));
  return state_of(stream).idle();
}

Expected<Event> Event::create(bool) {
  Event event;
  event.event_ = {new SharedEvent(std::make_shared<EventState>())};
  return event;
}
Event::~Event() { delete static_cast<SharedEvent*>(event_.native); }
Status record(EventRef event, StreamRef stream) {
  const SharedEvent state = state_of(event);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(state->mutex);
    number = ++state->asked;
    if (stream.native != nullptr) state->device = state_of(stream).device;
  }
  return enqueue(stream, [state, number] {
    {
      const std::lock_guard lock(state->mutex);
      state->reached = std::max(state->reached, number);
      state->when = arrived;
    }
    state->changed.notify_all();
  });
}
Expected<bool> is_reached(EventRef event) {
  const SharedEvent& state = state_of(event);
  const std::lock_guard lock(state->mutex);
  if (state->reached >= state->asked) return true;
  MR_RETURN_IF_ERROR(here(state->device));
  return false;
}
Status wait(EventRef event) {
  const SharedEvent& state = state_of(event);
  state->await(state->number());
  return here(state->device);
}
Status wait_on_device(StreamRef stream, EventRef event) {
  const SharedEvent state = state_of(event);
  return enqueue(stream, [state, number = state->number()] { arrived = std::max(arrived, state->await(number)); });
}
Expected<float> milliseconds(EventRef begin, EventRef end) {
  const auto when = [](EventRef event) {
    const SharedEvent& state = state_of(event);
    const std::lock_guard lock(state->mutex);
    return state->when;
  };
  return std::chrono::duration<float, std::milli>(when(end) - when(begin)).count();
}

Status RecordedPass::begin(const Stream& stream) {
  StreamState& state = state_of(stream);
  const std::lock_guard lock(state.mutex);
  state.recorded = std::make_shared<Recorded>();
  return {};
}
Expected<RecordedPass> RecordedPass::end(const Stream& stream) {
  StreamState& state = state_of(stream);
  const std::lock_guard lock(state.mutex);
  RecordedPass pass;
  pass.pass_ = new std::shared_ptr<const Recorded>(std::exchange(state.recorded, nullptr));
  return pass;
}
RecordedPass::~RecordedPass() { delete static_cast<std::shared_ptr<const Recorded>*>(pass_); }
Status RecordedPass::launch(const Stream& stream) const {
  ++graph_launches;
  return enqueue(stream, [works = *static_cast<std::shared_ptr<const Recorded>*>(pass_)] {
    for (const Work& work : *works) work();
  });
}

ProfilerRange::ProfilerRange(const char*) {}
ProfilerRange::~ProfilerRange() = default;

// Memory that is not page-locked may change or go once these have returned, as with CUDA's copies.
Status copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream) {
  ++host_copies;
  MR_RETURN_IF_ERROR(enqueue(stream, copy(host, device, bytes)));
  if (stream.native != nullptr && !Memory::get().is_page_locked(host, bytes)) state_of(stream).drain();
  return {};
}
Status copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream) {
  if (Memory::get().is_page_locked(host, bytes))
    return enqueue(stream, [=] {
      std::memcpy(device, host, bytes);
      pass_link(bytes);
    });
  const auto* const first = static_cast<const std::byte*>(host);
  const auto kept = std::make_shared<const std::vector<std::byte>>(first, first + bytes);
  return enqueue(stream, [device, kept] {
    std::memcpy(device, kept->data(), kept->size());
    pass_link(kept->size());
  });
}
Status copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream) {
  return enqueue(stream, copy(to, from, bytes));
}
Status fill_device(void* device, std::uint8_t value, std::size_t bytes, StreamRef stream) {
  return enqueue(stream, [=] { std::memset(device, value, bytes); });
}
Status write_device(void* device, const void* host, std::size_t bytes) {
  MR_RETURN_IF_ERROR(here(present));
  simulated::continue_now();
  std::memcpy(device, host, bytes);
  pass_link(bytes);
  return {};
}
Status read_device(void* host, const void* device, std::size_t bytes) {
  MR_RETURN_IF_ERROR(here(present));
  std::memcpy(host, device, bytes);
  return {};
}
Status read_device_rows(void* host, std::size_t host_pitch, const void* device, std::size_t device_pitch,
                        std::size_t bytes, std::size_t rows) {
  for (std::size_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<std::byte*>(host) + r * host_pitch,
                static_cast<const std::byte*>(device) + r * device_pitch, bytes);
  return {};
}
Status move_on_device(void* to, const void* from, std::size_t bytes) {
  MR_RETURN_IF_ERROR(here(present));
  std::memcpy(to, from, bytes);
  return {};
}
Status clear_device(const DeviceBuffer& memory) {
  MR_RETURN_IF_ERROR(here(present));
  std::memset(memory.data(), 0, memory.bytes());
  return {};
}

}  // namespace device
}  // namespace millrace
