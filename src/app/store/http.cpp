#include "app/store/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/carry_on.h"
#include "base/words.h"

namespace millrace::store {
namespace {

constexpr std::size_t kErrorBytes = 2048;  // of an error's body that are kept

std::optional<std::uint64_t> number(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

/// "bytes 0-99/1234"
std::optional<ContentRange> parse_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const auto dash = text.find('-'), slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash) return std::nullopt;
  const auto first = number(trim(text.substr(0, dash)));
  const auto last = number(trim(text.substr(dash + 1, slash - dash - 1)));
  const auto total = number(trim(text.substr(slash + 1)));
  if (!first || !last || !total || *last < *first || *last >= *total) return std::nullopt;
  return ContentRange{*first, *last, *total};
}

/// The address in `<...>; rel="next"`.
std::string parse_next_link(std::string_view text) {
  const auto rel = text.find("rel=\"next\"");
  if (rel == std::string_view::npos) return {};
  const auto close = text.rfind('>', rel);
  const auto open = text.rfind('<', rel);
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

/// One transfer's state, which curl's callbacks get.
struct Transfer {
  CURL* handle = nullptr;
  const HttpOptions* options = nullptr;
  const Connection::Sink* sink = nullptr;  // nullptr: into reply.body
  std::uint64_t max_bytes = 0;
  Reply reply;
  Status sink_status;
  bool begun = false;
};

void read_header(Reply& reply, std::string_view line) {
  if (line.starts_with("HTTP/")) {  // a new head, after a redirect
    reply.range.reset();
    reply.length.reset();
    reply.next_link.clear();
    reply.retry_after_seconds = 0;
    return;
  }
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
  if (same_word(name, "content-range")) reply.range = parse_range(value);
  if (same_word(name, "content-length")) reply.length = number(value);
  if (same_word(name, "link")) reply.next_link = parse_next_link(value);
  if (same_word(name, "retry-after"))
    reply.retry_after_seconds = static_cast<int>(std::min<std::uint64_t>(number(value).value_or(0), 60));
}

extern "C" std::size_t on_header(char* data, std::size_t size, std::size_t count, void* context) {
  // No exception goes through curl: it ends the transfer.
  const bool read = carry_on("a download", [&] {
    read_header(static_cast<Transfer*>(context)->reply, {data, size * count});
  });
  return read ? size * count : 0;
}

Status take_body(Transfer& transfer, std::span<const std::byte> bytes) {
  Reply& reply = transfer.reply;
  if (reply.code == 0) curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &reply.code);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (reply.code < 200 || reply.code >= 300) {
    reply.body += text.substr(0, kErrorBytes - std::min(kErrorBytes, reply.body.size()));
    return {};
  }
  if (transfer.sink == nullptr) {
    if (reply.body.size() + text.size() > transfer.max_bytes)
      return error(Code::corrupt, "the server's answer is longer than {} bytes", transfer.max_bytes);
    if (WorkGrant* const memory = transfer.options->memory; memory != nullptr && !memory->take(2 * text.size()))
      return error(Code::out_of_budget, "the server's answer takes more memory than requests may hold");
    reply.body += text;
    return {};
  }
  if (!transfer.begun && transfer.sink->begin) MR_RETURN_IF_ERROR(transfer.sink->begin(reply));
  transfer.begun = true;
  return transfer.sink->add(bytes);
}

extern "C" std::size_t on_body(char* data, std::size_t size, std::size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  transfer.sink_status = Status(Code::unavailable, "out of memory");
  carry_on("a download",
           [&] { transfer.sink_status = take_body(transfer, std::as_bytes(std::span(data, size * count))); });
  return transfer.sink_status.ok() ? size * count : 0;
}

extern "C" int on_progress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const std::atomic<bool>* const cancel = static_cast<Transfer*>(context)->options->cancel;
  return cancel != nullptr && cancel->load(std::memory_order_relaxed) ? 1 : 0;
}

/// curl itself heeds http_proxy, https_proxy, HTTPS_PROXY, ALL_PROXY and NO_PROXY; people write HTTP_PROXY, too.
void set_proxy(CURL* handle, const std::string& url) {
  const char* const upper = std::getenv("HTTP_PROXY");
  if (url.starts_with("http://") && std::getenv("http_proxy") == nullptr && upper != nullptr && *upper != '\0')
    curl_easy_setopt(handle, CURLOPT_PROXY, upper);
}

/// Scheme, host and port of an address.
std::string_view server_of(std::string_view url) {
  const auto scheme = url.find("://");
  return scheme == std::string_view::npos ? url : url.substr(0, url.find('/', scheme + 3));
}

}  // namespace

struct Connection::Impl {
  HttpOptions options;
  CURL* handle = nullptr;
  std::string asked, moved;  // where a file's first range was sent on to: further ones are asked for there
  Reply run(const std::string& url, const std::string& range, const Sink* sink, std::uint64_t max_bytes) const;
  void prepare(const std::string& url, const std::string& range, Transfer& transfer) const;
};

Connection::Connection(HttpOptions options) : impl_(std::make_unique<Impl>()) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  impl_->options = std::move(options);
  impl_->handle = curl_easy_init();
}

Connection::~Connection() {
  if (impl_->handle != nullptr) curl_easy_cleanup(impl_->handle);
}

void Connection::Impl::prepare(const std::string& url, const std::string& range, Transfer& transfer) const {
  curl_easy_reset(handle);  // connections and DNS stay
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, url.starts_with("https://") ? "https" : "http,https");
  // Of Windows' TLS alone: a list of revoked certificates that cannot be reached refuses nothing, as in browsers.
  curl_easy_setopt(handle, CURLOPT_SSL_OPTIONS, static_cast<long>(CURLSSLOPT_REVOKE_BEST_EFFORT));
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options.connect_seconds));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_seconds));
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, options.buffer_bytes);
  if (!range.empty()) curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
  if (!options.token.empty() && (url != moved || server_of(moved) == server_of(asked))) {
    curl_easy_setopt(handle, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, options.token.c_str());
  }
  set_proxy(handle, url);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &transfer);
}

Reply Connection::Impl::run(const std::string& url, const std::string& range, const Sink* sink,
                            std::uint64_t max_bytes) const {
  Transfer transfer;
  if (handle == nullptr) {
    transfer.reply.failure = error(Code::internal, "libcurl cannot start");
    return transfer.reply;
  }
  transfer.handle = handle;
  transfer.options = &options;
  transfer.sink = sink;
  transfer.max_bytes = max_bytes;
  prepare(url, range, transfer);
  const CURLcode result = curl_easy_perform(handle);
  Reply& reply = transfer.reply;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &reply.code);
  if (result == CURLE_ABORTED_BY_CALLBACK) {
    reply.failure = error(Code::cancelled, "stopped");
  } else if (!transfer.sink_status.ok()) {
    reply.failure = transfer.sink_status;
  } else if (result == CURLE_SSL_CACERT_BADFILE) {  // a bare system
    reply.failure =
        error(Code::io_error, "no certificates to verify servers with: install the package ca-certificates");
  } else if (result != CURLE_OK) {
    reply.failure = error(Code::io_error, "{}", curl_easy_strerror(result));
    reply.retriable = result != CURLE_URL_MALFORMAT && result != CURLE_UNSUPPORTED_PROTOCOL &&
                      result != CURLE_PEER_FAILED_VERIFICATION && result != CURLE_TOO_MANY_REDIRECTS;
    reply.unreachable = result == CURLE_COULDNT_RESOLVE_HOST || result == CURLE_COULDNT_RESOLVE_PROXY ||
                        result == CURLE_COULDNT_CONNECT;
  } else if (reply.code == 408 || reply.code == 429 || reply.code >= 500) {
    reply.retriable = true;
  }
  return reply;
}

Reply Connection::get(const std::string& url, std::uint64_t max_bytes) {
  return impl_->run(url, {}, nullptr, max_bytes);
}

Reply Connection::get_range(const std::string& url, std::uint64_t first, std::uint64_t bytes, const Sink& sink) {
  const std::string range = fmt::format("{}-{}", first, first + bytes - 1);
  if (impl_->asked != url) {
    impl_->asked = url;
    impl_->moved.clear();
  }
  if (!impl_->moved.empty()) {
    Reply reply = impl_->run(impl_->moved, range, &sink, 0);
    // Such an address is signed for a while. When that is over, the hub is asked for another.
    if (reply.ok() || !reply.failure.ok() || reply.retriable) return reply;
  }
  impl_->moved.clear();
  Reply reply = impl_->run(url, range, &sink, 0);
  const char* ended_at = nullptr;
  if (reply.ok() && curl_easy_getinfo(impl_->handle, CURLINFO_EFFECTIVE_URL, &ended_at) == CURLE_OK &&
      ended_at != nullptr && url != ended_at)
    impl_->moved = ended_at;
  return reply;
}

Status Reply::status(const std::string& url) const {
  if (unreachable)
    return error(Code::io_error,
                 "cannot reach {} ({}): is this machine online? Check the network, HTTPS_PROXY and "
                 "HF_ENDPOINT",
                 server_of(url), failure.message());
  if (!failure.ok()) return failure.code() == Code::io_error ? failure.with_context(url) : failure;
  // What a hub says of names that it does not know, so as not to tell which private ones it does.
  if (code == 401)
    return error(Code::io_error,
                 "{}: the server refuses (401); there is no such model, or it is gated or private: check the name, or "
                 "accept the terms on its page and set HF_TOKEN",
                 url);
  if (code == 403)
    return error(
        Code::io_error,
        "{}: the server refuses (403); the model is gated or private: accept its terms on its page and set HF_TOKEN",
        url);
  if (code == 404) return error(Code::not_found, "{}: not found on the server; check the name", url);
  if (retriable) return error(Code::io_error, "{}: the server is in trouble ({}); try again later", url, code);
  return error(Code::io_error, "{}: the server answered {}; check the name and HF_ENDPOINT", url, code);
}

std::string percent_encode(const std::string& text, const char* kept) {
  std::string out;
  for (const char c : text) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::strchr(kept, c) != nullptr;
    if (plain && c != '\0') {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string escape_path(const std::string& path) { return percent_encode(path, "-_.~/"); }

}  // namespace millrace::store
