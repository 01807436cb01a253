// The HTTP server below the APIs: cpp-httplib's routing and parsing on connections of our own, which have deadlines for
// a request's header and body, limits on their sizes, and detect without a write that the client has disconnected.
//
// A request occupies a thread while it is read and answered; beyond `max_connections` requests, others wait. A
// connection without a request has no thread: one thread waits for the first byte of all of them. Thread-safety:
// handlers run on the connections' threads, several at once. Any thread may call stop().
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "app/server/lobby.h"
#include "app/server/request_log.h"
#include "app/server/request_memory.h"
#include "base/os/socket.h"

namespace millrace::server {

struct HttpLimits {
  std::size_t body_bytes = 64u << 20;
  std::size_t header_bytes = 32u << 10;
  std::size_t header_lines = 100;                 // parsed, a line takes a hundred bytes and more, however short it is
  std::chrono::milliseconds header_time{10'000};  // from its first byte
  std::chrono::milliseconds body_time{120'000};
  std::chrono::milliseconds idle_time{30'000};    // between requests
  std::chrono::milliseconds write_time{30'000};   // without the client taking a byte
  std::chrono::milliseconds crowded_time{1'000};  // for a header, while others wait for a thread
  std::size_t max_connections = 512;              // with a request
  std::size_t max_idle = 4096;                    // without one; past it the oldest is closed
};

/// One client's connection. The thread that handles its request may query it.
class Connection final : public httplib::Stream {
 public:
  /// at_work: counts the requests of all connections that begin_work() was called for. Once `stopping` is set, nothing
  /// more of a request is waited for. `waiting`: tasks of others for which there is no thread.
  Connection(os::Socket socket, const HttpLimits& limits, residency::Budget& memory, std::atomic<std::int64_t>& at_work,
             const std::atomic<bool>& stopping, const std::atomic<std::size_t>& waiting);
  ~Connection() override;

  /// The connection of the request that this thread handles. REQUIRES: a handler's thread.
  static Connection& current();
  /// True once the client has closed its side, or the connection broke.
  bool client_gone() const;
  /// No further request on this connection: its body was not read.
  void close_after_response() { close_ = true; }
  bool closing() const { return close_; }
  /// Bounds on the header ended its reading.
  bool header_too_large() const { return header_too_large_; }
  /// The request's line and headers as they came. REQUIRES: before begin_body().
  std::string take_head() { return std::exchange(head_, {}); }
  /// What was wrong with them.
  const Status& head_status() const { return head_status_; }
  void set_head_status(Status status) { head_status_ = std::move(status); }
  /// The client that the request counts for when clients take turns: the accepted key, otherwise the address.
  const std::string& client() const { return client_; }
  void set_client(std::string client) { client_ = std::move(client); }
  /// The header has been read; from here on the limits of the body apply.
  void begin_body(bool length_known);
  /// The request is one that a server which drains ends first; end_work() when it is answered.
  void begin_work() { at_work_ += std::exchange(works_, true) ? 0 : 1; }
  void end_work() { at_work_ -= std::exchange(works_, false) ? 1 : 0; }
  /// What this connection's request holds.
  RequestMemory& memory() { return memory_; }
  /// What becomes known of it. REQUIRES: wait_for_request() said that there is one.
  RequestRecord& record() { return record_; }

  /// Waits a moment for the first byte of a request; false: none came, or the server stops.
  bool wait_for_request();
  /// Of a connection that may have further requests and has none now: the socket, which is no longer this one's. Else
  /// one that is not open.
  os::Socket release();
  /// Bytes of the request's body straight from the client, for bodies that are kept elsewhere than in memory.
  /// REQUIRES: begin_body(); the caller knows the body's length. -1: the connection broke, or it is late.
  ssize_t read_body(char* data, std::size_t size);

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  using httplib::Stream::write;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  os::SocketHandle socket() const override { return socket_.handle(); }

 private:
  using Clock = std::chrono::steady_clock;
  bool fill();
  void linger();

  os::Socket socket_;
  const HttpLimits& limits_;
  std::atomic<std::int64_t>& at_work_;
  const std::atomic<bool>& stopping_;
  const std::atomic<std::size_t>& waiting_;
  std::string head_, client_;
  Status head_status_;
  Clock::time_point header_begin_;
  bool gone_ = false;  // the client closed its side between two requests
  bool close_ = false, in_body_ = false, length_known_ = false, works_ = false, header_too_large_ = false;
  RequestMemory memory_;
  RequestRecord record_;
  std::size_t bytes_left_ = 0;  // of the part that is read now
  std::size_t lines_left_ = 0;  // of the header
  Clock::time_point deadline_;
  std::size_t begin_ = 0, end_ = 0;
  char buffer_[16384];
};

class ConnectionThreads;

class HttpServer final : public httplib::Server {
 public:
  /// `memory`: what all requests may hold; outlives this.
  HttpServer(HttpLimits limits, residency::Budget& memory);
  ~HttpServer() override;
  /// New requests are refused by closing their connections once they are idle; then stop() ends the listening.
  void stop_serving() { stopping_ = true; }
  /// After binding: httplib's five waiting connections are too few for a burst.
  void widen_backlog();
  const HttpLimits& limits() const { return limits_; }
  /// The number of requests between Connection::begin_work() and end_work(). Any thread.
  std::int64_t at_work() const { return at_work_; }

  /// Bytes of a path that routes are looked up for: std::regex goes down a thread's stack for each of them.
  static constexpr std::size_t kLongestPath = 256;

  // Routes, as httplib's; what methods a path has is remembered. REQUIRES: not listening yet.
  void Get(const std::string& pattern, Handler handler);  // answers HEAD, too
  void Post(const std::string& pattern, Handler handler);
  /// A POST whose body the handler reads itself (body_stream.h).
  void PostStream(const std::string& pattern, HandlerWithContentReader handler);
  void Delete(const std::string& pattern, Handler handler);
  /// "GET, POST"; empty: there is no such path.
  std::string methods_of(const std::string& path) const;

 private:
  bool process_and_close_socket(socket_t sock) override;
  void serve(os::Socket socket);

  const HttpLimits limits_;
  residency::Budget& memory_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> at_work_{0};
  std::atomic<std::size_t> waiting_{0};
  std::unique_ptr<ConnectionThreads> threads_;
  std::unique_ptr<Lobby> lobby_;
  std::vector<std::pair<std::string, std::regex>> routes_;  // methods, paths
};

}  // namespace millrace::server
