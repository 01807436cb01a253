#include "app/server/accept_encoding.h"

#include <gtest/gtest.h>

namespace millrace::server {
namespace {

TEST(AcceptEncoding, TakesWhatIsNamedWithAWeight) {
  for (const char* words : {"gzip", "GZip", " gzip ", "deflate, gzip", "gzip;q=1", "gzip ; Q=0.001", "br,\tgzip;q=0.5",
                            "*", "*;q=0.1", "identity;q=0, gzip", "br;q=0, *", "*;q=0, gzip", "gzip;level=0"})
    EXPECT_TRUE(accepts_coding(words, "gzip")) << words;
}

TEST(AcceptEncoding, RefusesWhatHasNoneOrIsNotNamed) {
  for (const char* words :
       {"", " ", ",", "identity", "br", "gzip;q=0", "GZIP;Q=0", "gzip; q = 0", "gzip;q=0.000", "*;q=0", "gzip;q=0, *",
        "br, *;q=0", "gzip;q=", "gzip;q=x", "gzip;q=-1", "x-gzip", "gzipped", "gzip;q=0, gzip"})
    EXPECT_FALSE(accepts_coding(words, "gzip")) << words;
}

TEST(AcceptEncoding, WhatIsRefusedLeavesTheRequest) {
  const auto left = [](std::initializer_list<const char*> lines) {
    httplib::Request request;
    for (const char* line : lines) request.headers.emplace("accept-encoding", line);
    keep_accepted_codings(request);
    return request.get_header_value("Accept-Encoding");
  };
  EXPECT_EQ(left({}), "");
  EXPECT_EQ(left({"gzip;q=0, br"}), "br");
  EXPECT_EQ(left({"deflate", "gzip"}), "gzip");
  EXPECT_EQ(left({"*"}), "br, gzip");
  EXPECT_EQ(left({"br;q=0,gzip;q=0"}), "");
}

}  // namespace
}  // namespace millrace::server
