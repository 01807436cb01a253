#include "storage/fault_injection.h"

#include <chrono>

#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

using Clock = std::chrono::steady_clock;

class FaultTest : public testing::Test {
 protected:
  void open(const std::vector<std::string>& texts) {
    std::vector<Fault> faults;
    for (const std::string& text : texts) faults.push_back(*parse_fault(text));
    backend_ = inject_faults(open_or_none({file_.path()}, BackendKind::pread_buffered), faults);
  }
  Status read() { return read_now(*backend_, to_.read()); }
  TestFile file_{200000};
  Destination to_{1234, 50000};
  std::unique_ptr<Backend> backend_;
};

TEST_F(FaultTest, EioComesWhenAskedForAndPasses) {
  open({"eio@2x3"});
  for (int i = 0; i < 8; ++i) {
    const Status status = read();
    EXPECT_EQ(status.code(), i < 2 || i >= 5 ? Code::ok : Code::io_error) << i;
  }
  EXPECT_EQ(to_.first_wrong(), 50000u);
  EXPECT_TRUE(backend_->health().ok());
}

TEST_F(FaultTest, FaultsHitReadsInsideABatch) {
  open({"eio@2"});
  const Destination other(0, 1000);
  const Read reads[] = {other.read(), other.read(), to_.read(), other.read()};
  Completion completion;
  backend_->submit(reads, completion);
  EXPECT_EQ(completion.wait().code(), Code::io_error);
  EXPECT_EQ(other.first_wrong(), 1000u);
  EXPECT_TRUE(read().ok());
}

TEST_F(FaultTest, AShortReadIsAnErrorNotFewerBytes) {
  open({"short"});
  const Status status = read();
  EXPECT_EQ(status.code(), Code::io_error);
  EXPECT_NE(status.message().find("25000 bytes came of 50000"), std::string::npos) << status.message();
  EXPECT_EQ(to_.first_wrong(), 25000u);
}

TEST_F(FaultTest, ASlowDiskTakesTheTimeOfAllItsBytes) {
  open({"slow:400"});  // 20 ms for each of these reads
  const Read reads[] = {to_.read(), to_.read(), to_.read(), to_.read(), to_.read()};
  const Clock::time_point begin = Clock::now();
  Completion completion;
  backend_->submit(reads, completion);
  EXPECT_TRUE(completion.wait().ok());
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(100));
  EXPECT_EQ(to_.first_wrong(), 50000u);
}

TEST_F(FaultTest, TruncationFailsHealthFromThenOn) {
  open({"truncated@1"});
  EXPECT_TRUE(read().ok());
  EXPECT_TRUE(backend_->health().ok());
  EXPECT_EQ(read().code(), Code::io_error);
  EXPECT_EQ(backend_->health().code(), Code::io_error);
}

TEST_F(FaultTest, AStallDelaysTheReadAndNothingElse) {
  open({"stall:300"});
  const Destination other(0, 1000);
  const Read stalled = to_.read();
  Completion slow;
  const auto begin = Clock::now();
  backend_->submit({&stalled, 1}, slow);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(150));
  EXPECT_TRUE(read_now(*backend_, other.read()).ok());
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(250));
  EXPECT_FALSE(slow.done());
  EXPECT_TRUE(slow.wait().ok());
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(300));
  EXPECT_EQ(to_.first_wrong(), 50000u);
}

TEST_F(FaultTest, ClosingDoesNotWaitForAStall) {
  open({"stall:60000"});
  const Read stalled = to_.read();
  Completion completion;
  const auto begin = Clock::now();
  backend_->submit({&stalled, 1}, completion);
  backend_.reset();
  EXPECT_TRUE(completion.done());
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(FaultTest, NothingIsGivenInPlace) {
  backend_ = inject_faults(open_or_none({file_.path()}, BackendKind::mmap), {});
  EXPECT_EQ(backend_->in_place(0, 0, 10), nullptr);
  EXPECT_TRUE(read().ok());
}

TEST(ParseFault, ReadsEveryForm) {
  const Fault eio = *parse_fault("eio@100");
  EXPECT_EQ(eio.kind, Fault::Kind::eio);
  EXPECT_EQ(eio.after_reads, 100u);
  EXPECT_EQ(eio.count, 1u);
  const Fault brief = *parse_fault("short@5x3");
  EXPECT_EQ(brief.kind, Fault::Kind::short_read);
  EXPECT_EQ(brief.after_reads, 5u);
  EXPECT_EQ(brief.count, 3u);
  const Fault stall = *parse_fault("stall:5000@20");
  EXPECT_EQ(stall.stall_ms, 5000u);
  EXPECT_EQ(stall.after_reads, 20u);
  const Fault slow = *parse_fault("slow:50@3");
  EXPECT_EQ(slow.kind, Fault::Kind::slow);
  EXPECT_EQ(slow.stall_ms, 50u);
  EXPECT_EQ(slow.after_reads, 3u);
  EXPECT_EQ(slow.count, UINT64_MAX);
  EXPECT_EQ(parse_fault("truncated")->kind, Fault::Kind::truncated);
}

TEST(ParseFault, RefusesTheRest) {
  for (const char* text : {"", "eio@", "eio@x3", "eio@1x", "fire", "stall", "stall@3", "stall:", "short:5", "eio@1 ",
                           "@3", "eio@99999999999999999999", "stall:99999999999", "slow", "slow@3"}) {
    EXPECT_EQ(parse_fault(text).status().code(), Code::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace millrace::storage
