#include "modelfile/inspect.h"

#include <gtest/gtest.h>

#include <string>

#include "modelfile/escape.h"
#include "modelfile/raw_gguf.h"

namespace millrace::modelfile {
namespace {

TEST(Escape, KeepsTextAndDefusesTheRest) {
  EXPECT_EQ(escape("plain \xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80"), "plain \xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80");
  EXPECT_EQ(escape("a\nb\tc\rd\\"), "a\\nb\\tc\\rd\\\\");
  EXPECT_EQ(escape("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(escape(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(escape("\xC2\x9B"), "\\u009b");              // a C1 control: an escape sequence's start
  EXPECT_EQ(escape("\xE2\x80\xAE"), "\\u202e");          // right-to-left override
  EXPECT_EQ(escape("\xFF\xC3"), "\\xff\\xc3");           // no UTF-8
  EXPECT_EQ(escape("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(escape("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(escape("\xF5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(escape("abcdef", 3), "abc...");
  EXPECT_EQ(escape("abc", 3), "abc");
}

TEST(Inspect, ShowsARealModel) {
  const auto model = Model::open(MILLRACE_TEST_DATA "/demo-draft-f16.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string text = render_inspect(model.value());
  const auto has = [&](std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << "lacks: " << part << "\n" << text;
  };
  has("demo-draft-f16.gguf: GGUF v3, 1.83 MB");
  has("parameters in 29 tensors, 16.0");
  has("architecture      llama\n");
  has("vocabulary        2,263\n");
  has("tokenizer.ggml.merges");
  has("2,004 x string");
  has("blk.*.attn_q.weight       0-2     128 x 128   F16");
  EXPECT_EQ(text.find("blk.0."), std::string::npos);
  const std::string full = render_inspect(model.value(), {.tensors = true});
  const TensorInfo* tensor = model->find("blk.2.ffn_down.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_NE(full.find("blk.2.ffn_down.weight"), std::string::npos);
  EXPECT_NE(full.find("1,734,624"), std::string::npos) << full;
  EXPECT_EQ(tensor->offset, 1734624u);
}

TEST(Inspect, CountsALatentOnceForAllHeads) {
  const auto model = Model::open(MILLRACE_TEST_DATA "/reference/deepseek-v2-lite.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string text = render_inspect(model.value());
  EXPECT_NE(text.find("kv cache          384 B a token in f16"), std::string::npos) << text;  // 2 layers of 64 + 32
}

TEST(Inspect, WindowedLayersKeepTheirWindowAlone) {
  const auto model = Model::open(MILLRACE_TEST_DATA "/reference/gpt-oss.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string text = render_inspect(model.value());
  EXPECT_NE(text.find("256 B a token in f16, and 256 B for each of the last 12\n"), std::string::npos) << text;
}

TEST(Inspect, TellsBlocksThatGuessTokensFromLayers) {
  const auto model = Model::open(MILLRACE_TEST_DATA "/reference/glm-4.7-flash.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string text = render_inspect(model.value());
  EXPECT_NE(text.find("layers            2, and 1 that guesses more tokens\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kv cache          384 B a token in f16"), std::string::npos) << text;  // 2 layers of 32 + 64
  EXPECT_NE(text.find("a token reads 152 kB of weights (58 %)"), std::string::npos) << "without the block\n" << text;
}

TEST(Inspect, LetsNoFileWriteToTheTerminal) {
  Raw raw;
  raw.head(1, 3).text_pair("general.name", "\x1b]0;owned\x07").text_pair("k\ney", "v\x1b[2J");
  raw.string("words").u32(9).u32(8).u64(1).string("\x1b[31m").tensor("blk.\x1b[1m", {4}, 0, 0).pad().zeros(16);
  const auto model = Model::parse(as_span(raw.bytes()), "a\x1b.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const bool tensors : {false, true}) {
    const std::string text = render_inspect(model.value(), {.tensors = tensors});
    for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << text;
    EXPECT_NE(text.find("\\x1b[2J"), std::string::npos);
  }
}

TEST(Inspect, ManagesWithoutTensorsOrKeys) {
  const Raw raw = Raw().head(0, 0);
  const auto model = Model::parse(as_span(raw.bytes()), "bare.gguf");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(render_inspect(model.value()), "bare.gguf: GGUF v3, 24 B, no tensors\n");
}

TEST(Inspect, GroupsEqualTensorsOfLayers) {
  Raw raw;
  raw.head(5, 0);
  for (const int layer : {0, 1, 2, 4})
    raw.tensor(fmt::format("blk.{}.w", layer), {8}, 0, static_cast<unsigned>(layer) * 32u);
  const auto model = Model::parse(as_span(raw.tensor("blk.3.w", {8}, 1, 96).pad().zeros(160).bytes()), "m.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string text = render_inspect(model.value());
  EXPECT_NE(text.find("blk.*.w  0-2,4   8      F32         32 B  128 B"), std::string::npos) << text;
  EXPECT_NE(text.find("blk.*.w  3       8      F16         16 B   16 B"), std::string::npos) << text;
}

}  // namespace
}  // namespace millrace::modelfile
