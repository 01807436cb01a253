#include "base/trace.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace millrace {
namespace {

TEST(Trace, WritesSpansByRow) {
  Trace trace;
  trace.add("kernel", "matvec", 5'000, 7'500);
  trace.add("CPU", "pass", 4'000, 9'000);
  { const TraceZone nothing(nullptr, "unseen"); }
  const auto path = std::filesystem::temp_directory_path() / "millrace-trace-test.json";
  ASSERT_TRUE(trace.write(path.string()).ok());
  std::string text;
  if (std::ifstream file(path); file) text.assign(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  EXPECT_NE(text.find(R"("name": "matvec", "ts": 1.000, "dur": 2.500)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("name": "pass", "ts": 0.000, "dur": 5.000)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("args": {"name": "CPU"})"), std::string::npos) << text;
  EXPECT_EQ(text.find("unseen"), std::string::npos);
}

TEST(Trace, SaysWhereItCannotWrite) { EXPECT_EQ(Trace().write("/nowhere/trace.json").code(), Code::io_error); }

}  // namespace
}  // namespace millrace
