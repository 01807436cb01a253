#include "base/os/process.h"

#include <gtest/gtest.h>
#include <windows.h>

#include <array>
#include <filesystem>
#include <thread>

#include "base/os/library.h"
#include "base/os/processors.h"
#include "base/os/signals.h"
#include "base/os/terminal.h"

namespace millrace::os {
namespace {

using std::chrono::milliseconds;

TEST(Process, KnowsHowItWasStarted) {
  const auto words = command_line();
  ASSERT_TRUE(words.ok()) << words.status().message();
  EXPECT_TRUE(std::filesystem::exists((*words)[0])) << (*words)[0];
  EXPECT_GE(online_processors(), static_cast<int>(allowed_processors().size()));
  EXPECT_NE(user_id(), 0);
}

TEST(Process, StopsOnlyWhatRuns) {
  EXPECT_TRUE(can_stop(process_id()));
  EXPECT_FALSE(can_stop(0));
  EXPECT_FALSE(can_stop(4));
  EXPECT_FALSE(can_stop(-1));
  EXPECT_FALSE(stop_process(1 << 30).ok());
  EXPECT_EQ(replace_process({"C:/no/such/program.exe"}).code(), Code::not_found);
}

TEST(Process, TakesWordsAsTheyAreWritten) {
  const std::vector<std::string> words = {"a b", "quote\"d", "back\\", "end \\\"", "", "\xe6\xb0\xb4"};
  std::vector<std::string> all = {command_line().value()[0], "--gtest_filter=Child.ComparesItsWords"};
  all.insert(all.end(), words.begin(), words.end());
  SetEnvironmentVariableA("MILLRACE_CHILD", "words");
  EXPECT_EXIT(end_process(replace_process(all).ok() ? 1 : 2), testing::ExitedWithCode(0), "");
  SetEnvironmentVariableA("MILLRACE_CHILD", nullptr);
}

// What the test above starts.
TEST(Child, ComparesItsWords) {
  if (GetEnvironmentVariableA("MILLRACE_CHILD", nullptr, 0) == 0) GTEST_SKIP() << "only where another test starts it";
  const auto words = command_line().value();
  ASSERT_EQ(words.size(), 8u);
  EXPECT_EQ((std::vector(words.begin() + 2, words.end())),
            (std::vector<std::string>{"a b", "quote\"d", "back\\", "end \\\"", "", "\xe6\xb0\xb4"}));
}

TEST(Signals, AProcessWaitsForAStopRequestOrMakesIt) {
  catch_stop_requests();
  request_stop();
  wait_for_stop_request();
  catch_stop_requests();
  ASSERT_TRUE(stop_process(process_id()).ok());  // as another process would
  wait_for_stop_request();
  static std::atomic<bool> flag{false};
  flag_stop_requests(flag, 130, true);
  ASSERT_TRUE(stop_process(process_id()).ok());
  for (int i = 0; i < 200 && !flag; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(flag);
  ignore_stop_requests();
}

TEST(Library, IsFoundByName) {
  const auto library = Library::load("kernel32.dll");
  ASSERT_TRUE(library.ok()) << library.status().message();
  DWORD (*call)() = nullptr;
  library.value().find("GetCurrentProcessId", call);
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call(), process_id());
  EXPECT_EQ(Library::load("no-such.dll").status().code(), Code::unsupported);
}

/// A pipe in the place of a standard stream.
class PipeAs {
 public:
  explicit PipeAs(DWORD stream) : stream_(stream), before_(GetStdHandle(stream)) {
    CreatePipe(&reading, &writing, nullptr, 0);
    SetStdHandle(stream, stream == STD_INPUT_HANDLE ? reading : writing);
  }
  ~PipeAs() {
    SetStdHandle(stream_, before_);
    for (HANDLE const end : {reading, writing})
      if (end != nullptr) CloseHandle(end);
  }
  void close(HANDLE& end) { CloseHandle(std::exchange(end, nullptr)); }
  HANDLE reading = nullptr, writing = nullptr;

 private:
  DWORD stream_;
  HANDLE before_;
};

TEST(Terminal, TellsWhatTheInputIs) {
  PipeAs input(STD_INPUT_HANDLE);
  EXPECT_TRUE(input_is_fed());
  EXPECT_FALSE(is_terminal(Stream::input));
  EXPECT_FALSE(input_is_ready(milliseconds(1)));
  DWORD written = 0;
  ASSERT_TRUE(WriteFile(input.writing, "ab", 2, &written, nullptr));
  EXPECT_TRUE(input_is_ready(milliseconds(1000)));
  std::array<char, 8> bytes{};
  EXPECT_EQ(*read_input({bytes.data(), 1}), 1u);
  EXPECT_EQ(*read_input(bytes), 1u);
  input.close(input.writing);
  EXPECT_TRUE(input_is_ready(milliseconds(1000)));
  EXPECT_EQ(*read_input(bytes), 0u);
}

TEST(Terminal, NoticesThatNobodyReadsTheOutput) {
  PipeAs output(STD_OUTPUT_HANDLE);
  const bool with_reader = output_has_no_reader();
  output.close(output.reading);
  const bool without = output_has_no_reader();
  EXPECT_FALSE(with_reader);
  EXPECT_TRUE(without);
}

}  // namespace
}  // namespace millrace::os
