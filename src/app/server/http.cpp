#include "app/server/http.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "app/server/accept_encoding.h"
#include "app/server/framing.h"
#include "base/carry_on.h"
#include "base/mutex.h"
#include "base/os/socket.h"
#include "base/spare_memory.h"

namespace millrace::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};  // how often who waits for a client looks whether the server stops

thread_local Connection* current_connection = nullptr;

/// httplib gives each connection that it accepts to a queue: ours leads to process_and_close_socket() at once, which
/// takes no time. `end` when httplib has stopped listening.
class AtOnce final : public httplib::TaskQueue {
 public:
  explicit AtOnce(std::function<void()> end) : end_(std::move(end)) {}
  // Nothing in httplib 0.11 (Debian 12), whether the task was taken in 0.18 (Debian 13).
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));
  Taken enqueue(std::function<void()> task) override {
    task();
    return static_cast<Taken>(true);
  }
  void shutdown() override { end_(); }

 private:
  const std::function<void()> end_;
};

/// Where memory is short, the body is read without: then that fails, and is answered.
void reserve_body(std::string& body, std::uint64_t bytes) {
  try {
    body.reserve(bytes);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

/// A thread for each request, which leaves with it: what a waiting thread's malloc keeps to itself would add up over
/// all threads there ever were at once, and starting one costs less than the first token's thousandth part.
class ConnectionThreads {
 public:
  ConnectionThreads(std::size_t most, std::atomic<std::size_t>& waiting, std::function<void(os::Socket socket)> serve)
      : most_(most), waiting_(waiting), serve_(std::move(serve)) {}

  void add(os::Socket socket) {
    MutexLock lock(mutex_);
    // Without memory for its place the connection ends.
    if (!carry_on("a connection", [&]() MR_REQUIRES(mutex_) { sockets_.push_back(std::move(socket)); })) return;
    waiting_ = sockets_.size();
    if (threads_ >= most_) return;
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::exception&) {
      // No thread can begin now, or has no memory: those there are come to it, or this one does it.
      if (threads_ > 0) return;
      os::Socket first = take();
      lock.unlock();
      serve_(std::move(first));
    }
  }

  void shutdown() {
    MutexLock lock(mutex_);
    gone_.wait(mutex_, [this]() MR_REQUIRES(mutex_) { return threads_ == 0; });
  }

 private:
  void work() {
    mutex_.lock();
    while (!sockets_.empty()) {
      os::Socket socket = take();
      const MutexUnlock unlocked(mutex_);
      serve_(std::move(socket));
    }
    --threads_;
    gone_.notify_all();
    mutex_.unlock();  // and nothing of this object after that
  }

  os::Socket take() MR_REQUIRES(mutex_) {
    os::Socket first = std::move(sockets_.front());
    sockets_.pop_front();
    waiting_ = sockets_.size();
    return first;
  }

  const std::size_t most_;
  std::atomic<std::size_t>& waiting_;
  const std::function<void(os::Socket socket)> serve_;
  Mutex mutex_;
  CondVar gone_;
  std::deque<os::Socket> sockets_ MR_GUARDED_BY(mutex_);
  std::size_t threads_ MR_GUARDED_BY(mutex_) = 0;
};

// --- A connection ---

Connection::Connection(os::Socket socket, const HttpLimits& limits, residency::Budget& memory,
                       std::atomic<std::int64_t>& at_work, const std::atomic<bool>& stopping,
                       const std::atomic<std::size_t>& waiting)
    : socket_(std::move(socket)),
      limits_(limits),
      at_work_(at_work),
      stopping_(stopping),
      waiting_(waiting),
      memory_(memory, [this] { return client_gone(); }) {
  socket_.never_wait();
  current_connection = this;
}

Connection::~Connection() {
  current_connection = nullptr;
  end_work();
  if (socket_.is_open() && close_) carry_on("a connection's end", [this] { linger(); });
}

/// What the client is still sending is thrown away for a moment: closed on it at once, it would lose our answer.
void Connection::linger() {
  socket_.end_sending();
  const auto until = Clock::now() + milliseconds(500);
  std::size_t most = 4u << 20;
  while (most > 0 && Clock::now() < until && socket_.wait_to_receive(milliseconds(100))) {
    const auto received = socket_.receive({buffer_, std::min(sizeof(buffer_), most)});
    if (!received.ok() || *received == 0) return;
    most -= *received;
  }
}

Connection& Connection::current() { return *current_connection; }

bool Connection::client_gone() const { return socket_.peer_is_gone(); }

void Connection::begin_body(bool length_known) {
  in_body_ = true;
  length_known_ = length_known;
  const std::size_t buffered = end_ - begin_;
  bytes_left_ =
      limits_.body_bytes - std::min(limits_.body_bytes, buffered) + limits_.header_bytes;  // chunks' own bytes
  deadline_ = Clock::now() + limits_.body_time;
}

bool Connection::wait_for_request() {
  in_body_ = false;
  bytes_left_ = limits_.header_bytes;
  lines_left_ = limits_.header_lines;
  head_.clear();
  head_status_ = {};
  client_.clear();
  if (begin_ == end_ && !stopping_ && !socket_.wait_to_receive(kLook)) return false;
  header_begin_ = Clock::now();
  deadline_ = header_begin_ + limits_.header_time;
  record_ = new_record();
  gone_ = stopping_ || (begin_ == end_ && !fill());
  return !gone_;
}

os::Socket Connection::release() {
  if (gone_ || close_ || begin_ < end_) return {};
  return std::move(socket_);
}

ssize_t Connection::read_body(char* data, std::size_t size) {
  bytes_left_ = std::max(bytes_left_, sizeof(buffer_));
  deadline_ = Clock::now() + limits_.body_time;
  if (begin_ == end_ && !fill()) return -1;
  const std::size_t count = std::min(size, end_ - begin_);
  std::memcpy(data, buffer_ + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

bool Connection::fill() {
  for (;;) {
    if (bytes_left_ == 0) {
      header_too_large_ = !in_body_;
      return false;
    }
    const auto received = socket_.receive({buffer_, std::min(sizeof(buffer_), bytes_left_)});
    if (received.ok() && *received > 0) {
      begin_ = 0;
      end_ = *received;
      bytes_left_ -= end_;
      return true;
    }
    if (received.ok() || received.status().code() != Code::unavailable) return false;
    const auto now = Clock::now();
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - now);
    const bool in_the_way = !in_body_ && waiting_ > 0 && now - header_begin_ > limits_.crowded_time;
    if (left.count() <= 0 || stopping_ || in_the_way) return false;
    socket_.wait_to_receive(std::min(left, kLook));
  }
}

bool Connection::is_readable() const { return begin_ < end_ || socket_.wait_to_receive(milliseconds(0)); }

bool Connection::is_writable() const { return !client_gone(); }

ssize_t Connection::read(char* data, std::size_t size) {
  if (begin_ == end_ && !fill()) return -1;
  const std::size_t count = std::min(size, end_ - begin_);
  if (in_body_ && !memory_.take_body(count, length_known_)) return -1;
  std::memcpy(data, buffer_ + begin_, count);
  if (!in_body_) {
    const auto lines = static_cast<std::size_t>(std::count(data, data + count, '\n'));
    header_too_large_ = lines > lines_left_;
    if (header_too_large_) return -1;
    lines_left_ -= lines;
    head_.append(data, count);
  }
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, std::size_t size) {
  std::string_view rest(data, size);
  while (!rest.empty()) {
    const auto sent = socket_.send(rest);
    if (!sent.ok() && sent.status().code() != Code::unavailable) return -1;
    rest.remove_prefix(sent.ok() ? *sent : 0);
    if ((!sent.ok() || *sent == 0) && !socket_.wait_to_send(limits_.write_time)) return -1;
  }
  return static_cast<ssize_t>(size);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  os::Endpoint peer = socket_.peer();
  ip = std::move(peer.ip);
  port = peer.port;
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  os::Endpoint own = socket_.own();
  ip = std::move(own.ip);
  port = own.port;
}

// --- The server ---

HttpServer::HttpServer(HttpLimits limits, residency::Budget& memory) : limits_(limits), memory_(memory) {
  threads_ = std::make_unique<ConnectionThreads>(limits_.max_connections, waiting_, [this](os::Socket socket) {
    // Where not even an answer had room, this connection has ended, and the others go on.
    if (!carry_on("a connection", [&] { serve(std::move(socket)); })) hold_back_memory();
  });
  lobby_ = std::make_unique<Lobby>(limits_.idle_time, limits_.max_idle, stopping_,
                                   [this](os::Socket socket) { threads_->add(std::move(socket)); });
  new_task_queue = [this] {
    return new AtOnce([this] {
      lobby_->close();
      threads_->shutdown();
      lobby_->close();  // what came back from requests that were answered meanwhile
    });
  };
  set_payload_max_length(limits_.body_bytes);
  // Connections keep their own time; these numbers are what clients are told.
  set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(limits_.idle_time).count());
  set_keep_alive_max_count(100'000);
  // A second server on the same port would take half of the first one's clients.
  set_socket_options([](socket_t listening) { os::reserve_port(listening); });
}

HttpServer::~HttpServer() = default;

void HttpServer::Get(const std::string& pattern, Handler handler) {
  routes_.emplace_back("GET, HEAD", std::regex(pattern));
  httplib::Server::Get(pattern, std::move(handler));
}

void HttpServer::Post(const std::string& pattern, Handler handler) {
  routes_.emplace_back("POST", std::regex(pattern));
  httplib::Server::Post(pattern, std::move(handler));
}

void HttpServer::PostStream(const std::string& pattern, HandlerWithContentReader handler) {
  routes_.emplace_back("POST", std::regex(pattern));
  httplib::Server::Post(pattern, std::move(handler));
}

void HttpServer::Delete(const std::string& pattern, Handler handler) {
  routes_.emplace_back("DELETE", std::regex(pattern));
  httplib::Server::Delete(pattern, std::move(handler));
}

std::string HttpServer::methods_of(const std::string& path) const {
  std::string methods;
  for (const auto& [names, pattern] : routes_)
    if (path.size() <= kLongestPath && std::regex_match(path, pattern))
      methods += (methods.empty() ? "" : ", ") + names;
  return methods;
}

void HttpServer::widen_backlog() { os::set_backlog(svr_sock_, 1024); }

bool HttpServer::process_and_close_socket(socket_t sock) {
  lobby_->enter(os::Socket(sock));
  return true;
}

void HttpServer::serve(os::Socket socket) {
  Connection connection(std::move(socket), limits_, memory_, at_work_, stopping_, waiting_);
  // What we have is small and made anew: thousands of ranges of one file would be thousands of times its size.
  // A body whose length is known gets its room at once, untouched: a text that grows is copied again and again.
  const auto set_up = [&](httplib::Request& request) {
    connection.set_head_status(read_headers(connection.take_head(), request.headers));
    request.ranges.clear();
    request.headers.erase("Range");
    keep_accepted_codings(request);
    // curl calls every body a form, and httplib reads forms otherwise: bodies are read alike, whatever they are called.
    if (!request.is_multipart_form_data()) request.headers.erase("Content-Type");
    // Clients send none with it; httplib would read until the connection ends.
    if (request.method == "DELETE" && !request.has_header("Content-Length") && !request.has_header("Transfer-Encoding"))
      request.headers.emplace("Content-Length", "0");
    const auto framing = read_framing(request);
    if (!framing.ok() || !framing->expects_body || is_upload(request)) return;
    const std::uint64_t length = framing->content_length.value_or(0);
    if (length <= std::min<std::uint64_t>(limits_.body_bytes, memory_.cap_bytes())) reserve_body(request.body, length);
  };
  // httplib 0.11 asks the stream for its addresses, 0.18 is told them.
  const auto process = [&](auto& server, bool& closed) {
    if constexpr (requires { server.process_request(connection, false, closed, set_up); }) {
      return server.process_request(connection, false, closed, set_up);
    } else {
      std::string remote, local;
      int remote_port = 0, local_port = 0;
      connection.get_remote_ip_and_port(remote, remote_port);
      connection.get_local_ip_and_port(local, local_port);
      return server.process_request(connection, remote, remote_port, local, local_port, false, closed, set_up);
    }
  };
  while (connection.wait_for_request()) {
    bool closed = false;
    const bool goes_on = process(*this, closed) && !closed && !connection.closing();
    connection.memory().clear();
    connection.end_work();
    if (!goes_on) return;
  }
  if (os::Socket idle = connection.release(); idle.is_open()) lobby_->enter(std::move(idle));
}

}  // namespace millrace::server
