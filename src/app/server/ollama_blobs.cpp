// Ollama's uploads: bytes by their SHA-256, of which /api/create makes a model.
#include <array>
#include <filesystem>

#include "app/server/body_stream.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/store/digest.h"
#include "app/store/files.h"
#include "base/bytes.h"
#include "modelfile/file_io.h"

namespace millrace::server {
namespace {

namespace fs = std::filesystem;
using httplib::Request;
using httplib::Response;

constexpr std::uint64_t kDiskReserve = 64 * kMiB;      // left free
constexpr std::uint64_t kLookAtDiskEvery = 64 * kMiB;  // where the length was not told

/// The hash that the path names. Errors: invalid_argument.
Expected<std::string> hash_of(const Request& request) {
  const std::string digest = request.matches[1];
  constexpr std::string_view prefix = "sha256:";
  std::string hash = digest.starts_with(prefix) ? digest.substr(prefix.size()) : std::string();
  if (store::is_sha256(hash)) return hash;
  return error(Code::invalid_argument, "a blob is named sha256: and 64 hexadecimal digits, lower case");
}

bool is_here(Context& context, const std::string& hash) {
  std::error_code absent;
  return fs::is_regular_file(context.catalog.store().blob_path(hash), absent);
}

/// httplib asks the same function for HEAD and GET; a blob itself is sent to nobody.
void look(Context& context, const Request& request, Response& response) {
  const auto hash = hash_of(request);
  if (!hash.ok()) return fail(Api::ollama, response, hash.status());
  if (request.method != "HEAD")
    return fail(Api::ollama, response, 405,
                error(Code::unsupported, "blobs cannot be downloaded; HEAD returns whether one exists"));
  if (is_here(context, *hash)) return void(response.status = 200);
  fail(Api::ollama, response, 404, error(Code::not_found, "there is no blob sha256:{}", *hash));
}

Status check_room(const std::string& root, std::uint64_t bytes) {
  MR_ASSIGN_OR_RETURN(const std::uint64_t free, store::free_bytes(root));
  if (bytes + kDiskReserve <= free) return {};
  return error(Code::out_of_budget, "{} more do not fit onto the store's disk, of which {} are free",
               format_bytes(bytes), format_bytes(free));
}

/// The body into a file. Errors: io_error, out_of_budget (the disk), corrupt (another hash than the one it is named
/// by).
Status receive(BodyStream& body, const modelfile::File& file, const std::string& root, const std::string& hash) {
  store::Sha256 found;
  std::array<char, 32 << 10> buffer;
  std::uint64_t at = 0;
  MR_RETURN_IF_ERROR(check_room(root, body.length().value_or(0)));
  for (;;) {
    MR_ASSIGN_OR_RETURN(const std::size_t count, body.read(buffer));
    if (count == 0) break;
    if (at / kLookAtDiskEvery != (at + count) / kLookAtDiskEvery) MR_RETURN_IF_ERROR(check_room(root, count));
    const auto bytes = std::as_bytes(std::span(buffer.data(), count));
    found.add(bytes);
    MR_RETURN_IF_ERROR(file.write_at(at, bytes));
    at += count;
  }
  MR_RETURN_IF_ERROR(file.sync());
  if (found.hex() == hash) return {};
  return error(Code::invalid_argument, "the body's SHA-256 is not the one in the path; it was not kept");
}

Status keep(Context& context, BodyStream& body, const std::string& hash) {
  const store::Store& store = context.catalog.store();
  MR_RETURN_IF_ERROR(store::make_folders(store.root() + "/blobs"));
  MR_RETURN_IF_ERROR(store::make_folders(store.root() + "/partial"));
  const std::string aside = fmt::format("{}/partial/upload-{}", store.root(), hash);
  Status status;
  {
    // Locked while it is written: a second upload of the same bytes is refused.
    MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::create(aside));
    status = receive(body, file, store.root(), hash);
    if (status.ok()) status = store::move_file(aside, store.blob_path(hash));
    std::error_code ignored;
    if (!status.ok()) fs::remove(aside, ignored);
  }
  return status;
}

/// Reads a body that nobody needs to its end, where that is near: many clients hear no answer before all is sent.
bool read_past(BodyStream& body) {
  constexpr std::uint64_t kNear = 64 * kMiB;
  if (body.length().value_or(UINT64_MAX) > kNear) return false;
  std::array<char, 32 << 10> buffer;
  for (;;) {
    const auto count = body.read(buffer);
    if (!count.ok() || *count == 0) return count.ok();
  }
}

void upload(Context& context, const Request& request, Response& response) {
  Connection& connection = Connection::current();
  const auto hash = hash_of(request);
  auto body = BodyStream::of(request, connection);
  Status status = hash.ok() ? body.status() : hash.status();
  const bool here = status.ok() && is_here(context, *hash);
  if (status.ok() && !here) status = keep(context, *body, *hash);
  const bool whole = status.ok() && (!here || read_past(*body));
  if (!whole) {  // of the body, something is unread
    connection.close_after_response();
    response.set_header("Connection", "close");
  }
  if (!status.ok()) return fail(Api::ollama, response, status.code() == Code::out_of_budget ? 507 : 400, status);
  response.status = here ? 200 : 201;
}

}  // namespace

void add_ollama_blob_routes(Context& context) {
  context.http.Get("/api/blobs/(.+)",
                   [&context](const Request& request, Response& response) { look(context, request, response); });
  context.http.PostStream("/api/blobs/(.+)",
                          [&context](const Request& request, Response& response, const httplib::ContentReader&) {
                            upload(context, request, response);
                          });
}

}  // namespace millrace::server
