#include "app/store/hub.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::store {
namespace {

HubFile file(const std::string& path, std::uint64_t bytes = 100) { return {path, bytes, std::string(64, 'a')}; }

Name name(const std::string& text) {
  const auto parsed = parse_name(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return parsed.ok() ? *parsed : Name();
}

TEST(Name, IsReadAndWritten) {
  EXPECT_EQ(name("hf.co/a/b:Q4_0").text(), "a/b:Q4_0");
  EXPECT_EQ(name("https://huggingface.co/a/b").text(), "a/b:latest");
  EXPECT_EQ(name("mine").text(), "mine:latest");
  EXPECT_EQ(name("mine:7b").folder(), "-/mine/7b");
  for (const char* bad : {"", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", "a:..", "a b", "-a", "a:", ":x",
                          "a/b:c/d", "hf.co/", "a\nb"})
    EXPECT_FALSE(parse_name(bad).ok()) << bad;
  EXPECT_FALSE(parse_name(std::string(200, 'x')).ok());
}

TEST(Variants, GroupSplitsAndReadQuantizations) {
  const auto variants = variants_of({file("Model-7B-Q4_K_M.gguf"), file("model.Q8_0.gguf"), file("model-f16.gguf"),
                                     file("UD/model-UD-Q2_K_XL.gguf"), file("Q6_K/m-Q6_K-00002-of-00002.gguf"),
                                     file("Q6_K/m-Q6_K-00001-of-00002.gguf"), file("hole-IQ4_XS-00001-of-00002.gguf"),
                                     file("mmproj-F16.gguf"), file("model.imatrix.gguf"), file("README.md"),
                                     file("empty-Q5_0.gguf", 0), file("gpt-oss-MXFP4.gguf")});
  std::vector<std::string> quants;
  for (const Variant& variant : variants) quants.push_back(variant.quant);
  std::sort(quants.begin(), quants.end());
  EXPECT_EQ(quants, (std::vector<std::string>{"F16", "MXFP4", "Q4_K_M", "Q6_K", "Q8_0", "UD-Q2_K_XL"}));
  const auto split = choose_variant(variants, name("a/b:q6_k"));
  ASSERT_TRUE(split.ok());
  ASSERT_EQ(split->files.size(), 2u);
  EXPECT_TRUE(split->files[0].path.ends_with("00001-of-00002.gguf"));
  EXPECT_EQ(choose_variant(variants, name("a/b"))->quant, "Q4_K_M");
  EXPECT_EQ(choose_variant(variants, name("a/b:model.Q8_0.gguf"))->quant, "Q8_0");
  EXPECT_EQ(choose_variant(variants_of({file("m-Q2_K.gguf"), file("m-NVFP4.gguf")}), name("a/b"))->quant, "NVFP4");
  EXPECT_FALSE(choose_variant(variants, name("a/b:Q3_K_S")).ok());
  EXPECT_FALSE(choose_variant({}, name("a/b")).ok());
  EXPECT_TRUE(is_checkpoint({{"config.json", 1, ""}, {"model-00001-of-00002.safetensors", 1, ""}}));
  EXPECT_FALSE(is_checkpoint({{"model.gguf", 1, ""}}));
}

TEST(Mmproj, IsTheOneOfTheModelAndOfTheBestType) {
  const auto chosen = [](const std::vector<HubFile>& files, const char* tag = "a/b:Q4_0") {
    const auto variant = choose_variant(variants_of(files), name(tag));
    EXPECT_TRUE(variant.ok());
    const HubFile* const mmproj = variant.ok() ? mmproj_of(files, *variant) : nullptr;
    return mmproj != nullptr ? mmproj->path : "";
  };
  const HubFile model = file("qwen3-vl-4b-Q4_0.gguf");
  EXPECT_EQ(chosen({model}), "");
  EXPECT_EQ(chosen({model, file("mmproj-F16.gguf", 0), file("mmproj.txt"), file("preprocessor.json")}), "");
  EXPECT_EQ(chosen({model, file("mmproj-BF16.gguf"), file("mmproj-F16.gguf"), file("mmproj-F32.gguf")}),
            "mmproj-F16.gguf");
  EXPECT_EQ(chosen({model, file("model.mmproj-Q8_0.gguf"), file("mmproj-F32.gguf")}), "mmproj-F32.gguf");
  EXPECT_EQ(chosen({model, file("mmproj-Q8_0.gguf"), file("mmproj-BF16.gguf")}), "mmproj-BF16.gguf");
  EXPECT_EQ(chosen({model, file("model.mmproj-Q8_0.gguf")}), "model.mmproj-Q8_0.gguf");
  EXPECT_EQ(chosen({model, file("mmproj-model-f16.gguf"), file("mmproj-Q8_0.gguf")}), "mmproj-model-f16.gguf");
  // Of two models in one repository each has its own, whatever its type.
  const std::vector<HubFile> two = {file("qwen3-vl-4b-Q4_0.gguf"), file("qwen3-vl-8b-Q6_K.gguf"),
                                    file("mmproj-qwen3-vl-8b-f16.gguf"), file("mmproj-Qwen3-VL-4B-Q8_0.gguf")};
  EXPECT_EQ(chosen(two), "mmproj-Qwen3-VL-4B-Q8_0.gguf");
  EXPECT_EQ(chosen(two, "a/b:Q6_K"), "mmproj-qwen3-vl-8b-f16.gguf");
  EXPECT_EQ(chosen({file("x/m-Q4_0.gguf"), file("mmproj-f16.gguf"), file("x/mmproj-bf16.gguf")}), "x/mmproj-bf16.gguf");
}

TEST(Checkpoints, AreTheirTextsAndTheWeightsThatTheIndexNames) {
  const std::vector<HubFile> files = {
      file("config.json"),   file("tokenizer.json"),     file("vocab.json"), file("a.safetensors"),
      file("b.safetensors"), file("onnx/c.safetensors"), file("README.md"),  file("consolidated.safetensors")};
  const auto texts = checkpoint_texts(files, name("a/b"));
  ASSERT_TRUE(texts.ok());
  EXPECT_EQ(texts->size(), 2u);
  const auto weights =
      checkpoint_weights(files, R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}})", name("a/b"));
  ASSERT_TRUE(weights.ok());
  ASSERT_EQ(weights->size(), 2u);
  EXPECT_EQ(weights->front().path, "a.safetensors");
  EXPECT_FALSE(checkpoint_weights(files, R"({"weight_map": {"x": "c.safetensors"}})", name("a/b")).ok());
  EXPECT_FALSE(checkpoint_weights(files, R"({"weight_map": {"x": "../a.safetensors"}})", name("a/b")).ok());
  EXPECT_FALSE(checkpoint_weights(files, "no index", name("a/b")).ok());
  EXPECT_FALSE(checkpoint_weights(files, "", name("a/b")).ok());
  EXPECT_EQ(checkpoint_weights({file("one.safetensors")}, "", name("a/b"))->size(), 1u);
  EXPECT_FALSE(checkpoint_texts({file("config.json"), file("one.safetensors")}, name("a/b")).ok());
}

TEST(Variants, AreAskedForByFileWhereAQuantizationIsAmbiguous) {
  const auto variants = variants_of({file("small-Q4_0.gguf"), file("large-Q4_0.gguf")});
  const auto both = choose_variant(variants, name("a/b:Q4_0"));
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.status().message().find("small-Q4_0"), std::string::npos);
  EXPECT_EQ(choose_variant(variants, name("a/b:large-Q4_0"))->stem, "large-Q4_0");
}

TEST(Tree, RefusesWhatIsNone) {
  for (const char* bad : {"", "{}", "[1]", R"([{"type":"file"}])", R"([{"type":"file","path":"x","size":-1}])",
                          R"([{"type":"file","path":"x","size":1,"lfs":{"oid":"short"}}])"})
    EXPECT_FALSE(parse_tree(bad).ok()) << bad;
  EXPECT_TRUE(parse_tree("[]").ok());
  // Matching a name takes stack for each of its characters, and printing it takes them as they are.
  const auto listed = [](const std::string& path) {
    return R"([{"type":"file","path":")" + path + R"(.gguf","size":1}])";
  };
  EXPECT_TRUE(parse_tree(listed("x")).ok());
  EXPECT_EQ(parse_tree(listed(std::string(50'000, 'x'))).status().code(), Code::corrupt);
  EXPECT_EQ(parse_tree(listed("x\\u001b[2J")).status().code(), Code::corrupt);
  EXPECT_EQ(parse_tree(listed("x\\r\\n")).status().code(), Code::corrupt);
}

}  // namespace
}  // namespace millrace::store
