#include "base/os/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/os/processors.h"
#include "base/os/signals.h"

namespace millrace::os {
namespace {

using testing::ExitedWithCode;

TEST(Process, KnowsHowItWasStarted) {
  const auto words = command_line();
  ASSERT_TRUE(words.ok()) << words.status().message();
  EXPECT_TRUE(std::filesystem::exists((*words)[0])) << (*words)[0];
  EXPECT_GE(online_processors(), static_cast<int>(allowed_processors().size()));
}

TEST(Process, StopsOnlyWhatRuns) {
  EXPECT_TRUE(can_stop(process_id()));
  EXPECT_FALSE(can_stop(0));   // its own group
  EXPECT_FALSE(can_stop(1));   // the first process
  EXPECT_FALSE(can_stop(-1));  // all of them
  EXPECT_FALSE(stop_process(1 << 30).ok());
}

TEST(Process, AnotherProgramTakesItsPlace) {
  EXPECT_EXIT(end_process(replace_process({"sh", "-c", "exit 7"}).ok() ? 1 : 2), ExitedWithCode(7), "");
  EXPECT_EQ(replace_process({"/no/such/program"}).code(), Code::not_found);
}

class DaemonTest : public testing::Test {
 protected:
  ~DaemonTest() override { std::filesystem::remove(log_); }
  std::string logged() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static int print(const std::string& report) {
    std::fputs(report.c_str(), stderr);
    return report.empty() ? 3 : 4;
  }
  const std::string log_ =
      (std::filesystem::temp_directory_path() / fmt::format("millrace-daemon-{}.log", process_id())).string();
};

TEST_F(DaemonTest, ReportsToTheFirstProcessAndWritesToItsLog) {
  const auto start = [&] {
    auto daemon = Daemon::start(log_, print);
    std::fputs("to the log\n", stderr);
    if (std::getchar() != EOF) end_process(1);  // its input is empty
    daemon->report("it listens");
    end_process(0);
  };
  EXPECT_EXIT(start(), ExitedWithCode(4), "it listens");
  EXPECT_EQ(logged(), "to the log\n");
}

TEST_F(DaemonTest, TheFirstProcessNoticesItsEnd) {
  const auto start = [&] {
    const auto daemon = Daemon::start(log_, print);
    end_process(0);
  };
  EXPECT_EXIT(start(), ExitedWithCode(3), "");
  EXPECT_EQ(Daemon::start("/no/such/folder/log", print).status().code(), Code::not_found);
}

TEST(Signals, ASecondStopRequestEndsTheProcess) {
  static std::atomic<bool> flag{false};
  const auto ask_twice = [] {
    flag_stop_requests(flag, 130, true);
    ::raise(SIGTERM);
    if (!flag.exchange(false)) end_process(1);
    ::raise(SIGINT);
    ::raise(SIGINT);
    end_process(2);
  };
  EXPECT_EXIT(ask_twice(), ExitedWithCode(130), "");
}

TEST(Signals, AProcessWaitsForAStopRequestOrMakesIt) {
  const auto stop = [] {
    ignore_stop_requests();
    ::raise(SIGINT);
    ::raise(SIGTERM);
    catch_stop_requests();
    request_stop();
    wait_for_stop_request();
    catch_stop_requests();
    if (!stop_process(process_id()).ok()) end_process(1);
    wait_for_stop_request();
    ::raise(SIGTERM);  // the second one
    end_process(2);
  };
  EXPECT_EXIT(stop(), testing::KilledBySignal(SIGTERM), "");
}

TEST(Signals, AWriteThatNobodyReadsIsAnError) {
  const auto write_into_nothing = [] {
    let_failed_writes_return();
    int ends[2];
    if (::pipe(ends) != 0) end_process(1);
    ::close(ends[0]);
    end_process(::write(ends[1], "x", 1) < 0 ? 5 : 2);
  };
  EXPECT_EXIT(write_into_nothing(), ExitedWithCode(5), "");
}

}  // namespace
}  // namespace millrace::os
