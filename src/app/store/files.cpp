#include "app/store/files.h"

#include <filesystem>
#include <span>

#include "base/bytes.h"
#include "base/os/process.h"
#include "modelfile/file_io.h"

namespace millrace::store {

namespace fs = std::filesystem;

Status named(const std::string& path, std::string_view doing, const Status& status) {
  if (status.ok()) return status;
  if (status.code() == Code::out_of_budget || status.code() == Code::unsupported)
    return error(Code::out_of_budget,
                 "{}: cannot {}: the disk is full (or a limit on files is); make room, then try again", path, doing);
  return error(Code::io_error, "{}: cannot {}: {}", path, doing, status.message());
}

Status make_folders(const std::string& path) {
  std::error_code failure;
  fs::create_directories(path, failure);
  if (!failure) return {};
  return error(Code::io_error, "{}: cannot make this folder: {}; set MILLRACE_MODELS to a folder you may write", path,
               failure.message());
}

Status sync_folder(const std::string& path) { return named(path, "sync this folder", os::sync_folder(path)); }

Status move_file(const std::string& from, const std::string& to) {
  MR_RETURN_IF_ERROR(named(to, "put the file in place", os::replace_file(from, to)));
  return sync_folder(fs::path(to).parent_path().string());
}

Status write_whole(const std::string& path, std::string_view text) {
  const std::string fresh = fmt::format("{}.{}.new", path, os::process_id());
  {
    MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::create(fresh));
    Status status = file.write_at(0, std::as_bytes(std::span(text.data(), text.size())));
    if (status.ok()) status = file.sync();
    if (!status.ok()) {
      std::remove(fresh.c_str());
      return status;
    }
  }
  return move_file(fresh, path);
}

Expected<std::string> read_whole(const std::string& path, std::uint64_t most_bytes) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, file.size());
  if (bytes > most_bytes) return error(Code::corrupt, "{}: it is larger than {}", path, format_bytes(most_bytes));
  std::string text(bytes, '\0');
  MR_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Expected<std::uint64_t> free_bytes(const std::string& path) {
  auto bytes = os::free_bytes(path);
  if (!bytes.ok()) return named(path, "ask how much of the disk is free", bytes.status());
  return bytes;
}

Expected<FolderLock> FolderLock::take(const std::string& folder, bool wait) {
  MR_RETURN_IF_ERROR(make_folders(folder));
  const std::string path = folder + "/.lock";
  auto file = os::File::open(path, {.access = os::File::Access::both, .create = os::File::Create::if_missing});
  if (!file.ok()) return named(path, "open it", file.status());
  const Status locked = file->lock(wait);
  if (locked.code() == Code::unavailable)
    return error(Code::io_error, "{}: another process works here; wait for it", folder);
  MR_RETURN_IF_ERROR(named(path, "lock it", locked));
  return FolderLock(folder, std::move(*file));
}

Status FolderLock::remove() {
  std::error_code failure;
  std::filesystem::remove_all(folder_, failure);
  file_ = os::File();
  if (failure) std::filesystem::remove_all(folder_, failure);  // Windows lets go of the locked file only now
  return failure ? error(Code::io_error, "{}: cannot remove it: {}", folder_, failure.message()) : Status();
}

}  // namespace millrace::store
