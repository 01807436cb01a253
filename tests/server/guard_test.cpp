#include "app/server/guard.h"

#include <gtest/gtest.h>

namespace millrace::server {
namespace {

TEST(Guard, KnowsThisMachinesNames) {
  ServerOptions options;
  options.access.hosts = {"box.example"};
  const Guard guard(options);
  for (const char* host :
       {"", "localhost", "Localhost:11434", "127.0.0.1", "192.168.1.2:80", "[::1]", "[::1]:80", "::1",
        "[fe80::1%25eth0]:80", "box.example", "box.example.:80", "a.localhost", "host.docker.internal"})
    EXPECT_TRUE(guard.host_allowed(host)) << host;
  for (const char* host : {"evil.com", "evil.com:80", "evil.com:1:2", ":80", ":", "[evil.com]", "[::1", "[::1]x", "[]",
                           "localhost:x", "localhost:1:2", "evil.com:::1", "a::b::c", "b.local", "metadata.internal"})
    EXPECT_FALSE(guard.host_allowed(host)) << host;
}

TEST(Guard, TakesAKeyInEitherHeader) {
  ServerOptions options;
  options.access.api_keys = {"first", "second"};
  const Guard guard(options);
  for (const char* given : {"Bearer first", "bearer second", "BEARER first"})
    EXPECT_TRUE(guard.key_accepted(given, ""));
  EXPECT_TRUE(guard.key_accepted("", "second"));
  for (const char* given : {"Bearer", "Bearer ", "Bearer third", "Basic first", "first", "Bearerfirst"})
    EXPECT_FALSE(guard.key_accepted(given, "")) << given;
}

TEST(Guard, DistinguishesClientsByTheKeyThatWasAccepted) {
  ServerOptions options;
  options.access.api_keys = {"first", "second"};
  const Guard guard(options);
  EXPECT_EQ(guard.key_of("Bearer second", ""), 1);
  EXPECT_EQ(guard.key_of("", "second"), 1);
  EXPECT_EQ(guard.key_of("Bearer first", "second"), 0);
  EXPECT_EQ(guard.key_of("Bearer invented", ""), -1);
  EXPECT_EQ(Guard(ServerOptions()).key_of("Bearer invented", ""), -1);
}

}  // namespace
}  // namespace millrace::server
