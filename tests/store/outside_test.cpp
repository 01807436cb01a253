#include "app/store/outside.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::store {
namespace {

TEST(Outside, HostsAreNamesAndAddressesWithPorts) {
  const auto read = [](std::string_view text) {
    const auto host = parse_outside_host(text);
    return host.ok() ? fmt::format("{} {}", host->host, host->port) : "none";
  };
  EXPECT_EQ(read("Example.org"), "example.org 0");
  EXPECT_EQ(read("example.org.:8080"), "example.org 8080");
  EXPECT_EQ(read("127.0.0.1:1"), "127.0.0.1 1");
  EXPECT_EQ(read("[::1]:65535"), "::1 65535");
  for (const char* bad :
       {"", ":80", "a/b", "http://a", "a@b", "a:b", "a:70000", "a:", "a b", "*", "a?b", "[fe80::1%25eth0]"})
    EXPECT_EQ(read(bad), "none") << bad;
}

TEST(Outside, NothingIsAskedThatIsNotAllowed) {
  const std::vector<OutsideHost> allowed = {{"pictures.invalid", 0}, {"localhost", 1}};
  const OutsideLimits limits{1000, std::chrono::milliseconds(2000), nullptr};
  const auto code = [&](const std::string& url) { return get_outside(url, allowed, limits).status().code(); };
  for (const char* url :
       {"", "pictures.invalid", "file:///etc/passwd", "ftp://pictures.invalid/a", "gopher://pictures.invalid/",
        "http://other.invalid/a", "http://pictures.invalid:8080/", "http://user@pictures.invalid/",
        "http://pictures.invalid@other.invalid/", "http://other.invalid#@pictures.invalid/",
        "http://other.invalid\\@pictures.invalid/", "http://127.0.0.1/", "http://[::1]/", "http://localhost/",
        "http://a.pictures.invalid/", "http://pictures.invalid.other.invalid/", "data:image/png;base64,AAAA"})
    EXPECT_EQ(code(url), Code::invalid_argument) << url;
  // By name it is allowed, and leads to this machine.
  const auto here = get_outside("http://localhost:1/", allowed, limits);
  EXPECT_EQ(here.status().code(), Code::invalid_argument);
  EXPECT_NE(here.status().message().find("not on the public internet"), std::string::npos) << here.status().message();
  EXPECT_EQ(code(std::string("http://pictures.invalid/") + std::string(5000, 'a')), Code::invalid_argument);
}

}  // namespace
}  // namespace millrace::store
