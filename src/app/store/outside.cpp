#include "app/store/outside.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <mutex>

#include "base/bytes.h"
#include "base/os/address.h"
#include "base/os/socket.h"
#include "base/words.h"
#include "modelfile/escape.h"

namespace millrace::store {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMostRedirects = 5;
constexpr milliseconds kConnectTime{5000};
constexpr std::size_t kMostUrlBytes = 4096;

struct Free {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Handle = std::unique_ptr<CURL, Free>;
using List = std::unique_ptr<curl_slist, Free>;

/// An address in its parts, as curl reads it: what is checked is what is asked.
class Url {
 public:
  Url() : url_(curl_url()) {}
  bool parse(const std::string& text) {
    return url_ != nullptr && text.size() <= kMostUrlBytes &&
           curl_url_set(url_.get(), CURLUPART_URL, text.c_str(), CURLU_DISALLOW_USER) == CURLUE_OK;
  }
  /// Empty: it has none.
  std::string part(CURLUPart which, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(url_.get(), which, &text, flags) != CURLUE_OK || text == nullptr) return {};
    std::string out(text);
    curl_free(text);
    return out;
  }
  /// In lower case, without brackets and the dot at its end.
  std::string host() const {
    std::string host = lower(part(CURLUPART_HOST));
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (host.ends_with('.')) host.pop_back();
    return host;
  }
  int port(unsigned flags) const {
    const std::string text = part(CURLUPART_PORT, flags);
    int port = 0;
    std::from_chars(text.data(), text.data() + text.size(), port);
    return port;
  }
  CURLU* get() const { return url_.get(); }

 private:
  std::unique_ptr<CURLU, Free> url_;
};

bool is_allowed(const Url& url, std::span<const OutsideHost> allowed) {
  const std::string host = url.host();
  const int port = url.port(CURLU_DEFAULT_PORT), usual = url.part(CURLUPART_SCHEME) == "https" ? 443 : 80;
  return std::any_of(allowed.begin(), allowed.end(), [&](const OutsideHost& one) {
    return one.host == host && port == (one.port == 0 ? usual : one.port);
  });
}

/// One transfer's state, which curl's callbacks get.
struct Asked {
  const OutsideLimits& limits;
  std::string literal;  // the host, where that is an address itself: it may be any
  std::string body;
  Status failure;
};

extern "C" curl_socket_t open_outside(void* context, curlsocktype purpose, curl_sockaddr* address) {
  auto& asked = *static_cast<Asked*>(context);
  const std::string ip = os::ip_of(&address->addr, address->addrlen);
  if (purpose == CURLSOCKTYPE_IPCXN && !ip.empty() && (os::is_public_ip(ip) || ip == asked.literal))
    return os::open_socket(address->family, address->socktype, address->protocol);
  asked.failure = error(Code::invalid_argument, "its host resolves to an address that is not on the public internet");
  return CURL_SOCKET_BAD;
}

extern "C" std::size_t take_outside(char* data, std::size_t size, std::size_t count, void* context) {
  auto& asked = *static_cast<Asked*>(context);
  const std::string_view bytes(data, size * count);
  if (asked.body.size() + bytes.size() > asked.limits.most_bytes)
    asked.failure = error(Code::invalid_argument, "it is larger than {}, the most that is fetched",
                          format_bytes(asked.limits.most_bytes));
  else if (WorkGrant* const memory = asked.limits.memory; memory != nullptr && !memory->take(2 * bytes.size()))
    asked.failure = error(Code::out_of_budget, "it takes more memory than requests may hold");
  if (!asked.failure.ok()) return 0;
  asked.body += bytes;
  return bytes.size();
}

extern "C" int watch_outside(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const WorkGrant* const memory = static_cast<Asked*>(context)->limits.memory;
  return memory != nullptr && memory->cancelled() ? 1 : 0;
}

void prepare_outside(CURL* handle, const Url& url, curl_slist* headers, milliseconds time, Asked& asked) {
  const auto set = [handle](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
  set(CURLOPT_CURLU, url.get());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_PROXY, "");  // behind one the name would be looked up there
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "millrace");
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::min(time, kConnectTime).count()));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(time.count()));
  set(CURLOPT_BUFFERSIZE, 64L * 1024);
  curl_easy_setopt(handle, CURLOPT_OPENSOCKETFUNCTION, open_outside);
  set(CURLOPT_OPENSOCKETDATA, &asked);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_outside);
  set(CURLOPT_WRITEDATA, &asked);
  set(CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, watch_outside);
  set(CURLOPT_XFERINFODATA, &asked);
}

/// Of what curl says nothing more is told than who did not answer.
Status failure_of(CURLcode result, const std::string& host) {
  if (result == CURLE_ABORTED_BY_CALLBACK) return error(Code::cancelled, "stopped");
  if (result == CURLE_OPERATION_TIMEDOUT) return error(Code::io_error, "{} did not answer in time", host);
  if (result == CURLE_PEER_FAILED_VERIFICATION) return error(Code::io_error, "{}'s certificate is not valid", host);
  return error(Code::io_error, "{} cannot be reached", host);
}

/// The body, or where the address is sent on to.
struct Hop {
  std::string body, next;
};

Expected<Hop> ask_once(const Url& url, milliseconds time, const OutsideLimits& limits) {
  const Handle handle(curl_easy_init());
  const List headers(curl_slist_append(nullptr, "Accept: image/png, image/jpeg, image/webp"));
  if (handle == nullptr || headers == nullptr) return error(Code::internal, "libcurl cannot start");
  const std::string host = modelfile::escape(url.host(), 100);
  Asked asked{limits, os::plain_ip(url.host()), {}, {}};
  prepare_outside(handle.get(), url, headers.get(), time, asked);
  const CURLcode result = curl_easy_perform(handle.get());
  if (!asked.failure.ok()) return asked.failure;
  if (result != CURLE_OK) return failure_of(result, host);
  long code = 0;
  const char* next = nullptr;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &code);
  curl_easy_getinfo(handle.get(), CURLINFO_REDIRECT_URL, &next);
  if (code >= 300 && code < 400 && next != nullptr) return Hop{{}, next};
  if (code == 200) return Hop{std::move(asked.body), {}};
  return error(code == 404 ? Code::not_found : Code::io_error, "{} answered {}", host, code);
}

}  // namespace

Expected<OutsideHost> parse_outside_host(std::string_view text) {
  Url url;
  const bool is_host = !text.empty() && text.find_first_of("/?#@*, \\") == std::string_view::npos &&
                       url.parse(fmt::format("http://{}/", text)) && url.part(CURLUPART_ZONEID).empty();
  const int port = is_host ? url.port(0) : 0;
  if (!is_host || url.host().empty() || (text.ends_with(':')))
    return error(Code::invalid_argument,
                 "'{}' is no host; write a name or an address, with a port or without: "
                 "example.org, 10.0.0.5:8000",
                 modelfile::escape(text, 100));
  return OutsideHost{url.host(), port};
}

Expected<std::string> get_outside(const std::string& text, std::span<const OutsideHost> allowed,
                                  const OutsideLimits& limits) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const Clock::time_point end = Clock::now() + limits.most_time;
  std::string next = text;
  bool was_secure = false;
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    Url url;
    if (!url.parse(next)) return error(Code::invalid_argument, "its address cannot be read");
    const std::string scheme = url.part(CURLUPART_SCHEME);
    if (scheme != "http" && scheme != "https")
      return error(Code::invalid_argument, "its address is of neither http nor https");
    if (was_secure && scheme == "http") return error(Code::invalid_argument, "it was sent on from https to http");
    if (!is_allowed(url, allowed))
      return error(Code::invalid_argument,
                   "pictures of {} are not fetched here; send the picture itself, as "
                   "data:image/png;base64,...",
                   modelfile::escape(url.host(), 100));
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left <= milliseconds(0)) return error(Code::io_error, "{} did not answer in time", url.host());
    MR_ASSIGN_OR_RETURN(Hop came, ask_once(url, left, limits));
    if (came.next.empty()) return std::move(came.body);
    was_secure = was_secure || scheme == "https";
    next = std::move(came.next);
  }
  return error(Code::invalid_argument, "it was sent on more than {} times", kMostRedirects);
}

}  // namespace millrace::store
