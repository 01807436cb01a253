// An engine for servers: a dedicated thread runs the passes, and any thread may submit requests.
//
// Callbacks of a request (on_text, on_prompt, on_token, ...) and its `on_done` run on that thread, between passes: they
// must be quick and must not wait for it. A submitted request's on_done is called exactly once.
// Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"

namespace millrace::engine {

class Service {
 public:
  using Id = std::uint64_t;
  using Done = std::function<void(Result result)>;
  using Task = std::function<void(Engine& engine)>;

  /// Opens the model on the calling thread (which may take long) and starts the engine's thread. Errors: as
  /// Engine::create.
  static Expected<std::shared_ptr<Service>> start(const EngineOptions& options);
  /// The same for an engine that is already open.
  static std::shared_ptr<Service> start(std::unique_ptr<Engine> engine);
  /// As shutdown(0).
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// A request that the engine refuses gets a Result with finish == error. Errors: unavailable (too many requests wait,
  /// or the service was shut down).
  Expected<Id> submit(Request request, Done on_done);
  /// Ends the request within one pass, if it is still live.
  void cancel(Id id);
  /// Runs `task` on the engine's thread between two passes and waits for it. False: the service was shut down, and the
  /// task did not run.
  /// REQUIRES: not called from that thread.
  bool run(const Task& task);
  /// Accepts no more requests, waits up to `grace` for live ones to end, then cancels them. Waits for the thread.
  void shutdown(std::chrono::milliseconds grace);

  /// As of the last pass.
  LoadCounters load() const;
  std::int64_t active() const;  // submitted and not done

  /// The engine. Any thread may use what never changes while the engine exists: tokenizer, chat template, model, plan,
  /// limits.
  const Engine& engine() const { return *engine_; }

 private:
  struct Submitted {
    Id id = 0;
    Request request;
    Done on_done;
    bool cancelled = false;
  };
  struct Active {
    Engine::Id engine_id = 0;
    Done on_done;
  };
  struct Waiting {
    const Task* task = nullptr;
    bool done = false;
  };

  explicit Service(std::unique_ptr<Engine> engine);
  void work();
  bool wait_for_work();
  void take_inbox();
  void run_tasks();
  void report_finished();
  void fail_all(const char* what);
  void tell(const Done& on_done, Result result);

  std::unique_ptr<Engine> engine_;
  std::int64_t most_active_ = 0;
  std::atomic<bool> stop_now_{false};  // cancels what runs, within one op

  mutable Mutex mutex_;
  CondVar wake_, task_done_, idle_;
  std::vector<Submitted> inbox_ MR_GUARDED_BY(mutex_);
  // On their way to the engine; `id` 0: there. Changed by the thread under mutex_, but requests, which are its own.
  std::vector<Submitted> taken_;
  std::vector<Waiting*> tasks_ MR_GUARDED_BY(mutex_);
  std::unordered_map<Id, Active> active_;  // changed by the thread under mutex_
  Id next_id_ MR_GUARDED_BY(mutex_) = 1;
  std::int64_t open_ MR_GUARDED_BY(mutex_) = 0;  // submitted and not done
  bool closed_ MR_GUARDED_BY(mutex_) = false, ended_ MR_GUARDED_BY(mutex_) = false;
  LoadCounters load_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::engine
