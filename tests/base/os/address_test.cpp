#include "base/os/address.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/os/inet.h"

namespace millrace::os {
namespace {

TEST(Address, IsPublicOrNot) {
  for (const char* ip : {"1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "192.0.1.1",
                         "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2001:200::1",
                         "2001:4860:4860::8888", "64:ff9b::8.8.8.8"})
    EXPECT_TRUE(is_public_ip(ip)) << ip;
  for (const char* ip : {"",
                         "x",
                         "localhost",
                         "0.0.0.0",
                         "0.1.2.3",
                         "10.0.0.1",
                         "100.64.0.1",
                         "100.127.255.255",
                         "127.0.0.1",
                         "127.1.2.3",
                         "169.254.169.254",
                         "172.16.0.1",
                         "172.31.255.255",
                         "192.0.0.8",
                         "192.0.2.1",
                         "192.88.99.1",
                         "192.168.0.1",
                         "198.18.0.1",
                         "198.19.255.255",
                         "198.51.100.1",
                         "203.0.113.1",
                         "224.0.0.1",
                         "239.1.1.1",
                         "240.0.0.1",
                         "255.255.255.255",
                         "::",
                         "::1",
                         "::7f00:1",
                         "::ffff:127.0.0.1",
                         "::ffff:8.8.8.8",
                         "fc00::1",
                         "fd12::1",
                         "fe80::1",
                         "fec0::1",
                         "ff02::1",
                         "2001::1",
                         "2001:db8::1",
                         "2002:7f00:1::",
                         "3fff::1",
                         "4000::1",
                         "64:ff9b::127.0.0.1",
                         "64:ff9b::10.0.0.1",
                         "64:ff9b:1::8.8.8.8",
                         "100::1",
                         "127.1",
                         "2130706433",
                         "0x7f.0.0.1",
                         "127.0.0.1 "})
    EXPECT_FALSE(is_public_ip(ip)) << ip;
}

TEST(Address, IsSpelledInOneWay) {
  EXPECT_EQ(plain_ip("0:0::1"), "::1");
  EXPECT_EQ(plain_ip("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(plain_ip("::FFFF:1.2.3.4"), "::ffff:1.2.3.4");
  for (const char* text : {"", "127.1", "localhost", "[::1]", "fe80::1%eth0", "1.2.3.4:80"})
    EXPECT_EQ(plain_ip(text), "") << text;
}

TEST(Address, IsReadFromTheSystems) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(0x0a000001);
  EXPECT_EQ(ip_of(&in, sizeof(in)), "10.0.0.1");
  EXPECT_EQ(ip_of(&in, 3), "");
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_addr = in6addr_loopback;
  EXPECT_EQ(ip_of(&in6, sizeof(in6)), "::1");
  EXPECT_EQ(ip_of(&in6, sizeof(in)), "");
}

}  // namespace
}  // namespace millrace::os
