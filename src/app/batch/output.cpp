#include "app/batch/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "modelfile/file_io.h"

namespace millrace::batch {
namespace {

constexpr auto kSyncEvery = std::chrono::seconds(5);  // what a power cut may cost

Status failed(const std::string& path, const char* what) {
  return error(Code::io_error, "{}: {}: {}", path, what, std::strerror(errno));
}

/// Whether a part of a line may be one of ours: nothing else is ever cut off.
bool begins_like_ours(std::string_view text) {
  constexpr std::string_view ours = R"({"id":"batch_req_)";
  return text.substr(0, ours.size()) == ours.substr(0, text.size());
}

}  // namespace

Expected<Output> Output::open(const std::string& path, const std::string& input, Index& index) {
  MR_RETURN_IF_ERROR(modelfile::check_output(path, std::span(&input, 1)));
  storage::ScopedFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.open()) return failed(path, "cannot write this file");
  struct stat ours {};
  if (::fstat(file.get(), &ours) != 0 || !S_ISREG(ours.st_mode))
    return error(Code::invalid_argument, "{}: is not a regular file; a batch that is stopped could not go on", path);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return error(Code::unavailable, "{}: another process writes to this file; wait for it, or give another", path);
  Output output(std::move(file), path);
  MR_RETURN_IF_ERROR(output.take_up(index));
  return output;
}

Status Output::take_up(Index& index) {
  LineReader reader(file_.get(), path_);
  for (;;) {
    MR_ASSIGN_OR_RETURN(const auto line, reader.next());
    if (!line) return {};
    if (line->blank() && line->ended) continue;
    const Status marked = index.mark(line->text);
    if (marked.ok() && line->ended) continue;
    if (marked.ok()) return write("");  // whole but for its end
    if (line->ended || !begins_like_ours(line->text))
      return marked.with_context(fmt::format("{}:{}", path_, line->number));
    log::info("{}: cutting off half a line at its end", path_);
    if (::ftruncate(file_.get(), static_cast<off_t>(line->offset)) != 0) return failed(path_, "cannot cut this file");
    return {};
  }
}

Status Output::write(std::string line) {
  line += '\n';
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = ::write(file_.get(), line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return failed(path_, "cannot write on");
    done += static_cast<std::size_t>(wrote);
  }
  return std::chrono::steady_clock::now() - synced_ > kSyncEvery ? sync() : Status();
}

Status Output::sync() {
  synced_ = std::chrono::steady_clock::now();
  return ::fdatasync(file_.get()) == 0 ? Status() : failed(path_, "cannot write on");
}

}  // namespace millrace::batch
