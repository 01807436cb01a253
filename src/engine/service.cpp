#include "engine/service.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/carry_on.h"
#include "base/log.h"

namespace millrace::engine {

namespace {

constexpr std::chrono::milliseconds kSavingPause{5};  // between an idle engine's looks at what is being written

}  // namespace

Expected<std::shared_ptr<Service>> Service::start(const EngineOptions& options) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::create(options));
  std::shared_ptr<Service> service = start(std::move(engine));
  if (options.demand.max_queue > 0) service->most_active_ = service->load().max_sequences + options.demand.max_queue;
  return service;
}

std::shared_ptr<Service> Service::start(std::unique_ptr<Engine> engine) {
  return std::shared_ptr<Service>(new Service(std::move(engine)));
}

Service::Service(std::unique_ptr<Engine> engine) : engine_(std::move(engine)), load_(engine_->load()) {
  thread_ = std::thread([this] { work(); });
}

Service::~Service() { shutdown(std::chrono::milliseconds(0)); }

Expected<Service::Id> Service::submit(Request request, Done on_done) {
  const MutexLock lock(mutex_);
  if (closed_) return error(Code::unavailable, "the model is being unloaded; try again");
  if (most_active_ > 0 && open_ >= most_active_)
    return error(Code::unavailable, "{} requests wait already; try again later", open_ - load_.max_sequences);
  const Id id = next_id_++;
  inbox_.push_back({id, std::move(request), std::move(on_done), false});  // may throw
  ++open_;
  wake_.notify_one();
  return id;
}

void Service::cancel(Id id) {
  const MutexLock lock(mutex_);
  for (std::vector<Submitted>* const waiting : {&inbox_, &taken_})
    for (Submitted& one : *waiting)
      if (one.id == id) one.cancelled = true;
  if (const auto found = active_.find(id); found != active_.end()) engine_->cancel(found->second.engine_id);
}

bool Service::run(const Task& task) {
  const MutexLock lock(mutex_);
  if (ended_) return false;
  Waiting waiting{&task, false};
  tasks_.push_back(&waiting);
  wake_.notify_one();
  task_done_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return waiting.done || ended_; });
  return waiting.done;
}

void Service::shutdown(std::chrono::milliseconds grace) {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    idle_.wait_for(mutex_, grace, [this]() MR_REQUIRES(mutex_) { return open_ == 0; });
    if (open_ > 0) stop_now_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

LoadCounters Service::load() const {
  const MutexLock lock(mutex_);
  return load_;
}

std::int64_t Service::active() const {
  const MutexLock lock(mutex_);
  return open_;
}

/// False when the thread should end: closed, and nothing is left to do.
bool Service::wait_for_work() {
  const MutexLock lock(mutex_);
  const auto ready = [this]() MR_REQUIRES(mutex_) {
    return closed_ || !inbox_.empty() || !tasks_.empty() || !active_.empty();
  };
  if (engine_->saving())
    wake_.wait_for(mutex_, kSavingPause, ready);
  else
    wake_.wait(mutex_, ready);
  return !(closed_ && open_ == 0 && tasks_.empty());
}

void Service::take_inbox() {
  {
    const MutexLock lock(mutex_);
    taken_.swap(inbox_);
  }
  for (Submitted& one : taken_) {
    Expected<Engine::Id> id = error(Code::cancelled, "cancelled");
    if (!stop_now_) id = engine_->submit(std::move(one.request));
    {
      const MutexLock lock(mutex_);
      if (id.ok()) {
        if (one.cancelled) engine_->cancel(*id);  // which counts it, as any other
        Active* place = nullptr;
        try {
          place = &active_[one.id];
        } catch (...) {  // `one` is still to be told
          engine_->abandon(*id);
          throw;
        }
        *place = {*id, std::move(one.on_done)};
        one.id = 0;
        continue;
      }
      one.id = 0;
    }
    Result refused;
    refused.status = id.status();
    if (refused.status.code() == Code::cancelled) refused.finish = Finish::cancelled;
    tell(one.on_done, std::move(refused));
  }
  const MutexLock lock(mutex_);
  taken_.clear();
}

void Service::run_tasks() {
  std::vector<Waiting*> tasks;
  {
    const MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Waiting* waiting : tasks) {
    carry_on("a task", [&] { (*waiting->task)(*engine_); });
    const MutexLock lock(mutex_);
    waiting->done = true;
    task_done_.notify_all();
  }
}

void Service::tell(const Done& on_done, Result result) {
  {
    const MutexLock lock(mutex_);  // first: who is told may ask how many are left
    if (--open_ == 0) idle_.notify_all();
  }
  carry_on("a request's end", [&] {
    if (on_done) on_done(std::move(result));
  });
}

void Service::report_finished() {
  for (;;) {
    Done on_done;
    Result result;
    {
      const MutexLock lock(mutex_);
      load_ = engine_->load();
      const auto found = std::find_if(active_.begin(), active_.end(),
                                      [&](const auto& one) { return engine_->finished(one.second.engine_id); });
      if (found == active_.end()) return;
      result = engine_->take(found->second.engine_id);
      on_done = std::move(found->second.on_done);
      active_.erase(found);
    }
    tell(on_done, std::move(result));
  }
}

/// After an exception: nothing is known about what runs. Takes no memory but for messages. `what`: null for a lack of
/// memory.
void Service::fail_all(const char* what) {
  Status status(Code::unavailable, "out of memory");
  carry_on("a pass", [&] {
    if (what == nullptr) return log::warn("a pass ran out of memory; its requests were told to try again later");
    log::error("a request failed unexpectedly: {}", what);
    status = error(Code::internal, "a request failed unexpectedly: {}", what);
  });
  while (true) {
    Done on_done;
    {
      const MutexLock lock(mutex_);
      const auto waits = std::find_if(taken_.begin(), taken_.end(), [](const Submitted& one) { return one.id != 0; });
      if (!active_.empty()) {
        const auto first = active_.begin();
        engine_->abandon(first->second.engine_id);
        on_done = std::move(first->second.on_done);
        active_.erase(first);
      } else if (waits != taken_.end()) {
        on_done = std::move(waits->on_done);
        waits->id = 0;
      } else {
        taken_.clear();
        return;
      }
    }
    Result result;
    if (!carry_on("a request's end", [&] { result.status = status; }))
      result.status = Status(Code::unavailable, "out of memory");
    tell(on_done, std::move(result));
  }
}

void Service::work() {
  engine_->set_stop_flag(&stop_now_);
  while (wait_for_work()) {
    try {
      take_inbox();
      run_tasks();
      engine_->step();
      report_finished();
    } catch (const std::bad_alloc&) {
      fail_all(nullptr);
    } catch (const std::exception& unexpected) {
      fail_all(unexpected.what());
    }
  }
  const MutexLock lock(mutex_);
  ended_ = true;
  task_done_.notify_all();
}

}  // namespace millrace::engine
