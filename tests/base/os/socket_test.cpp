#include "base/os/socket.h"

#include <gtest/gtest.h>

#include <array>

#include "base/os/address.h"
#include "base/os/inet.h"

namespace millrace::os {
namespace {

using std::chrono::milliseconds;

/// Both ends of a connection over this machine's own network.
std::pair<Socket, Socket> connected() {
  const Socket listening(open_socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  reserve_port(listening.handle());
  EXPECT_EQ(::bind(listening.handle(), reinterpret_cast<sockaddr*>(&address), length), 0);
  set_backlog(listening.handle(), 16);
  EXPECT_EQ(::getsockname(listening.handle(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  Socket client(open_socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(client.handle(), reinterpret_cast<sockaddr*>(&address), length), 0);
  Socket server(::accept(listening.handle(), nullptr, nullptr));
  client.never_wait();
  server.never_wait();
  return {std::move(client), std::move(server)};
}

TEST(SocketTest, SendsAndReceivesWithoutWaiting) {
  const auto [client, server] = connected();
  std::array<char, 16> bytes{};
  EXPECT_EQ(server.receive(bytes).status().code(), Code::unavailable);
  EXPECT_FALSE(server.wait_to_receive(milliseconds(1)));
  EXPECT_TRUE(client.wait_to_send(milliseconds(0)));
  EXPECT_EQ(*client.send("hello"), 5u);
  EXPECT_TRUE(server.wait_to_receive(milliseconds(1000)));
  EXPECT_EQ(*server.receive(bytes), 5u);
  EXPECT_EQ(std::string_view(bytes.data(), 5), "hello");
  EXPECT_EQ(client.own().port, server.peer().port);
  EXPECT_EQ(server.peer().ip, "127.0.0.1");
}

TEST(SocketTest, SendsUntilThereIsNoRoom) {
  const auto [client, server] = connected();
  const std::string much(1 << 20, 'x');
  auto sent = client.send(much);
  for (int i = 0; sent.ok() && i < 1000; ++i) sent = client.send(much);
  EXPECT_EQ(sent.status().code(), Code::unavailable);
  EXPECT_FALSE(client.wait_to_send(milliseconds(1)));
}

TEST(SocketTest, NoticesThatTheOtherSideIsGone) {
  auto [client, server] = connected();
  EXPECT_FALSE(server.peer_is_gone());
  client.end_sending();
  std::array<char, 4> bytes{};
  EXPECT_TRUE(server.wait_to_receive(milliseconds(1000)));
  EXPECT_EQ(*server.receive(bytes), 0u);
  EXPECT_TRUE(server.peer_is_gone());
  EXPECT_TRUE(server.send("still read").ok());
  client = Socket();
}

TEST(SocketTest, AWatchNamesASocketOnce) {
  const auto [client, server] = connected();
  const auto [quiet, other] = connected();
  const SocketWatch watch;
  ASSERT_TRUE(watch.add(server.handle()));
  ASSERT_TRUE(watch.add(other.handle()));
  EXPECT_TRUE(watch.wait(milliseconds(1)).empty());
  ASSERT_TRUE(client.send("x").ok());
  EXPECT_EQ(watch.wait(milliseconds(1000)), std::vector{server.handle()});
  EXPECT_TRUE(watch.wait(milliseconds(1)).empty());
  watch.remove(server.handle());
  ASSERT_TRUE(watch.add(server.handle()));
  EXPECT_EQ(watch.wait(milliseconds(1000)), std::vector{server.handle()});
  EXPECT_FALSE(watch.add(kNoSocket));
}

TEST(Address, KnowsIpv6) {
  for (const char* const text : {"::1", "::", "fe80::1%eth0", "2001:db8::8a2e:370:7334"}) EXPECT_TRUE(is_ipv6(text));
  for (const char* const text : {"", "127.0.0.1", "localhost", "::1]", "1:2", "%eth0"}) EXPECT_FALSE(is_ipv6(text));
}

}  // namespace
}  // namespace millrace::os
