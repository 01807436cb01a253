// Messages are read as they were written, and what is cut off is an error.
#include "link/message.h"

#include <gtest/gtest.h>

#include "link/inbox.h"
#include "link/local_link.h"

namespace millrace::link {
namespace {

TEST(Message, IsReadAsItWasWritten) {
  std::vector<std::byte> message;
  Writer writer(message, MessageKind::open);
  writer.number(std::int64_t{-5});
  writer.text("a host");
  writer.text("");
  const std::vector<float> values = {1, 2, 3};
  writer.array(std::span(values));
  float* const room = writer.floats(2);
  room[0] = 7, room[1] = 8;
  Reader reader(message);
  EXPECT_EQ(reader.kind(), MessageKind::open);
  EXPECT_EQ(reader.number<std::int64_t>(), -5);
  EXPECT_EQ(reader.text(), "a host");
  EXPECT_EQ(reader.text(), "");
  const auto read = reader.array<float>();
  EXPECT_EQ(std::vector<float>(read.begin(), read.end()), values);
  EXPECT_EQ(reader.array<float>()[1], 8);
  EXPECT_TRUE(reader.status().ok());
}

TEST(Message, ThatIsCutOffIsCorrupt) {
  std::vector<std::byte> message;
  Writer writer(message, MessageKind::open);
  writer.text("a longer text than that");
  for (std::size_t size = 0; size < message.size(); size += 8) {
    Reader reader(std::span<const std::byte>(message).first(size));
    reader.text();
    EXPECT_EQ(reader.status().code(), Code::corrupt) << size;
  }
  Writer lies(message, MessageKind::open);
  lies.number(~std::size_t{0});
  Reader reader(message);
  EXPECT_TRUE(reader.array<float>().empty());
  EXPECT_EQ(reader.status().code(), Code::corrupt);
}

TEST(LocalLink, KeepsTheOrderAndSaysWhoSent) {
  const auto links = make_local_links(3);
  for (const int from : {0, 2}) {
    for (int i = 0; i < 3; ++i) {
      const std::byte message[] = {static_cast<std::byte>(10 * from + i)};
      ASSERT_TRUE(links[static_cast<std::size_t>(from)]->send(1, message).ok());
    }
  }
  std::vector<std::byte> message;
  for (const int expected : {0, 1, 2, 20, 21, 22}) {
    const auto from = links[1]->receive(message);
    ASSERT_TRUE(from.ok());
    EXPECT_EQ(*from, expected / 10);
    EXPECT_EQ(message, std::vector{static_cast<std::byte>(expected)});
  }
  EXPECT_EQ(links[1]->receive(message, [] { return true; }).status().code(), Code::cancelled);
}

TEST(Inbox, KeepsWhatCameWhileItLooked) {
  const auto links = make_local_links(2);
  Inbox inbox(*links[1]);
  EXPECT_FALSE(inbox.gives_up(4));
  std::vector<std::byte> message;
  Writer(message, MessageKind::cancel).number(std::uint64_t{3});
  ASSERT_TRUE(links[0]->send(1, message).ok());
  EXPECT_FALSE(inbox.gives_up(4)) << "that was another pass";
  Writer(message, MessageKind::cancel).number(std::uint64_t{4});
  ASSERT_TRUE(links[0]->send(1, message).ok());
  EXPECT_TRUE(inbox.gives_up(4));
  for (const std::uint64_t pass : {3u, 4u}) {
    ASSERT_TRUE(inbox.next(message).ok());
    Reader reader(message);
    EXPECT_EQ(reader.number<std::uint64_t>(), pass);
  }
}

}  // namespace
}  // namespace millrace::link
