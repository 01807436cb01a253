#include "modelfile/file_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/bytes.h"
#include "base/os/folder.h"
#include "modelfile/escape.h"

namespace millrace::modelfile {
namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;

/// What a failed write means to the person at the keyboard.
Status write_failure(const std::string& path, const Status& why) {
  const char* advice = "check the disk and the folder's permissions";
  if (why.code() == Code::out_of_budget) advice = "free some disk space or choose another folder";
  if (why.code() == Code::unsupported) advice = "write smaller splits or choose another file system";
  return error(Code::io_error, "{}: cannot write: {}; {}", escape(path), why.message(), advice);
}

/// What to do with a folder where a model's file is wanted.
std::string advice_on_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code problem;
  std::string model;
  const Status ignored = os::for_each_name(path, [&](const std::string& name) {
    if (model.empty() && fs::path(name).extension() == ".gguf") model = name;
  });
  if (!model.empty()) return fmt::format("give {} inside it", escape(model));
  if (fs::exists(fs::path(path) / "config.json", problem))
    return fmt::format("it looks like a checkpoint's: 'millrace convert {} -o MODEL.gguf' makes a model's file of it",
                       escape(path));
  return "give a model's .gguf file";
}

}  // namespace

Expected<File> File::open_read(const std::string& path) {
  auto opened = os::File::open(path, {.wait = false});
  if (opened.status().code() == Code::not_found)
    return error(Code::not_found, "{}: no such file; check the path", escape(path));
  if (!opened.ok())
    return error(Code::io_error, "{}: cannot open: {}; check the file's permissions", escape(path),
                 opened.status().message());
  File file(std::move(*opened), path);
  MR_ASSIGN_OR_RETURN(const os::FileInfo info, file.info());
  if (info.kind == os::FileKind::folder)
    return error(Code::invalid_argument, "{}: is a directory; {}", escape(path), advice_on_folder(path));
  if (!info.is_regular())
    return error(Code::invalid_argument, "{}: is not a regular file; copy the model to disk first", escape(path));
  return file;
}

Expected<File> File::create(const std::string& path) {
  auto opened = os::File::open(
      path, {.access = os::File::Access::both, .create = os::File::Create::if_missing, .writable_by_all = false});
  if (!opened.ok()) return write_failure(path, opened.status());
  File file(std::move(*opened), path);
  if (!file.file_.lock(false).ok())
    return error(Code::io_error, "{}: another process is writing this file; wait for it or choose another name",
                 escape(path));
  if (const Status emptied = file.file_.resize(0); !emptied.ok()) return write_failure(path, emptied);
  return file;
}

Status check_replaceable(const std::string& path) {
  const auto info = os::file_info(path);
  if (!info.ok() || info->is_regular()) return {};
  if (info->kind == os::FileKind::folder)
    return error(Code::invalid_argument, "{}: is a directory; name a file in it", escape(path));
  return error(Code::invalid_argument, "{}: is no regular file, which this would replace; name another", escape(path));
}

namespace {

/// "PREFIX-00001-of-00003.gguf" without its number; empty for other names.
std::string split_of(const std::string& path) {
  const auto part = path.rfind("-of-");
  if (part == std::string::npos || part < 6 || !path.ends_with(".gguf") || path[part - 6] != '-') return "";
  return path.substr(0, part - 5) + path.substr(part);
}

bool replaces(const std::string& out, const std::string& input) {
  namespace fs = std::filesystem;
  std::error_code absent;
  if (fs::equivalent(out, input, absent)) return true;
  if (fs::is_directory(input, absent))
    return fs::is_regular_file(out, absent) && fs::path(out).extension() != ".gguf" &&
           fs::equivalent(fs::absolute(out).parent_path(), input, absent);
  const std::string split = split_of(fs::weakly_canonical(input, absent).string());
  return !split.empty() && split == split_of(fs::weakly_canonical(out, absent).string());
}

}  // namespace

Status check_output(const std::string& out, std::span<const std::string> inputs) {
  if (out.empty()) return {};
  for (const std::string& input : inputs)
    for (const char* aside : {"", ".partial", ".part"})
      if (!input.empty() && replaces(out + aside, input))
        return error(Code::invalid_argument, "{}: is read by this command, too; name another file for the output",
                     escape(out + aside));
  return {};
}

bool begins_like_gguf(const std::string& path) {
  const auto file = File::open_read(path);
  std::array<std::byte, 4> head{};
  return file.ok() && file->read_at(0, head).ok() && std::memcmp(head.data(), "GGUF", head.size()) == 0;
}

Expected<File> File::open_direct_write(const std::string& path) {
  auto opened = os::File::open(path, {.access = os::File::Access::write, .direct = true});
  if (!opened.ok())
    return error(Code::unsupported, "{}: no O_DIRECT here: {}", escape(path), opened.status().message());
  return File(std::move(*opened), path);
}

Expected<os::FileInfo> File::info() const {
  auto info = file_.info();
  if (!info.ok()) return error(Code::io_error, "{}: cannot read its size: {}", escape(path_), info.status().message());
  return info;
}

Expected<std::uint64_t> File::size() const {
  MR_ASSIGN_OR_RETURN(const os::FileInfo found, info());
  return found.bytes;
}

Status File::reserve(std::uint64_t bytes) const {
  if (bytes > static_cast<std::uint64_t>(INT64_MAX))
    return write_failure(path_, Status(Code::unsupported, "no file is so long"));
  if (file_.reserve(bytes).code() == Code::out_of_budget) {
    const auto left = file_.free_bytes();
    return error(Code::io_error, "{}: needs {} but the disk has {} free; free some space or choose another folder",
                 escape(path_), format_bytes(bytes), format_bytes(left.ok() ? *left : 0));
  }
  // File systems that cannot reserve say so; setting the length is enough for them.
  const Status status = file_.resize(bytes);
  return status.ok() ? status : write_failure(path_, status);
}

Status File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto got = file_.read_at(offset, out);
    if (!got.ok())
      return error(Code::io_error, "{}: cannot read at byte {}: {}; check the disk", escape(path_), offset,
                   got.status().message());
    if (*got == 0)
      return error(Code::io_error, "{}: the file became shorter while it was read; open it again when it is complete",
                   escape(path_));
    out = out.subspan(*got);
    offset += *got;
  }
  return {};
}

Status File::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  const Status status = file_.write_at(offset, bytes);
  return status.ok() ? status : write_failure(path_, status);
}

Status File::sync() const {
  const Status status = file_.sync();
  return status.ok() ? status : write_failure(path_, status);
}

Expected<std::vector<File>> open_files(std::span<const std::string> paths) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    MR_ASSIGN_OR_RETURN(File file, File::open_read(path));
    files.push_back(std::move(file));
  }
  return files;
}

Cursor::Cursor(std::span<const std::byte> bytes) : window_(bytes), size_(bytes.size()) {}

Cursor::Cursor(const File& file, std::uint64_t size) : file_(&file), size_(size) {
  buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, size)));
}

Status Cursor::cut_off(std::uint64_t bytes, std::string_view what) const {
  return error(Code::corrupt,
               "the header is damaged or cut off: {} at byte {} needs {} bytes, but {} remain; download the file again",
               what, position_, bytes, remaining());
}

Status Cursor::read(std::span<std::byte> out, std::string_view what) {
  if (out.size() > remaining()) return cut_off(out.size(), what);
  while (!out.empty()) {
    const std::uint64_t lead = position_ - window_begin_;
    if (position_ >= window_begin_ && lead < window_.size()) {
      const std::size_t take = std::min<std::size_t>(out.size(), window_.size() - static_cast<std::size_t>(lead));
      std::memcpy(out.data(), window_.data() + lead, take);
      out = out.subspan(take);
      position_ += take;
    } else if (out.size() >= buffer_.size()) {
      MR_RETURN_IF_ERROR(file_->read_at(position_, out));
      position_ += out.size();
      out = {};
    } else {
      const auto fill = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), remaining()));
      MR_RETURN_IF_ERROR(file_->read_at(position_, std::span(buffer_).first(fill)));
      window_ = std::span<const std::byte>(buffer_).first(fill);
      window_begin_ = position_;
    }
  }
  return {};
}

Status Cursor::skip(std::uint64_t bytes, std::string_view what) {
  if (bytes > remaining()) return cut_off(bytes, what);
  position_ += bytes;
  return {};
}

}  // namespace millrace::modelfile
