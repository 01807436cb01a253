#include "base/os/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "base/os/posix/posix.h"

namespace millrace::os {
namespace {

std::string read_to_end(int pipe) {
  std::string text;
  std::array<char, 256> buffer;
  for (ssize_t count = 0; (count = retry([&] { return ::read(pipe, buffer.data(), buffer.size()); })) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(count));
  return text;
}

/// Redirects the standard streams to these handles, which stay open.
void redirect_streams(int input, int output) {
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
}

}  // namespace

std::int64_t process_id() { return ::getpid(); }
std::int64_t user_id() { return ::getuid(); }

Expected<std::vector<std::string>> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::error_code failure;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", failure).string();
  if (words.empty() || failure)
    return error(Code::unsupported, "the system does not say how this process was started; mount /proc");
  words[0] = program;
  return words;
}

Status replace_process(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  return last_error();
}

void add_to_environment(const char* name, const char* value) { ::setenv(name, value, 0); }

void end_process(int exit_code) { ::_exit(exit_code); }

bool can_stop(std::int64_t process) { return process > 1 && ::kill(static_cast<pid_t>(process), 0) == 0; }

Status stop_process(std::int64_t process) {
  return ::kill(static_cast<pid_t>(process), SIGTERM) == 0 ? Status() : last_error();
}

void allow_open_files(std::size_t most) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, most);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::optional<LockedMemoryLimit> locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return std::nullopt;
  static_assert(RLIM_INFINITY == UINT64_MAX);
  return LockedMemoryLimit{limit.rlim_cur, limit.rlim_max};
}

Expected<Daemon> Daemon::start(const std::string& log_path, const std::function<int(const std::string& report)>& end) {
  const File::Options options{.access = File::Access::write,
                              .create = File::Create::if_missing,
                              .append = true,
                              .owner_only = true,
                              .wait = false};
  const int log = ::open(log_path.empty() ? "/dev/null" : log_path.c_str(), flags_of(options), mode_of(options));
  if (log < 0 && errno == ENXIO) return Status(Code::unavailable, "it is a pipe that nobody reads");
  const int nothing = log < 0 ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  int ends[2] = {-1, -1};
  if (nothing < 0 || ::pipe2(ends, O_CLOEXEC) != 0) return last_error();
  const pid_t child = ::fork();
  if (child < 0) return last_error();
  if (child > 0) {
    ::close(ends[1]);
    end_process(end(read_to_end(ends[0])));
  }
  ::close(ends[0]);
  ::setsid();
  (void)::fcntl(log, F_SETFL, ::fcntl(log, F_GETFL, 0) & ~O_NONBLOCK);
  redirect_streams(nothing, log);
  ::close(nothing);
  ::close(log);
  return Daemon(ends[1]);
}

Daemon::~Daemon() {
  if (report_ >= 0) ::close(report_);
}

void Daemon::report(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(report_, text.data(), text.size());
  ::close(std::exchange(report_, -1));
}

}  // namespace millrace::os
