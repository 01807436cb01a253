#include "link/mpi_link.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/os/library.h"
#include "base/os/process.h"
#include "base/say.h"
#include "link/mpi_plugin.h"

namespace millrace::link {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr char kPlugin[] = "libmillrace_mpi.so";
constexpr int kHostBytes = 256;
constexpr int kData = 1, kBeat = 2;  // tags
constexpr milliseconds kBeatEvery{500}, kLongestSilence{6'000};
// Until the job is ended: for requests to fail with a word, and for mpirun, which by then has missed a host that is cut
// off (kMpirunMisses). If it were told to end the job before, it would wait for that host.
constexpr milliseconds kLastWords{2'000};
// What has Open MPI's mpirun miss a host 6 to 7 s after the last sign of it: it is asked each second, six times.
constexpr std::pair<const char*, const char*> kMpirunMisses[] = {{"OMPI_MCA_oob_tcp_keepalive_time", "1"},
                                                                 {"OMPI_MCA_oob_tcp_keepalive_intvl", "1"},
                                                                 {"OMPI_MCA_oob_tcp_keepalive_probes", "6"}};
// Open MPI asks before it sends more than 64 KiB by TCP, and waits for the word: logits take three times the way then.
// Up to 1 MiB goes at once; its buffers come one by one, as they are needed.
constexpr std::pair<const char*, const char*> kSendsAtOnce[] = {{"OMPI_MCA_btl_tcp_eager_limit", "1048576"},
                                                                {"OMPI_MCA_btl_tcp_rndv_eager_limit", "1048576"},
                                                                {"OMPI_MCA_btl_tcp_max_send_size", "1048576"},
                                                                {"OMPI_MCA_btl_tcp_free_list_num", "1"},
                                                                {"OMPI_MCA_btl_tcp_free_list_inc", "1"}};

/// The plugin's calls.
struct Mpi {
  decltype(&millrace_mpi_begin) begin = nullptr;
  decltype(&millrace_mpi_hosts) hosts = nullptr;
  decltype(&millrace_mpi_send) send = nullptr;
  decltype(&millrace_mpi_probe) probe = nullptr;
  decltype(&millrace_mpi_receive) receive = nullptr;
  decltype(&millrace_mpi_test) test = nullptr;
  decltype(&millrace_mpi_leave) leave = nullptr;
  decltype(&millrace_mpi_text) text = nullptr;
  decltype(&millrace_mpi_abort) abort = nullptr;
  decltype(&millrace_mpi_end) end = nullptr;

  std::string words(int code) const {
    char words[512] = {};
    text(code, words, sizeof(words));
    return words;
  }
};

/// Where the plugin may lie: where MILLRACE_MPI says, else beside the program, where it was installed, or where the
/// system has its libraries.
std::vector<std::string> plugin_places() {
  if (const char* named = std::getenv("MILLRACE_MPI"); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> places;
  if (const auto words = os::command_line(); words.ok()) {
    const std::filesystem::path folder = std::filesystem::path(words.value()[0]).parent_path();
    places.push_back((folder / kPlugin).string());
    places.push_back((folder / ".." / MILLRACE_LIBRARY_FOLDER / kPlugin).string());
  }
  places.emplace_back(kPlugin);
  return places;
}

Expected<Mpi> load_plugin() {
  std::optional<os::Library> library;
  std::string why;
  for (const std::string& place : plugin_places()) {
    // MPI's own plugins look for its symbols among those of all.
    auto loaded = os::Library::load(place, os::Library::Symbols::shared);
    if (loaded.ok()) {
      library = *loaded;
      break;
    }
    why = loaded.status().message();
  }
  if (!library)
    return error(
        Code::unsupported,
        "an MPI launcher started this process beside others, but {} cannot be loaded ({}); build millrace "
        "where mpi.h is (Debian: libopenmpi-dev), name the file in MILLRACE_MPI, or set that to off to run by itself",
        kPlugin, why);
  Mpi mpi;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto*& call) {
    library->find(name, call);
    if (call == nullptr) missing = name;
  };
  find("millrace_mpi_begin", mpi.begin);
  find("millrace_mpi_hosts", mpi.hosts);
  find("millrace_mpi_send", mpi.send);
  find("millrace_mpi_probe", mpi.probe);
  find("millrace_mpi_receive", mpi.receive);
  find("millrace_mpi_test", mpi.test);
  find("millrace_mpi_leave", mpi.leave);
  find("millrace_mpi_text", mpi.text);
  find("millrace_mpi_abort", mpi.abort);
  find("millrace_mpi_end", mpi.end);
  if (missing != nullptr) return error(Code::unsupported, "{} has no {}: it is another version's", kPlugin, missing);
  return mpi;
}

class MpiLink final : public Link {
 public:
  MpiLink(const Mpi& mpi, int rank, int size, std::vector<std::string> hosts)
      : mpi_(mpi), rank_(rank), size_(size), hosts_(std::move(hosts)), pulse_([this] { watch(); }) {}

  ~MpiLink() override {
    meet_to_leave();
    {
      const MutexLock lock(pulse_mutex_);
      stopping_ = true;
      stop_.notify_all();
    }
    pulse_.join();
    const MutexLock lock(mutex_);
    mpi_.end();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host(int rank) const override { return hosts_[static_cast<std::size_t>(rank)]; }

  Status send(int to, std::span<const std::byte> message) override {
    if (message.size() > INT_MAX)
      return error(Code::unsupported, "a message of {} bytes is too long for MPI; give a smaller --batch",
                   message.size());
    void* operation = nullptr;
    int failed = 0;
    {
      const MutexLock lock(mutex_);
      failed = mpi_.send(to, kData, message.data(), message.size(), &operation);
    }
    if (failed != 0) return error(Code::io_error, "{} cannot be sent to: {}", name(to), words(failed));
    return finish(operation, to, true);
  }

  Expected<std::optional<int>> try_receive(std::vector<std::byte>& message) override {
    if (early_.empty()) return receive_new(message);
    const int from = early_.front().first;
    message = std::move(early_.front().second);
    early_.pop_front();
    return std::optional(from);
  }

 private:
  /// A message that MPI has.
  Expected<std::optional<int>> receive_new(std::vector<std::byte>& message) {
    int found = 0, from = 0, failed = 0;
    std::size_t bytes = 0;
    void *matched = nullptr, *operation = nullptr;
    {
      const MutexLock lock(mutex_);
      failed = mpi_.probe(kData, &found, &from, &bytes, &matched);
    }
    if (failed != 0) return error(Code::io_error, "the other processes are lost: {}", words(failed));
    if (found == 0) {
      if (const int gone = gone_; gone >= 0) return silent(gone);
      return std::optional<int>();
    }
    if (message.capacity() < bytes) {  // never both the old and the new bytes
      std::vector<std::byte>().swap(message);
      message.reserve(bytes);
    }
    message.resize(bytes);
    {
      const MutexLock lock(mutex_);
      failed = mpi_.receive(matched, message.data(), bytes, &operation);
    }
    if (failed != 0) return error(Code::io_error, "{} cannot be heard: {}", name(from), words(failed));
    const Status finished = finish(operation, from);
    // MPI may yet write where it was to: nobody else gets that memory in the second that the job has left.
    if (!finished.ok()) new std::vector<std::byte>(std::move(message));
    MR_RETURN_IF_ERROR(finished);
    return std::optional(from);
  }

  /// Waits for an operation with another rank. Who sends takes in what comes meanwhile: the other one may be sending
  /// to him, too, and long messages leave only when they are received.
  Status finish(void* operation, int with, bool sends = false) {
    for (Pause pause;; pause.sleep()) {
      int done = 0, failed = 0;
      {
        const MutexLock lock(mutex_);
        failed = mpi_.test(operation, &done);
      }
      if (failed != 0) return error(Code::io_error, "{} is lost: {}", name(with), words(failed));
      if (done != 0) return {};
      if (const int gone = gone_; gone >= 0) return silent(gone);
      if (!sends) continue;
      std::vector<std::byte> message;
      MR_ASSIGN_OR_RETURN(const std::optional<int> from, receive_new(message));
      if (from) early_.emplace_back(*from, std::move(message));
    }
  }

  std::string words(int code) {
    const MutexLock lock(mutex_);
    return mpi_.words(code);
  }

  /// Waits until all ranks want to end, while the pulse goes on: one that ends later is not taken for dead, and one
  /// that hangs is.
  void meet_to_leave() {
    void* operation = nullptr;
    {
      const MutexLock lock(mutex_);
      if (gone_ >= 0 || mpi_.leave(&operation) != 0) return;
    }
    if (const Status met = finish(operation, 0); !met.ok()) log::debug("{}", met.message());
  }

  Status silent(int rank) const {
    return error(Code::io_error, "{} has not been heard of for {} s", name(rank), kLongestSilence.count() / 1000);
  }

  /// Ranks that this one listens to: rank 0 to all, the others to rank 0 and to those they compute beside.
  std::vector<int> peers() const {
    std::vector<int> peers;
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_ && (rank_ == 0 || rank == 0 || std::abs(rank - rank_) == 1)) peers.push_back(rank);
    return peers;
  }

  /// Until the end: tells peers that this rank lives, and looks whether they do.
  void watch() {
    const std::vector<int> all = peers();
    std::vector<milliseconds> silence(static_cast<std::size_t>(size_), milliseconds(0));
    std::vector<void*> beats(static_cast<std::size_t>(size_), nullptr);  // on their way
    Clock::time_point before = Clock::now();
    while (!wait_for_end(kBeatEvery)) {
      const Clock::time_point now = Clock::now();
      // While this process was stopped itself, nobody's silence counts.
      const auto passed = std::min(std::chrono::duration_cast<milliseconds>(now - before), 2 * kBeatEvery);
      before = now;
      for (milliseconds& one : silence) one += passed;
      listen(silence);
      for (const int peer : all) {
        const auto index = static_cast<std::size_t>(peer);
        beat(peer, beats[index]);
        if (silence[index] >= kLongestSilence) return end_job(peer);
      }
    }
    for (const int peer : all) {  // MPI wants nothing under way at the end
      int done = beats[static_cast<std::size_t>(peer)] == nullptr ? 1 : 0;
      for (Pause pause; done == 0; pause.sleep()) {
        const MutexLock lock(mutex_);
        mpi_.test(beats[static_cast<std::size_t>(peer)], &done);
      }
    }
  }

  bool wait_for_end(milliseconds time) {
    MutexLock lock(pulse_mutex_);
    const auto until = Clock::now() + time;
    return stop_.wait_until(pulse_mutex_, until, [this]() MR_REQUIRES(pulse_mutex_) { return stopping_; });
  }

  void listen(std::vector<milliseconds>& silence) {
    const MutexLock lock(mutex_);
    for (;;) {
      int found = 0, from = 0, done = 0;
      std::size_t bytes = 0;
      void *matched = nullptr, *operation = nullptr;
      char nothing[1];
      if (mpi_.probe(kBeat, &found, &from, &bytes, &matched) != 0 || found == 0) return;
      if (mpi_.receive(matched, nothing, 0, &operation) != 0) return;
      while (mpi_.test(operation, &done) == 0 && done == 0) {  // it is here, and empty
      }
      silence[static_cast<std::size_t>(from)] = milliseconds(0);
    }
  }

  /// One at a time is on its way to a peer.
  void beat(int peer, void*& operation) {
    const MutexLock lock(mutex_);
    int done = 1;
    if (operation != nullptr) mpi_.test(operation, &done);
    if (done == 0) return;
    operation = nullptr;
    if (mpi_.send(peer, kBeat, nullptr, 0, &operation) != 0) operation = nullptr;
  }

  void end_job(int gone) {
    gone_ = gone;
    say(stderr, "error: {}; the job ends\n", silent(gone).message());
    std::this_thread::sleep_for(kLastWords);  // also where this process is done: its end would be the job's
    const MutexLock lock(mutex_);
    mpi_.abort(kExitGone);
  }

  const Mpi mpi_;
  const int rank_, size_;
  const std::vector<std::string> hosts_;                      // by rank
  std::atomic<int> gone_{-1};                                 // a rank that is taken for dead
  std::deque<std::pair<int, std::vector<std::byte>>> early_;  // came while this rank sent, and from whom
  Mutex mutex_;                                               // one thread at a time calls MPI
  Mutex pulse_mutex_;
  CondVar stop_;
  bool stopping_ MR_GUARDED_BY(pulse_mutex_) = false;
  std::thread pulse_;  // the last member: it uses the others
};

}  // namespace

bool started_by_mpi() {
  if (const char* named = std::getenv("MILLRACE_MPI"); named != nullptr && std::string_view(named) == "off")
    return false;
  const auto variable = [](const char* name) {
    const char* const number = std::getenv(name);
    return number == nullptr ? 0 : std::atoi(number);
  };
  if (variable("OMPI_COMM_WORLD_SIZE") > 1 || variable("PMI_SIZE") > 1) return true;
  return std::getenv("PMIX_RANK") != nullptr && variable("SLURM_STEP_NUM_TASKS") > 1;
}

void prepare_mpirun() {
  for (const auto& [name, value] : kMpirunMisses) os::add_to_environment(name, value);
}

Expected<std::unique_ptr<Link>> join_mpi() {
  MR_ASSIGN_OR_RETURN(const Mpi mpi, load_plugin());
  for (const auto& [name, value] : kSendsAtOnce) os::add_to_environment(name, value);
  int rank = 0, size = 0;
  if (const int failed = mpi.begin(&rank, &size); failed != 0)
    return error(Code::unsupported, "MPI does not begin: {}", mpi.words(failed));
  if (size < 2) {
    mpi.end();
    return error(
        Code::unsupported,
        "the launcher started several processes, but MPI knows of one; use the mpirun of the MPI that millrace "
        "was built with, or 'srun --mpi=pmix'");
  }
  std::vector<char> names(static_cast<std::size_t>(size) * kHostBytes);
  if (const int failed = mpi.hosts(names.data(), kHostBytes); failed != 0)
    return error(Code::unsupported, "MPI does not say which hosts take part: {}", mpi.words(failed));
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.emplace_back(names.data() + static_cast<std::ptrdiff_t>(r) * kHostBytes);
  return std::unique_ptr<Link>(std::make_unique<MpiLink>(mpi, rank, size, std::move(hosts)));
}

}  // namespace millrace::link
