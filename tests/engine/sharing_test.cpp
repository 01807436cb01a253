#include "engine/sharing.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

SharingInput machine() {
  SharingInput input;
  input.cap_bytes = 16'000'000'000;
  input.taken_bytes = 6'000'000'000;
  input.weights_give_way = true;
  input.kv_bytes_per_token = 131'072;
  input.vocab = 128'256;
  input.context_tokens = 4096;
  return input;
}

TEST(Sharing, KvTakesWhatTheWeightsLeave) {
  const Sharing sharing = choose_sharing(machine());
  EXPECT_EQ(sharing.sequences, 64);
  EXPECT_EQ(sharing.kv_tokens, 10'000'000'000 / 8 * 7 / 131'072);
}

TEST(Sharing, AQuarterWhereTheWeightsStream) {
  SharingInput input = machine();
  input.cap_bytes = 4'000'000'000;
  EXPECT_EQ(choose_sharing(input).kv_tokens, 1'000'000'000 / 131'072);
  EXPECT_EQ(choose_sharing(input).sequences, 1'000'000'000 / 131'072 / 256);
  input.weights_give_way = false;
  EXPECT_EQ(choose_sharing(input).sequences, 1);
}

TEST(Sharing, RowsOfLogitsCountToo) {
  SharingInput input = machine();
  input.kv_bytes_per_token = 1;
  input.cap_bytes = 100'000'000;
  EXPECT_EQ(choose_sharing(input).sequences, 100'000'000 / 16 / (12 * 128'256));
}

TEST(Sharing, KeepsNoMoreThanRequestsCanUse) {
  SharingInput input = machine();
  input.kv_bytes_per_token = 1;
  input.context_tokens = 512;
  EXPECT_EQ(choose_sharing(input).kv_tokens, 64 * 512);
  input.cap_bytes = 0;
  EXPECT_EQ(choose_sharing(input).sequences, 1);
  EXPECT_GE(choose_sharing(input).kv_tokens, 1);
}

}  // namespace
}  // namespace millrace::engine
