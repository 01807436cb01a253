#include "app/batch/output.h"

#include <span>
#include <utility>

#include "base/log.h"
#include "modelfile/file_io.h"

namespace millrace::batch {
namespace {

constexpr auto kSyncEvery = std::chrono::seconds(5);  // what a power cut may cost

/// The status, where it failed with the path and what was to be done.
Status named(const std::string& path, const char* what, const Status& status) {
  return status.ok() ? status : error(Code::io_error, "{}: {}: {}", path, what, status.message());
}

/// Whether a part of a line may be one of ours: nothing else is ever cut off.
bool begins_like_ours(std::string_view text) {
  constexpr std::string_view ours = R"({"id":"batch_req_)";
  return text.substr(0, ours.size()) == ours.substr(0, text.size());
}

}  // namespace

Expected<Output> Output::open(const std::string& path, const std::string& input, Index& index) {
  MR_RETURN_IF_ERROR(modelfile::check_output(path, std::span(&input, 1)));
  auto file = os::File::open(path, {.access = os::File::Access::both,
                                    .create = os::File::Create::if_missing,
                                    .append = true,
                                    .writable_by_all = false});
  if (!file.ok()) return named(path, "cannot write this file", file.status());
  const auto ours = file->info();
  if (!ours.ok() || !ours->is_regular())
    return error(Code::invalid_argument, "{}: is not a regular file; a batch that is stopped could not go on", path);
  if (!file->lock(false).ok())
    return error(Code::unavailable, "{}: another process writes to this file; wait for it, or give another", path);
  Output output(std::move(*file), path);
  MR_RETURN_IF_ERROR(output.take_up(index));
  return output;
}

Status Output::take_up(Index& index) {
  LineReader reader(file_, path_);
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
    return named(path_, "cannot cut this file", file_.resize(line->offset));
  }
}

Status Output::write(std::string line) {
  line += '\n';
  MR_RETURN_IF_ERROR(named(path_, "cannot write on", file_.write(line)));
  return std::chrono::steady_clock::now() - synced_ > kSyncEvery ? sync() : Status();
}

Status Output::sync() {
  synced_ = std::chrono::steady_clock::now();
  return named(path_, "cannot write on", file_.sync_data());
}

}  // namespace millrace::batch
