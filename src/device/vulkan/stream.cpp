#include "device/vulkan/stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <set>

#include "base/mutex.h"

namespace millrace::device {

namespace {

using vulkan::Driver;
using vulkan::Held;

constexpr int kMostCommands = 256;  // that wait in a stream before they go to the queue
constexpr std::uint64_t kForever = UINT64_MAX;

std::atomic<std::uint64_t> graph_launches{0}, kernel_launches{0}, synchronisations{0};

/// A semaphore that counts submissions.
struct Timeline {
  explicit Timeline(Driver& of) : driver(of) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline() {
    if (semaphore != nullptr) driver.vk.vkDestroySemaphore(driver.device, semaphore, nullptr);
  }
  static Expected<std::shared_ptr<Timeline>> create(Driver& driver) {
    auto made = std::make_shared<Timeline>(driver);
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    MR_VULKAN(driver.vk.vkCreateSemaphore(driver.device, &info, nullptr, &made->semaphore));
    return made;
  }
  Expected<std::uint64_t> reached() const {
    std::uint64_t value = 0;
    MR_VULKAN(driver.vk.vkGetSemaphoreCounterValue(driver.device, semaphore, &value));
    return value;
  }
  Status wait(std::uint64_t value) const {
    VkSemaphoreWaitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
    info.semaphoreCount = 1;
    info.pSemaphores = &semaphore;
    info.pValues = &value;
    MR_VULKAN(driver.vk.vkWaitSemaphores(driver.device, &info, kForever));
    return {};
  }

  Driver& driver;
  VkSemaphore semaphore = nullptr;
};

/// Command buffers' memory.
struct Pool {
  explicit Pool(Driver& of) : driver(of) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    if (pool != nullptr) driver.vk.vkDestroyCommandPool(driver.device, pool, nullptr);
  }
  Status create() {
    VkCommandPoolCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    info.queueFamilyIndex = driver.offer.queue_family;
    MR_VULKAN(driver.vk.vkCreateCommandPool(driver.device, &info, nullptr, &pool));
    return {};
  }
  Expected<VkCommandBuffer> allocate() const {
    VkCommandBufferAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    info.commandPool = pool;
    info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 1;
    VkCommandBuffer made = nullptr;
    MR_VULKAN(driver.vk.vkAllocateCommandBuffers(driver.device, &info, &made));
    return made;
  }
  Status begin(VkCommandBuffer commands, VkCommandBufferUsageFlags flags) const {
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    info.flags = flags;
    MR_VULKAN(driver.vk.vkBeginCommandBuffer(commands, &info));
    return {};
  }

  Driver& driver;
  VkCommandPool pool = nullptr;
};

/// All that was written before is seen by what comes behind, the host's reads among it.
void order(const Driver& driver, VkCommandBuffer commands, bool host) {
  constexpr VkPipelineStageFlags kWork = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = host ? VkAccessFlags{VK_ACCESS_HOST_READ_BIT}
                               : VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                                     VK_ACCESS_TRANSFER_WRITE_BIT;
  driver.vk.vkCmdPipelineBarrier(commands, kWork, host ? VkPipelineStageFlags{VK_PIPELINE_STAGE_HOST_BIT} : kWork, 0, 1,
                                 &barrier, 0, nullptr, 0, nullptr);
}

struct PassState {
  explicit PassState(Driver& driver) : pool(driver) {}
  Pool pool;
  VkCommandBuffer commands = nullptr;
  Held held;
  std::uint64_t kernels = 0;
};
using SharedPass = std::shared_ptr<PassState>;

class StreamState {
 public:
  explicit StreamState(Driver& driver) : driver_(driver), queue_(driver.next_queue()), pool_(driver) {}
  ~StreamState() {
    (void)synchronise();
    driver_.keep_pipelines();
  }
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  static Expected<std::unique_ptr<StreamState>> create();
  Driver& driver() const { return driver_; }

  Status put(const std::function<Status(VkCommandBuffer, Held&)>& commands) MR_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (recorded_ != nullptr) {
      order(driver_, recorded_->commands, false);
      return commands(recorded_->commands, recorded_->held);
    }
    MR_RETURN_IF_ERROR(open());
    order(driver_, open_.commands, false);
    MR_RETURN_IF_ERROR(commands(open_.commands, open_.held));
    return ++open_.count < kMostCommands ? Status() : flush();
  }
  /// The point behind all that came so far: the timeline's number.
  Expected<std::uint64_t> submit_all() MR_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (recorded_ != nullptr) return error(Code::internal, "a recorded pass has no events within");
    if (!waits_.empty()) MR_RETURN_IF_ERROR(open());  // a point behind what is waited for
    MR_RETURN_IF_ERROR(flush());
    return submitted_;
  }
  Status synchronise() {
    MR_ASSIGN_OR_RETURN(const std::uint64_t number, submit_all());
    MR_RETURN_IF_ERROR(timeline_->wait(number));
    const MutexLock lock(mutex_);
    return reclaim();
  }
  /// What comes from now on waits for another stream's point.
  Status await(const std::shared_ptr<Timeline>& other, std::uint64_t number) MR_EXCLUDES(mutex_) {
    if (other == timeline_) return {};  // in order as it is
    const MutexLock lock(mutex_);
    if (recorded_ != nullptr) return error(Code::internal, "a recorded pass has no events within");
    MR_RETURN_IF_ERROR(flush());
    waits_.push_back({other, number});
    return {};
  }
  Status begin_pass() MR_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    auto pass = std::make_shared<PassState>(driver_);
    MR_RETURN_IF_ERROR(pass->pool.create());
    MR_ASSIGN_OR_RETURN(pass->commands, pass->pool.allocate());
    MR_RETURN_IF_ERROR(pass->pool.begin(pass->commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT));
    recorded_ = std::move(pass);
    return {};
  }
  Expected<SharedPass> end_pass() MR_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    SharedPass pass = std::exchange(recorded_, nullptr);
    order(driver_, pass->commands, true);
    MR_VULKAN(driver_.vk.vkEndCommandBuffer(pass->commands));
    return pass;
  }
  Status launch(const SharedPass& pass) MR_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    MR_RETURN_IF_ERROR(flush());
    return submit(pass->commands, Flight{nullptr, 0, {pass}, 0});
  }
  void count(std::uint64_t kernels) MR_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (recorded_ == nullptr) kernel_launches += kernels;
  }
  const std::shared_ptr<Timeline>& timeline() const { return timeline_; }

 private:
  struct Flight {
    VkCommandBuffer commands = nullptr;
    std::uint64_t number = 0;  // of the timeline, when it has ended
    Held held;
    int count = 0;
  };
  struct Wait {
    std::shared_ptr<Timeline> timeline;
    std::uint64_t number;
  };

  Status open() MR_REQUIRES(mutex_) {
    if (open_.commands != nullptr) return {};
    MR_RETURN_IF_ERROR(reclaim());
    if (free_.empty()) {
      MR_ASSIGN_OR_RETURN(VkCommandBuffer made, pool_.allocate());
      free_.push_back(made);
    }
    MR_RETURN_IF_ERROR(pool_.begin(free_.back(), VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT));
    open_.commands = free_.back();
    free_.pop_back();
    return {};
  }
  Status flush() MR_REQUIRES(mutex_) {
    if (open_.commands == nullptr) return {};
    Flight flight = std::exchange(open_, Flight());
    order(driver_, flight.commands, true);
    MR_VULKAN(driver_.vk.vkEndCommandBuffer(flight.commands));
    VkCommandBuffer commands = flight.commands;
    return submit(commands, std::move(flight));
  }
  Status submit(VkCommandBuffer commands, Flight flight) MR_REQUIRES(mutex_) {
    std::vector<VkSemaphore> semaphores;
    std::vector<std::uint64_t> numbers;
    for (const Wait& wait : waits_) {
      semaphores.push_back(wait.timeline->semaphore);
      numbers.push_back(wait.number);
      flight.held.push_back(wait.timeline);
    }
    const std::vector<VkPipelineStageFlags> stages(semaphores.size(), VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    const std::uint64_t number = submitted_ + 1;
    VkTimelineSemaphoreSubmitInfo counts{};
    counts.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    counts.waitSemaphoreValueCount = static_cast<std::uint32_t>(numbers.size());
    counts.pWaitSemaphoreValues = numbers.data();
    counts.signalSemaphoreValueCount = 1;
    counts.pSignalSemaphoreValues = &number;
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.pNext = &counts;
    info.waitSemaphoreCount = static_cast<std::uint32_t>(semaphores.size());
    info.pWaitSemaphores = semaphores.data();
    info.pWaitDstStageMask = stages.data();
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands;
    info.signalSemaphoreCount = 1;
    info.pSignalSemaphores = &timeline_->semaphore;
    MR_RETURN_IF_ERROR(driver_.submit(queue_, info));
    waits_.clear();
    submitted_ = flight.number = number;
    flights_.push_back(std::move(flight));
    return {};
  }
  /// Command buffers that have ended can be written anew.
  Status reclaim() MR_REQUIRES(mutex_) {
    if (flights_.empty()) return {};
    MR_ASSIGN_OR_RETURN(const std::uint64_t reached, timeline_->reached());
    for (; !flights_.empty() && flights_.front().number <= reached; flights_.pop_front())
      if (flights_.front().commands != nullptr) free_.push_back(flights_.front().commands);
    return {};
  }

  Driver& driver_;
  const std::uint32_t queue_;
  std::shared_ptr<Timeline> timeline_;
  Mutex mutex_;
  Pool pool_;
  Flight open_ MR_GUARDED_BY(mutex_);
  std::deque<Flight> flights_ MR_GUARDED_BY(mutex_);
  std::vector<VkCommandBuffer> free_ MR_GUARDED_BY(mutex_);
  std::vector<Wait> waits_ MR_GUARDED_BY(mutex_);
  SharedPass recorded_ MR_GUARDED_BY(mutex_);
  std::uint64_t submitted_ MR_GUARDED_BY(mutex_) = 0;
};

/// All that there are.
struct Streams {
  Mutex mutex;
  std::set<StreamState*> all MR_GUARDED_BY(mutex);

  static Streams& get() {
    static auto* const streams = new Streams;
    return *streams;
  }
};

Expected<std::unique_ptr<StreamState>> StreamState::create() {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  auto made = std::make_unique<StreamState>(*driver);
  MR_ASSIGN_OR_RETURN(made->timeline_, Timeline::create(*driver));
  MR_RETURN_IF_ERROR(made->pool_.create());
  Streams& streams = Streams::get();
  const MutexLock lock(streams.mutex);
  streams.all.insert(made.get());
  return made;
}

/// For what comes without a stream.
Expected<StreamState*> own_stream() {
  static const Expected<StreamState*> stream = []() -> Expected<StreamState*> {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<StreamState> made, StreamState::create());
    return made.release();  // stays as the device does
  }();
  return stream;
}

StreamState& state_of(StreamRef stream) { return *static_cast<StreamState*>(stream.native); }

struct EventState {
  Mutex mutex;
  std::shared_ptr<Timeline> timeline MR_GUARDED_BY(mutex);  // that it was recorded on last; null: on none
  std::uint64_t number MR_GUARDED_BY(mutex) = 0;
  VkQueryPool time = nullptr;  // of a timed one
};
EventState& state_of(EventRef event) { return *static_cast<EventState*>(event.native); }

struct Point {
  std::shared_ptr<Timeline> timeline;
  std::uint64_t number = 0;
};
Point point_of(EventRef event) {
  EventState& state = state_of(event);
  const MutexLock lock(state.mutex);
  return {state.timeline, state.number};
}

}  // namespace

namespace vulkan {

Status put(StreamRef stream, const std::function<Status(VkCommandBuffer, Held&)>& commands) {
  if (stream.native != nullptr) return state_of(stream).put(commands);
  MR_ASSIGN_OR_RETURN(StreamState* const own, own_stream());
  MR_RETURN_IF_ERROR(own->put(commands));
  return own->synchronise();
}

Status launch(StreamRef stream, std::span<const Dispatch> dispatches) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  std::vector<VkPipeline> pipelines;
  for (const Dispatch& dispatch : dispatches) {
    MR_ASSIGN_OR_RETURN(VkPipeline pipeline, driver->pipeline(*dispatch.kernel, dispatch.constants));
    pipelines.push_back(pipeline);
  }
  if (stream.native == nullptr)
    kernel_launches += dispatches.size();
  else
    state_of(stream).count(dispatches.size());
  return put(stream, [&](VkCommandBuffer commands, Held&) -> Status {
    for (std::size_t i = 0; i < dispatches.size(); ++i) {
      const Dispatch& one = dispatches[i];
      driver->vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipelines[i]);
      driver->vk.vkCmdPushConstants(commands, driver->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                    static_cast<std::uint32_t>(one.arguments.size()), one.arguments.data());
      driver->vk.vkCmdDispatch(commands, one.groups[0], one.groups[1], one.groups[2]);
    }
    return {};
  });
}

Status finish(StreamRef stream) { return stream.native == nullptr ? Status() : state_of(stream).synchronise(); }

Status drain() {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  Streams& streams = Streams::get();
  Status status;
  {
    const MutexLock lock(streams.mutex);
    for (StreamState* const stream : streams.all)
      if (const Status flushed = stream->submit_all().status(); status.ok() && flushed.code() != Code::internal)
        status = flushed;
  }
  MR_RETURN_IF_ERROR(status);
  return driver->wait_idle();
}

}  // namespace vulkan

DeviceCounters stream_counters() {
  DeviceCounters counters;
  counters.graph_launches = graph_launches;
  counters.kernel_launches = kernel_launches;
  counters.synchronisations = synchronisations;
  return counters;
}
void count_kernels(std::uint64_t kernels) { kernel_launches += kernels; }

Expected<Stream> Stream::create() {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<StreamState> made, StreamState::create());
  Stream stream;
  stream.stream_ = {made.release()};
  return stream;
}
Stream::~Stream() {
  if (stream_.native == nullptr) return;
  Streams& streams = Streams::get();
  {
    const MutexLock lock(streams.mutex);
    streams.all.erase(&state_of(stream_));
  }
  delete &state_of(stream_);
}
Status Stream::synchronise() const {
  ++synchronisations;
  return state_of(stream_).synchronise();
}
Expected<bool> is_idle(StreamRef stream) {
  if (stream.native == nullptr) return true;
  StreamState& state = state_of(stream);
  MR_ASSIGN_OR_RETURN(const std::uint64_t number, state.submit_all());
  MR_ASSIGN_OR_RETURN(const std::uint64_t reached, state.timeline()->reached());
  return reached >= number;
}

Expected<Event> Event::create(bool timed) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  auto state = std::make_unique<EventState>();
  if (timed && driver->offer.nanoseconds > 0) {
    VkQueryPoolCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = 1;
    MR_VULKAN(driver->vk.vkCreateQueryPool(driver->device, &info, nullptr, &state->time));
  }
  Event event;
  event.event_ = {state.release()};
  return event;
}
Event::~Event() {
  if (event_.none()) return;
  EventState& state = state_of(event_);
  if (state.time != nullptr) {
    const Point point = point_of(event_);
    if (point.timeline != nullptr) (void)point.timeline->wait(point.number);  // it still writes the time
    if (const auto driver = Driver::get(); driver.ok())
      (*driver)->vk.vkDestroyQueryPool((*driver)->device, state.time, nullptr);
  }
  delete &state;
}
Status record(EventRef event, StreamRef stream) {
  EventState& state = state_of(event);
  StreamState* to = nullptr;
  if (stream.native != nullptr) {
    to = &state_of(stream);
  } else {
    MR_ASSIGN_OR_RETURN(to, own_stream());
  }
  if (state.time != nullptr) {
    MR_RETURN_IF_ERROR(to->put([&](VkCommandBuffer commands, Held&) -> Status {
      const vulkan::DeviceCalls& vk = to->driver().vk;
      vk.vkCmdResetQueryPool(commands, state.time, 0, 1);
      vk.vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, state.time, 0);
      return {};
    }));
  }
  MR_ASSIGN_OR_RETURN(const std::uint64_t number, to->submit_all());
  const MutexLock lock(state.mutex);
  state.timeline = to->timeline();
  state.number = number;
  return {};
}
Expected<bool> is_reached(EventRef event) {
  const Point point = point_of(event);
  if (point.timeline == nullptr) return true;
  MR_ASSIGN_OR_RETURN(const std::uint64_t reached, point.timeline->reached());
  return reached >= point.number;
}
Status wait(EventRef event) {
  const Point point = point_of(event);
  return point.timeline == nullptr ? Status() : point.timeline->wait(point.number);
}
Status wait_on_device(StreamRef stream, EventRef event) {
  const Point point = point_of(event);
  if (point.timeline == nullptr) return {};
  if (stream.native == nullptr) return point.timeline->wait(point.number);
  return state_of(stream).await(point.timeline, point.number);
}
Expected<float> milliseconds(EventRef begin, EventRef end) {
  MR_ASSIGN_OR_RETURN(Driver* const driver, Driver::get());
  std::uint64_t ticks[2] = {};
  const EventRef events[2] = {begin, end};
  for (int i = 0; i < 2; ++i) {
    if (state_of(events[i]).time == nullptr) return 0.0f;  // a device without a clock
    MR_VULKAN(driver->vk.vkGetQueryPoolResults(driver->device, state_of(events[i]).time, 0, 1, sizeof ticks[i],
                                               &ticks[i], sizeof ticks[i],
                                               VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
  }
  constexpr double kNanoseconds = 1e6;  // of a millisecond
  return static_cast<float>(static_cast<double>(ticks[1] - ticks[0]) * double{driver->offer.nanoseconds} /
                            kNanoseconds);
}

Status RecordedPass::begin(const Stream& stream) { return state_of(StreamRef(stream)).begin_pass(); }
Expected<RecordedPass> RecordedPass::end(const Stream& stream) {
  MR_ASSIGN_OR_RETURN(SharedPass recorded, state_of(StreamRef(stream)).end_pass());
  RecordedPass pass;
  pass.pass_ = new SharedPass(std::move(recorded));
  return pass;
}
RecordedPass::~RecordedPass() { delete static_cast<SharedPass*>(pass_); }
Status RecordedPass::launch(const Stream& stream) const {
  ++graph_launches;
  return state_of(StreamRef(stream)).launch(*static_cast<const SharedPass*>(pass_));
}

}  // namespace millrace::device
