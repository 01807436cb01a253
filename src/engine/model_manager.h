// Loads and unloads models: each on demand, several under one budget of RAM. The least recently used model is unloaded
// for the next one; an idle model is unloaded after its keep_alive.
// Thread-safe. Loading one model does not stop the others.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/service.h"
#include "residency/budget.h"
#include "vision/beside.h"

namespace millrace::engine {

class ModelManager {
 public:
  using Clock = std::chrono::system_clock;
  using Duration = std::chrono::nanoseconds;
  static constexpr Duration kForever = Duration::max();

  struct Loaded;
  /// A model to load.
  struct Source {
    std::string name, path;
    std::vector<AdapterOptions> adapters = {};  // that are part of the model
    /// All names and links of the same files have the same key, by which loaded models are found.
    std::string key() const;
  };
  struct Options {
    EngineOptions engine;  // for every model, except the path; all models share ram_bytes (0: what is free)
    Duration keep_alive = std::chrono::minutes(5);
    std::uint64_t most_request_bytes = 0;        // RAM for requests(), at most an eighth of all; see requests()
    std::chrono::milliseconds patience{30'000};  // how long to wait for the memory of busy models
    /// Called with a model that was just loaded, from the thread that requested it. Must not call the manager. May be
    /// empty.
    std::function<void(const Loaded&)> on_loaded;
  };

  /// A loaded model, which exists as long as it is held.
  struct Loaded {
    std::string name, path;  // from the use() that loaded it
    std::string key;         // Source::key()
    std::string mmproj;      // the mmproj file that it was loaded with; empty: none
    std::shared_ptr<Service> service;
    std::uint64_t ram_bytes = 0;  // its cap
    std::uint64_t file_bytes = 0;
    std::int64_t context_asked = 0;  // tokens; its engine may have fewer, where these did not fit
    Clock::time_point loaded_at;
    Duration load_time{0};
  };
  struct EndUse {
    ModelManager* manager;
    void operator()(const Loaded* loaded) const { manager->end_use(loaded); }
  };
  /// Keeps a model loaded. keep_alive starts when the last Use is destroyed.
  class Use {
   public:
    Use() = default;
    Use(Use&&) noexcept = default;
    Use& operator=(Use&&) noexcept = default;
    const Loaded& operator*() const { return *loaded_; }
    const Loaded* operator->() const { return loaded_.get(); }
    explicit operator bool() const { return loaded_ != nullptr; }
    bool loaded_now() const { return loaded_now_; }  // by this very call

   private:
    friend class ModelManager;
    std::shared_ptr<const Loaded> loaded_;
    std::unique_ptr<const Loaded, EndUse> counted_;
    bool loaded_now_ = false;
  };
  struct Running {
    std::shared_ptr<const Loaded> loaded;
    std::vector<std::string> names;               // by which it was used, the first one first
    std::optional<Clock::time_point> expires_at;  // none: never
    int users = 0;
  };

  explicit ModelManager(const Options& options);
  /// As shutdown(0).
  ~ModelManager();

  /// What a request needs of the model.
  struct Wanted {
    std::int64_t context_tokens = 0;
    bool sight = false;  // it has pictures
  };
  /// The model, loaded if necessary; all sources with one key share it. `keep_alive`, if set, applies from this use on.
  /// The options' adapters that are no part of a model are loaded with the options' model. A loaded model is reloaded
  /// once it is idle in two cases: its context is shorter than requested and the options name none (it then gets as
  /// much as fits), or the request has pictures and an mmproj file has been added beside a model without one. Requests
  /// that arrive meanwhile wait. Errors: those of Engine::create; unavailable (no memory while other models are busy,
  /// or shut down); cancelled.
  Expected<Use> use(const Source& source, std::optional<Duration> keep_alive, const Wanted& wanted);
  Expected<Use> use(const std::string& name, const std::string& path, std::optional<Duration> keep_alive = {}) {
    return use({name, path}, keep_alive, Wanted());
  }
  Expected<Use> use(const std::string& name, const std::string& path, std::optional<Duration> keep_alive,
                    const Wanted& wanted) {
    return use({name, path}, keep_alive, wanted);
  }
  /// The mmproj file that the model at `path` is loaded with: that of the options for the options' model, otherwise the
  /// one in the model's folder; empty: none.
  std::string mmproj_of(const std::string& path, vision::MmprojFolders& folders) const;
  /// Unloads the model once it is idle; false: it is not loaded.
  bool unload(const Source& source) { return unload_key(source.key()); }
  bool unload(const std::string& path) { return unload(Source{"", path}); }
  bool unload_key(const std::string& key);  // as a source had it before its links went
  std::vector<Running> running() const;
  /// Whether the source is the options' model, with which adapters that are no part of it are loaded, too.
  bool is_given(const Source& source) const;
  /// Whether any model is loaded. Does not block.
  bool has_loaded() const { return loaded_ > 0; }
  /// Waits up to `grace` for requests to end, then cancels them.
  void shutdown(std::chrono::milliseconds grace);
  const Options& options() const { return options_; }
  /// The budget for all requests together, beside the models. Loading a model does not reclaim the part held as
  /// "request bodies". The cap falls to kLeastRequestBytes if the only loaded model needs that memory.
  residency::Budget& requests() { return requests_; }
  static constexpr std::uint64_t kLeastRequestBytes = 128 << 10;  // a short conversation while it is processed

 private:
  struct Entry {
    std::shared_ptr<const Loaded> loaded;
    Duration keep_alive;
    Clock::time_point last_use;
    int users = 0;
    bool leaving = false;
    std::vector<std::string> names = {};
    bool anew = false;              // to be loaded again, once nobody uses it
    std::int64_t next_context = 0;  // with this; 0: with what it was asked for
  };

  std::list<Entry>::iterator find(const std::string& key) MR_REQUIRES(mutex_);  // end(): none, or it is leaving
  /// Whether there is an mmproj file beside a model that was loaded without one. Releases the mutex meanwhile.
  bool could_see(const Loaded& loaded) MR_REQUIRES(mutex_);
  Use use_of(Entry& entry, const std::string& name, bool loaded_now, std::optional<Duration> keep_alive)
      MR_REQUIRES(mutex_);
  void end_use(const Loaded* loaded);
  std::uint64_t request_share() const { return std::min(ram_ / 8, options_.most_request_bytes); }
  std::uint64_t models_ram() const { return ram_ - requests_.cap_bytes(); }
  std::uint64_t free_bytes() const MR_REQUIRES(mutex_);
  // These functions release the mutex while they wait, read or unload.
  Status make_room(std::uint64_t wanted, std::uint64_t& granted) MR_REQUIRES(mutex_);
  Expected<std::shared_ptr<Loaded>> load(const Source& source, std::int64_t context_tokens) MR_REQUIRES(mutex_);
  Expected<std::shared_ptr<Loaded>> load_what_fits(const Source& source, std::int64_t context_tokens)
      MR_REQUIRES(mutex_);
  void let_go(std::list<Entry>::iterator entry) MR_REQUIRES(mutex_);
  std::shared_ptr<const Loaded> remove(std::list<Entry>::iterator entry) MR_REQUIRES(mutex_);
  void reap();
  std::uint64_t body_bytes() const;
  Expected<std::shared_ptr<Service>> start(EngineOptions options, bool alone);
  std::string asked_mmproj(const std::string& path) const;

  ModelManager(Options options, std::uint64_t ram);

  const Options options_;
  const std::uint64_t ram_;  // of models and requests
  residency::Budget requests_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Entry> entries_ MR_GUARDED_BY(mutex_);
  std::string loading_ MR_GUARDED_BY(mutex_);  // the path that is being loaded
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> loaded_{0};  // entries
  std::thread reaper_;
};

}  // namespace millrace::engine
