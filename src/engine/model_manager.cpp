#include "engine/model_manager.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/carry_on.h"
#include "base/log.h"
#include "device/cpu.h"
#include "engine/setup.h"
#include "modelfile/gguf.h"

namespace millrace::engine {
namespace {

using Clock = ModelManager::Clock;

constexpr std::uint64_t kRoomForContext = 512 * kMiB;
constexpr std::uint64_t kHostSideOfGpu = 256 * kMiB;

/// All parts of a split file. 0 where nothing can be read: opening it will say why.
std::uint64_t file_bytes_of(const std::string& path) {
  modelfile::OpenOptions splits;
  splits.outline = true;
  splits.wanted = [](std::string_view key) { return key.starts_with("split.") || key == "general.alignment"; };
  const auto file = modelfile::Model::open(path, splits);
  std::uint64_t bytes = 0;
  if (!file.ok()) return 0;
  for (const std::string& part : file->paths()) {
    std::error_code ignored;
    const auto size = std::filesystem::file_size(part, ignored);
    bytes += ignored ? 0 : size;
  }
  return bytes;
}

Clock::time_point expiry(Clock::time_point from, ModelManager::Duration keep_alive) {
  const auto room = Clock::time_point::max() - from;
  return keep_alive >= room ? Clock::time_point::max() : from + std::chrono::duration_cast<Clock::duration>(keep_alive);
}

}  // namespace

ModelManager::ModelManager(const Options& options) : ModelManager(options, ram_of(options.engine)) {}

ModelManager::ModelManager(Options options, std::uint64_t ram)
    : options_(std::move(options)), ram_(ram), requests_(request_share()) {
  reaper_ = std::thread([this] { reap(); });
}

std::uint64_t ModelManager::body_bytes() const {
  for (const residency::Budget::Entry& entry : requests_.entries())
    if (entry.tag == "request bodies") return entry.bytes;
  return 0;
}

ModelManager::~ModelManager() { shutdown(std::chrono::milliseconds(0)); }

std::string ModelManager::Source::key() const {
  const auto resolved = [](const std::string& given) {
    std::error_code failure;
    const std::filesystem::path file = std::filesystem::weakly_canonical(given, failure);
    return failure ? given : file.string();
  };
  std::string key = resolved(path);
  for (const AdapterOptions& adapter : adapters) key += '\0' + resolved(adapter.path);
  return key;
}

bool ModelManager::is_given(const Source& source) const {
  const ModelOptions& given = options_.engine.model;
  if (source.path != given.path) return false;
  std::vector<std::string> own, theirs;
  for (const AdapterOptions& adapter : given.adapters)
    if (adapter.of_model) own.push_back(adapter.path);
  for (const AdapterOptions& adapter : source.adapters) theirs.push_back(adapter.path);
  return own == theirs;
}

std::list<ModelManager::Entry>::iterator ModelManager::find(const std::string& key) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return entry.loaded->key == key && !entry.leaving; });
}

ModelManager::Use ModelManager::use_of(Entry& entry, const std::string& name, bool loaded_now,
                                       std::optional<Duration> keep_alive) {
  constexpr std::size_t kMostNames = 64;
  if (entry.names.size() < kMostNames && std::find(entry.names.begin(), entry.names.end(), name) == entry.names.end())
    entry.names.push_back(name);
  ++entry.users;
  entry.last_use = Clock::now();
  if (keep_alive) entry.keep_alive = *keep_alive;
  Use use;
  use.loaded_ = entry.loaded;
  use.loaded_now_ = loaded_now;
  use.counted_ = {entry.loaded.get(), EndUse{this}};
  return use;
}

void ModelManager::end_use(const Loaded* loaded) {
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.loaded.get() != loaded) continue;
    --entry.users;
    entry.last_use = Clock::now();
  }
  changed_.notify_all();
}

Expected<ModelManager::Use> ModelManager::use(const Source& source, std::optional<Duration> keep_alive,
                                              const Wanted& asked) {
  const std::string &name = source.name, &path = source.path;
  const std::int64_t wanted = options_.engine.demand.context_tokens > 0 ? 0 : asked.context_tokens;
  if (options_.engine.part.cluster != nullptr && path != options_.engine.model.path)
    return error(Code::unsupported, "{}: over several processes only the model of the command line is served", name);
  const std::string key = source.key();
  MutexLock lock(mutex_);
  auto entry = find(key);
  const bool sees_now = asked.sight && entry != entries_.end() && could_see(*entry->loaded);
  for (;;) {
    if (stopping_) return error(Code::unavailable, "the server is shutting down");
    entry = find(key);
    const bool is_loaded = entry != entries_.end();
    if (is_loaded && wanted > entry->loaded->context_asked) {
      entry->next_context = std::max(entry->next_context, wanted);
      entry->anew = true;
    }
    if (is_loaded && sees_now && entry->loaded->mmproj.empty()) entry->anew = true;
    if (is_loaded && !entry->anew) return use_of(*entry, name, false, keep_alive);
    // One load at a time: two would measure each other's memory.
    if (loading_.empty() && (!is_loaded || entry->users == 0)) break;
    changed_.wait(mutex_);
  }
  Duration kept = options_.keep_alive;
  // Less than the planner takes by itself would be too little for the next request.
  std::int64_t context = wanted > kAutomaticContext ? wanted : 0;
  Expected<std::shared_ptr<Loaded>> loaded = Status(Code::unavailable, "out of memory");
  loading_ = path;
  try {
    if (entry != entries_.end()) {
      kept = entry->keep_alive;
      const std::int64_t before = entry->loaded->context_asked;
      context = entry->next_context > 0 ? entry->next_context : before > kAutomaticContext ? before : 0;
      if (entry->next_context > 0)
        log::info("{} is loaded anew, for a context of {} tokens", entry->loaded->name, context);
      else
        log::info("{} is loaded anew, to see pictures", entry->loaded->name);
      let_go(entry);
    }
    loaded = load_what_fits(source, context);
    if (loaded.ok() && options_.on_loaded) {
      const MutexUnlock unlocked(mutex_);  // it may write to a pipe that nobody reads
      options_.on_loaded(**loaded);
    }
  } catch (...) {  // others wait for the end of this load
    loading_.clear();
    changed_.notify_all();
    throw;
  }
  loading_.clear();
  changed_.notify_all();
  if (!loaded.ok() && stopping_) return error(Code::unavailable, "the server is shutting down");
  if (!loaded.ok()) return loaded.status();
  entries_.push_back({std::move(*loaded), kept, Clock::now()});
  loaded_ = entries_.size();
  return use_of(entries_.back(), name, true, keep_alive);
}

bool ModelManager::could_see(const Loaded& loaded) {
  // One that was tried has been found not to be the model's.
  if (options_.engine.part.cluster != nullptr || !loaded.mmproj.empty()) return false;
  const std::string path = loaded.path;  // it may go meanwhile
  const MutexUnlock unlocked(mutex_);
  return !vision::mmproj_for(path, asked_mmproj(path)).empty();
}

/// Unloads it, without the mutex.
void ModelManager::let_go(std::list<Entry>::iterator entry) {
  std::shared_ptr<const Loaded> leaving = remove(entry);
  const MutexUnlock unlocked(mutex_);
  leaving->service->shutdown(std::chrono::milliseconds(0));
  leaving.reset();
}

/// Half the context while it does not fit, and at last what the planner takes by itself.
Expected<std::shared_ptr<ModelManager::Loaded>> ModelManager::load_what_fits(const Source& source,
                                                                             std::int64_t context_tokens) {
  std::int64_t tried = context_tokens;
  Expected<std::shared_ptr<Loaded>> loaded = load(source, tried);
  while (!loaded.ok() && loaded.status().code() == Code::out_of_budget && tried > 0) {
    tried = tried / 2 >= kLeastContext ? tried / 2 : 0;
    loaded = load(source, tried);
  }
  if (!loaded.ok()) return loaded;
  Loaded& it = **loaded;
  it.context_asked = std::max(context_tokens, it.service->engine().context_tokens());
  if (it.service->engine().context_tokens() < context_tokens)
    log::warn("{}: a request asked for a context of {} tokens; {} fit", source.name, context_tokens,
              it.service->engine().context_tokens());
  return loaded;
}

std::uint64_t ModelManager::free_bytes() const {
  std::uint64_t taken = 0;
  for (const Entry& entry : entries_) taken += entry.loaded->ram_bytes;
  return models_ram() - std::min(models_ram(), taken);
}

/// Lets idle models go, the least recently used first, until `wanted` bytes are free or none is left; `granted` is what
/// there is then, at most `wanted` unless nothing else is loaded.
Status ModelManager::make_room(std::uint64_t wanted, std::uint64_t& granted) {
  while (free_bytes() < wanted) {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it)
      if (it->users == 0 && (oldest == entries_.end() || it->last_use < oldest->last_use)) oldest = it;
    if (oldest == entries_.end()) break;
    log::info("{} leaves, to make room", oldest->loaded->name);
    let_go(oldest);
  }
  if (entries_.empty()) requests_.set_cap(request_share());  // what a model before this one had needed
  granted = entries_.empty() ? models_ram() : std::min(wanted, free_bytes());
  if (granted == 0) return error(Code::out_of_budget, "all memory is taken by models that are busy");
  return {};
}

/// A model that is alone and does not fit beside the requests' share gets all of that but what the least of them need.
Expected<std::shared_ptr<Service>> ModelManager::start(EngineOptions options, bool alone) {
  auto service = Service::start(options);
  const std::uint64_t share = requests_.cap_bytes();
  if (service.ok() || service.status().code() != Code::out_of_budget || !alone || options.memory.ram_bytes == 0)
    return service;
  if (share <= kLeastRequestBytes || !requests_.set_cap(kLeastRequestBytes)) return service;
  // Their part counts as the program's, so that an error names what is enough for both.
  options.memory.ram_bytes = ram_;
  options.memory.bare_resident_bytes -= std::min(options.memory.bare_resident_bytes, kLeastRequestBytes);
  service = Service::start(options);
  if (service.ok())
    log::info("requests may hold {} together, not {}: the model needs the rest", format_bytes(kLeastRequestBytes),
              format_bytes(share));
  else
    requests_.set_cap(share);
  return service;
}

std::string ModelManager::asked_mmproj(const std::string& path) const {
  const ModelOptions& given = options_.engine.model;
  return path == given.path || given.mmproj == "off" ? given.mmproj : std::string();
}

std::string ModelManager::mmproj_of(const std::string& path, vision::MmprojFolders& folders) const {
  return vision::mmproj_for(path, asked_mmproj(path), folders);
}

Expected<std::shared_ptr<ModelManager::Loaded>> ModelManager::load(const Source& source, std::int64_t context_tokens) {
  const std::string &name = source.name, &path = source.path;
  const auto deadline = std::chrono::steady_clock::now() + options_.patience;
  for (;;) {
    auto loaded = std::make_shared<Loaded>();
    {
      const MutexUnlock unlocked(mutex_);
      loaded->file_bytes = file_bytes_of(path);
      for (const AdapterOptions& adapter : source.adapters) loaded->file_bytes += file_bytes_of(adapter.path);
    }
    const std::uint64_t wanted =
        loaded->file_bytes / 10 * 12 + std::max(loaded->file_bytes / 2, std::uint64_t{kRoomForContext});
    EngineOptions options = options_.engine;
    std::uint64_t granted = 0;
    Status status = make_room(wanted, granted);
    const bool alone = entries_.empty();
    if (status.ok()) {
      if (path != options.model.path) options.planning.follow = nullptr;  // another model's plan
      if (!is_given(source)) {
        options.model.adapters = source.adapters;
        options.model.control.clear();
      }
      options.model.mmproj = asked_mmproj(path);
      options.model.path = path;
      if (context_tokens > 0) options.demand.context_tokens = context_tokens;
      // Shutting down stops a load at once; a request that waits for the rest of it has the grace that others have.
      const auto loading = std::make_shared<std::atomic<bool>>(true);
      options.watch.on_load = [this, loading](std::uint64_t, std::uint64_t) { return !*loading || !stopping_; };
      if (options_.engine.memory.ram_bytes > 0 || !alone) {
        options.memory.ram_bytes = granted;
        options.memory.ram_taken_bytes = 0;  // ram_ is without it
      }
      Clock::time_point begin;
      Expected<std::shared_ptr<Service>> service = std::shared_ptr<Service>();
      {
        const MutexUnlock unlocked(mutex_);
        // Bodies that are here, or on their way, are no part of the model.
        options.memory.bare_resident_bytes =
            alone ? options.memory.bare_resident_bytes + body_bytes() : device::resident_bytes();
        begin = Clock::now();
        find_mmproj(options.model);
        service = start(options, alone);
        *loading = false;
      }
      status = service.status();
      if (status.ok()) {
        loaded->name = name;
        loaded->path = path;
        loaded->key = source.key();
        loaded->mmproj = options.model.mmproj;
        loaded->service = std::move(*service);
        loaded->loaded_at = Clock::now();
        loaded->load_time = loaded->loaded_at - begin;
        const bool on_gpu = loaded->service->engine().vram_budget() != nullptr;
        loaded->ram_bytes = on_gpu ? kHostSideOfGpu : std::min(granted, wanted);
        return loaded;
      }
    }
    if (status.code() != Code::out_of_budget || alone) return status;
    // Busy models hold the memory: wait for one to become idle, or to be gone.
    const auto room = [this, busy = entries_.size()]() MR_REQUIRES(mutex_) {
      return stopping_ || entries_.size() < busy ||
             std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.users == 0; });
    };
    if (!changed_.wait_until(mutex_, deadline, room) || stopping_)
      return error(Code::unavailable, "no memory for {} while other models are busy; try again later ({})", name,
                   status.message());
  }
}

std::shared_ptr<const ModelManager::Loaded> ModelManager::remove(std::list<Entry>::iterator entry) {
  std::shared_ptr<const Loaded> loaded = std::move(entry->loaded);
  entries_.erase(entry);
  loaded_ = entries_.size();
  changed_.notify_all();
  return loaded;
}

bool ModelManager::unload_key(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto entry = find(key);
  if (entry == entries_.end()) return false;
  entry->leaving = true;
  changed_.notify_all();
  return true;
}

std::vector<ModelManager::Running> ModelManager::running() const {
  const MutexLock lock(mutex_);
  std::vector<Running> running;
  for (const Entry& entry : entries_) {
    Running one{entry.loaded, entry.names, {}, entry.users};
    const Clock::time_point expires = expiry(entry.users > 0 ? Clock::now() : entry.last_use, entry.keep_alive);
    if (expires != Clock::time_point::max()) one.expires_at = expires;
    running.push_back(std::move(one));
  }
  return running;
}

/// Unloads what has expired or was asked to leave.
void ModelManager::reap() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    Clock::time_point next = Clock::now() + std::chrono::hours(1);
    auto expired = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end() && expired == entries_.end(); ++it) {
      if (it->users > 0) continue;
      const Clock::time_point expires = it->leaving ? Clock::time_point() : expiry(it->last_use, it->keep_alive);
      if (expires <= Clock::now()) expired = it;
      next = std::min(next, expires);
    }
    if (expired == entries_.end()) {
      changed_.wait_until(mutex_, next);
      continue;
    }
    carry_on("unloading", [&] { log::info("unloading {}", expired->loaded->name); });
    let_go(expired);
  }
}

void ModelManager::shutdown(std::chrono::milliseconds grace) {
  std::list<Entry> entries;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    changed_.wait(mutex_, [this]() MR_REQUIRES(mutex_) { return loading_.empty(); });
    for (const Entry& entry : entries_) entries.push_back(entry);  // users of an entry still find it
  }
  const auto deadline = std::chrono::steady_clock::now() + grace;
  for (const Entry& entry : entries) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    entry.loaded->service->shutdown(std::max(left, std::chrono::milliseconds(0)));
  }
  if (reaper_.joinable()) reaper_.join();
}

}  // namespace millrace::engine
