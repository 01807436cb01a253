// The choice of a backend: what is refused, and how it is said. What is taken: posix/choose_test.cpp,
// win32/choose_test.cpp.
#include <cerrno>
#include <string>

#include "storage/file_set.h"
#include "storage/request.h"
#include "storage/storage_fixture.h"

namespace millrace::storage {
namespace {

TEST(Choice, SaysWhatIsWrongWithAPath) {
  for (const BackendKind kind : backend_kinds()) {
    for (const bool fits : {false, true}) {
      const OpenOptions options{.kind = kind, .everything_fits = fits};
      auto missing = open_backend({"/nowhere/model.gguf"}, options);
      ASSERT_FALSE(missing.ok());
      EXPECT_EQ(missing.status().code(), Code::not_found);
      EXPECT_NE(missing.status().message().find("/nowhere/model.gguf"), std::string::npos);

      auto directory = open_backend({MILLRACE_BINARY_DIR}, options);
      ASSERT_FALSE(directory.ok());
      EXPECT_NE(directory.status().message().find("not a regular file"), std::string::npos)
          << directory.status().message();
      EXPECT_EQ(open_backend({}, options).status().code(), Code::invalid_argument);
    }
  }
}

TEST(Choice, MissingSplitIsNamed) {
  const TestFile file(10000);
  auto opened = open_backend({file.path(), file.path() + "-00002-of-00002"}, {});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("-00002-of-00002"), std::string::npos);
}

TEST(Names, GoThereAndBack) {
  for (const BackendKind kind : backend_kinds()) {
    auto parsed = backend_from_name(backend_name(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  const Status wrong = backend_from_name("uring").status();
  EXPECT_EQ(wrong.code(), Code::invalid_argument);
  EXPECT_TRUE(wrong.message().ends_with(" or " + std::string(backend_name(backend_kinds().back())))) << wrong.message();
}

TEST(WidenedTest, CoversTheAskedBytesWithWholeBlocks) {
  const Widened wide = widened(5000, 200, 4096);
  EXPECT_EQ(wide.offset, 4096u);
  EXPECT_EQ(wide.bytes, 4096u);
  EXPECT_EQ(wide.lead, 904u);
  EXPECT_EQ(widened(4095, 2, 4096).bytes, 8192u);
  EXPECT_EQ(widened(7, 9, 1).bytes, 9u);
}

// The rule of exact lengths, attempt by attempt, as a kernel could answer.
class SettleTest : public testing::Test {
 protected:
  TestFile file_{100000};
  FileSet files_ = FileSet::open({file_.path()}, FileSet::Access::buffered).value();
  Completion completion_;
  Request request_{.offset = 4096, .bytes = 8192, .lead = 100, .needed = 8000, .completion = &completion_};
  Expected<Outcome> answer(std::int64_t result) { return settle(request_, result, files_); }
};

TEST_F(SettleTest, ShortReadsGoOnWhereTheyStopped) {
  EXPECT_EQ(*answer(3000), Outcome::again);
  EXPECT_EQ(request_.next(1), 3000u);
  EXPECT_EQ(request_.next(512), 2560u);  // O_DIRECT starts again on a block's edge
  EXPECT_EQ(*answer(-EINTR), Outcome::again);
  EXPECT_EQ(*answer(-EAGAIN), Outcome::again);
  EXPECT_EQ(request_.next(1), 3000u);
  EXPECT_EQ(*answer(5000), Outcome::done);  // the asked bytes are there, the block's rest is not needed
}

TEST_F(SettleTest, TheEndOfTheFileIsAnError) {
  EXPECT_EQ(*answer(3000), Outcome::again);
  auto ended = answer(0);
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().code(), Code::io_error);
  EXPECT_NE(ended.status().message().find("the file ends at byte 7096"), std::string::npos) << ended.status().message();
}

TEST_F(SettleTest, ErrorsNameThePlaceAndEndlessRetriesEnd) {
  auto failed = answer(-EIO);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find("reading 8192 bytes at 4096"), std::string::npos);
  int tries = 0;
  while (tries < 100000 && answer(-EAGAIN).ok()) ++tries;
  EXPECT_LT(tries, 100000);
}

TEST(FifoTest, KeepsOrderWhileItGrows) {
  Fifo<int> fifo;
  int pushed = 0, popped = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 37; ++i) fifo.push(pushed++);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(fifo.pop(), popped++);
  }
  while (!fifo.empty()) ASSERT_EQ(fifo.pop(), popped++);
  EXPECT_EQ(popped, pushed);
}

}  // namespace
}  // namespace millrace::storage
