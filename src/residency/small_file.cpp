#include "residency/small_file.h"

#include <array>
#include <chrono>
#include <filesystem>

#include "base/bytes.h"
#include "base/open_output.h"
#include "base/os/file.h"
#include "base/os/process.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

Status failure(const std::string& path, const char* doing, const Status& why, Code code = Code::io_error) {
  return error(code, "{}: cannot {}: {}", path, doing, why.message());
}

/// A new file of ours alone; one that a process of this number left behind gives way.
Expected<os::File> create_new(const std::string& path) {
  const os::File::Options options{.access = os::File::Access::write, .create = os::File::Create::always_new};
  auto file = os::File::open(path, options);
  const bool in_the_way = file.status().code() == Code::invalid_argument;
  return in_the_way && os::remove_file(path).ok() ? os::File::open(path, options) : std::move(file);
}

}  // namespace

Expected<std::string> read_small_file(const std::string& path, std::uint64_t most_bytes) {
  auto file = os::File::open(path, {.wait = false});
  const bool missing = file.status().code() == Code::not_found;
  if (!file.ok()) return failure(path, "read it", file.status(), missing ? Code::not_found : Code::io_error);
  constexpr std::chrono::seconds kPatience(5);
  if (!file->wait_for_data(kPatience).ok())
    return error(Code::io_error, "{}: is a pipe without a writer; start the writer first", path);
  std::string text;
  std::array<char, 16384> buffer{};
  for (;;) {
    const auto count = file->read(std::as_writable_bytes(std::span(buffer)));
    if (!count.ok()) return failure(path, "read it", count.status());
    if (*count == 0) return text;
    text.append(buffer.data(), *count);
    if (text.size() > most_bytes)
      return error(Code::invalid_argument, "{}: it is longer than {}; no file of this kind is", path,
                   format_bytes(most_bytes));
  }
}

Status write_small_file(const std::string& path, std::string_view text, Links links) {
  const auto there = os::file_info(path, links == Links::follow ? os::Links::follow : os::Links::stay);
  const bool is_link = there.ok() && there->kind == os::FileKind::link;
  if (there.ok() && !there->is_regular() && !is_link) {
    MR_ASSIGN_OR_RETURN(const os::File file, open_output(path, {.links = os::Links::stay}));
    const Status status = file.write(text);
    return status.ok() ? status : failure(path, "write it", status);
  }
  std::string target = path;
  if (there.ok() && !is_link) {
    std::error_code unresolved;
    const fs::path real = fs::canonical(path, unresolved);
    if (!unresolved && links == Links::follow) target = real.string();
  }
  const std::string fresh = fmt::format("{}.{}.new", target, os::process_id());
  Status status;
  {
    const auto file = create_new(fresh);
    if (!file.ok()) return failure(path, "write it", file.status());
    status = file->write(text);
    if (status.ok() && there.ok() && !is_link) (void)file->set_permissions_like(path);
    if (status.ok()) status = file->sync();
    if (!status.ok()) status = failure(path, "write it", status);
  }
  if (status.ok())
    if (const Status placed = os::replace_file(fresh, target); !placed.ok())
      status = failure(path, "put it in place", placed);
  if (!status.ok()) (void)os::remove_file(fresh);
  return status;
}

}  // namespace millrace::residency
