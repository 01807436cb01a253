// tools/synth-model, run as a user runs it: its files open, its weights are tame, and the same seed gives the same
// bytes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "modelfile/gguf.h"
#include "tensor/codec.h"

namespace millrace::modelfile {
namespace {

namespace fs = std::filesystem;

class SynthModel : public ::testing::Test {
 protected:
  SynthModel() {
    folder_ = fs::temp_directory_path() / fmt::format("millrace_synth_{}", ::getpid());
    fs::create_directories(folder_);
  }
  ~SynthModel() override { fs::remove_all(folder_); }
  void SetUp() override {
    if (!fs::exists(kProgram)) GTEST_SKIP() << "build the target synth-model first";
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  int run(const std::string& arguments) const {
    const std::string log = path("log");
    return std::system((kProgram + " " + arguments + " >" + log + " 2>&1").c_str());
  }
  std::string log() const { return content(path("log")); }
  static std::string content(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

#if defined(_WIN32)  // whose shell takes a word that begins with / for an option
  const std::string kProgram = fs::absolute(MILLRACE_BINARY_DIR "/tools/synth-model.exe").make_preferred().string();
#else
  const std::string kProgram = MILLRACE_BINARY_DIR "/tools/synth-model";
#endif
  const std::string kSmall = " --layers 2 --dim 256 --ff 512 --heads 4 --kv-heads 2 --head-dim 64 --vocab 1000";
  fs::path folder_;
};

std::vector<float> decoded(const std::string& bytes, const TensorInfo& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.cols() * tensor.rows()));
  decode_row(tensor.dtype, reinterpret_cast<const std::byte*>(bytes.data() + tensor.offset),
             static_cast<std::int64_t>(out.size()), out.data());
  return out;
}

TEST_F(SynthModel, WritesTameWeightsInEveryType) {
  std::set<DType> seen;
  for (const char* dtype :
       {"F32",   "F16",   "BF16",  "Q8_0",   "Q4_0",   "Q4_1",    "Q5_0",   "Q5_1",  "Q2_K",    "Q3_K",
        "Q4_K",  "Q5_K",  "Q6_K",  "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
        "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0",  "MXFP4",  "NVFP4",   "Q1_0",   "Q2_0",  "Q4_K_M"}) {
    SCOPED_TRACE(dtype);
    ASSERT_EQ(run(path("m.gguf") + " --dtype " + dtype + kSmall), 0) << log();
    const auto model = Model::open(path("m.gguf"));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const std::string bytes = content(path("m.gguf"));
    for (const TensorInfo& tensor : model->tensors()) {
      SCOPED_TRACE(tensor.name);
      seen.insert(tensor.dtype);
      double sum = 0, squares = 0;
      const std::vector<float> weights = decoded(bytes, tensor);
      for (const float w : weights) {
        ASSERT_TRUE(std::isfinite(w));
        sum += w;
        squares += static_cast<double>(w) * w;
      }
      const auto count = static_cast<double>(weights.size());
      const bool norm = tensor.name.find("norm") != std::string::npos;
      const double wanted = norm ? 1 : 1 / std::sqrt(static_cast<double>(tensor.cols()));
      EXPECT_NEAR(std::sqrt(squares / count) / wanted, 1, 0.05);
      EXPECT_NEAR(sum / count / wanted, norm ? 1 : 0, 0.05);
    }
  }
  EXPECT_EQ(seen.size(), 28u);
}

TEST_F(SynthModel, GivesTheSameBytesForASeedAndOthersForAnother) {
  ASSERT_EQ(run(path("a.gguf") + kSmall + " -d Q4_K -t 1 --seed 5"), 0) << log();
  ASSERT_EQ(run(path("b.gguf") + kSmall + " -d Q4_K -t 3 --seed 5"), 0) << log();
  ASSERT_EQ(run(path("c.gguf") + kSmall + " -d Q4_K --seed 6"), 0) << log();
  EXPECT_EQ(content(path("a.gguf")), content(path("b.gguf")));
  EXPECT_NE(content(path("a.gguf")), content(path("c.gguf")));
}

TEST_F(SynthModel, WritesEveryArchitectureWithAWholeVocabulary) {
  const std::string moe = " --experts 8 --top-k 2 --expert-ff 256";
  for (const std::string& flags :
       {std::string("-p llama3-8b"), "-p qwen3-30b-a3b" + moe, "-p gpt-oss-20b" + moe, "-p qwen3.6-35b-a3b" + moe,
        "-p gemma4-26b-a4b" + moe + " --tie", std::string("-p llama2-7b --tie")}) {
    SCOPED_TRACE(flags);
    ASSERT_EQ(run(path("m.gguf") + " " + flags + kSmall + " -d Q8_0"), 0) << log();
    const auto model = Model::open(path("m.gguf"));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const auto tokens = model->get_strings("tokenizer.ggml.tokens");
    ASSERT_TRUE(tokens.ok());
    EXPECT_EQ(tokens->size(), 1000u);
    EXPECT_EQ(std::set<std::string>(tokens->begin(), tokens->end()).size(), 1000u);
    EXPECT_EQ(model->require("token_embd.weight").value()->rows(), 1000);
    const std::string architecture = model->get_string("general.architecture").value();
    EXPECT_EQ(model->get_int(architecture + ".vocab_size").value(), 1000);
    EXPECT_EQ(model->find("output.weight") == nullptr, flags.ends_with("--tie"));
    if (flags.find("experts") == std::string::npos) continue;
    const TensorInfo* down = model->find("blk.1.ffn_down_exps.weight");
    ASSERT_NE(down, nullptr);
    EXPECT_EQ(down->shape, (std::vector<std::int64_t>{256, 256, 8}));
    EXPECT_EQ(down->dtype, architecture == "gpt-oss" ? DType::mxfp4 : DType::q8_0);
    EXPECT_EQ(model->require("blk.0.ffn_gate_inp.weight").value()->dtype, DType::f32);
  }
}

TEST_F(SynthModel, WritesLayersOfOneThingEach) {
  const std::string small = " --layers 7 --dim 256 --vocab 1000 --experts 16 --top-k 2 --expert-ff 64 --state-heads 16";
  ASSERT_EQ(run(path("m.gguf") + " --preset nemotron-3-nano-30b -d Q8_0" + small), 0) << log();
  const auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_ints("nemotron_h_moe.attention.head_count_kv").value(),
            (std::vector<std::int64_t>{0, 0, 0, 0, 0, 2, 0}));
  EXPECT_EQ(model->get_ints("nemotron_h_moe.feed_forward_length").value(),
            (std::vector<std::int64_t>{0, 64, 0, 64, 0, 0, 64}));
  EXPECT_EQ(model->require("blk.0.ssm_in.weight").value()->shape, (std::vector<std::int64_t>{256, 4112}));
  EXPECT_EQ(model->require("blk.1.ffn_up_exps.weight").value()->shape, (std::vector<std::int64_t>{256, 64, 16}));
  EXPECT_EQ(model->find("blk.1.ffn_gate_exps.weight"), nullptr);
  EXPECT_NE(model->find("blk.5.attn_q.weight"), nullptr);
  EXPECT_NE(run(path("m.gguf") + " --preset nemotron-3-nano-30b --layers 5"), 0);
}

TEST_F(SynthModel, WritesTwoMixersInALayer) {
  const std::string small = " --layers 2 --dim 256 --vocab 1000 --ff 512 --heads 4 --kv-heads 2 --state-heads 4";
  ASSERT_EQ(run(path("m.gguf") + " --preset falcon-h1-34b -d Q8_0" + small), 0) << log();
  const auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_int("falcon-h1.ssm.inner_size").value(), 512);
  EXPECT_EQ(model->require("blk.1.ssm_in.weight").value()->shape, (std::vector<std::int64_t>{256, 2052}));
  EXPECT_EQ(model->require("blk.1.ssm_norm.weight").value()->shape, (std::vector<std::int64_t>{256, 2}));
  EXPECT_EQ(model->require("blk.1.attn_q.weight").value()->shape, (std::vector<std::int64_t>{256, 512}));
  EXPECT_NE(run(path("m.gguf") + " --preset falcon-h1-34b --state-heads 3"), 0);
}

TEST_F(SynthModel, WritesStatesBesideLatents) {
  const std::string small = " --dim 256 --vocab 1000 --ff 512 --experts 16 --top-k 2 --expert-ff 64";
  ASSERT_EQ(run(path("m.gguf") + " --preset kimi-linear-48b-a3b -d Q8_0 --layers 5 --heads 2 --state-heads 2" + small),
            0)
      << log();
  const auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_ints("kimi-linear.attention.head_count_kv").value(), (std::vector<std::int64_t>{0, 0, 0, 1, 0}));
  EXPECT_EQ(model->require("blk.0.ssm_conv1d_k.weight").value()->shape, (std::vector<std::int64_t>{4, 1, 256}));
  EXPECT_EQ(model->require("blk.4.ssm_f_b.weight").value()->shape, (std::vector<std::int64_t>{128, 256}));
  EXPECT_EQ(model->require("blk.3.attn_q.weight").value()->shape, (std::vector<std::int64_t>{256, 2 * 192}));
  EXPECT_EQ(model->find("blk.3.ssm_a"), nullptr);
  EXPECT_NE(run(path("m.gguf") + " --preset kimi-linear-48b-a3b --layers 3"), 0);
}

TEST_F(SynthModel, WritesStatesOfLing3AndBlocksThatKvHeadsChoose) {
  const std::string small = " --dim 256 --vocab 1000 --ff 512 --experts 16 --top-k 2 --expert-ff 64";
  ASSERT_EQ(run(path("m.gguf") + " --preset ling-3-flash -d Q8_0 --layers 7 --heads 2 --state-heads 2" + small), 0)
      << log();
  auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_ints("bailingmoe3.attention.head_count_kv").value(),
            (std::vector<std::int64_t>{0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(model->require("blk.0.ssm_f_a.weight").value()->shape, (std::vector<std::int64_t>{256, 256}));
  EXPECT_EQ(model->find("blk.0.ssm_f_b.weight"), nullptr);
  EXPECT_EQ(model->require("blk.5.attn_gate.weight").value()->shape, (std::vector<std::int64_t>{256, 2}));
  EXPECT_EQ(model->find("blk.1.ffn_gate_exps.weight"), nullptr);
  EXPECT_NE(model->find("blk.2.ffn_gate_exps.weight"), nullptr);
  EXPECT_NE(run(path("m.gguf") + " --preset ling-3-flash --layers 5"), 0);
  ASSERT_EQ(run(path("m.gguf") + " --preset minimax-m3 -d Q8_0 --layers 4" + small), 0) << log();
  model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->find("blk.2.indexer.q_proj.weight"), nullptr);
  EXPECT_EQ(model->require("blk.3.indexer.q_proj.weight").value()->shape, (std::vector<std::int64_t>{256, 4 * 128}));
  EXPECT_EQ(model->require("blk.3.attn_q_norm.weight").value()->shape, (std::vector<std::int64_t>{128}));
  EXPECT_EQ(model->get_int("minimax-m3.rope.dimension_count").value(), 64);
  EXPECT_NE(run(path("m.gguf") + " --arch minimax-m3 --experts 16 --top-k 2 --expert-ff 64"), 0);
}

TEST_F(SynthModel, WritesIndexersAndExpertsOfLatents) {
  const std::string small = " --dim 256 --vocab 1000 --experts 16 --top-k 2 --expert-ff 64";
  ASSERT_EQ(run(path("m.gguf") + " --preset glm-5.2 -d Q8_0 --layers 5 --ff 512" + small), 0) << log();
  auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->require("blk.2.indexer.attn_q_b.weight").value()->shape,
            (std::vector<std::int64_t>{2048, 32 * 128}));
  EXPECT_EQ(model->require("blk.2.indexer.proj.weight").value()->dtype, DType::f32);
  EXPECT_EQ(model->find("blk.3.indexer.proj.weight"), nullptr);
  EXPECT_EQ(model->get_ints("glm-dsa.attention.indexer.types").value(), (std::vector<std::int64_t>{1, 1, 1, 0, 0}));
  ASSERT_EQ(run(path("m.gguf") + " --preset mistral-small-4 -d Q8_0 --layers 2" + small), 0) << log();
  model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->require("blk.0.ffn_gate_up_exps.weight").value()->shape, (std::vector<std::int64_t>{256, 128, 16}));
  ASSERT_EQ(run(path("m.gguf") + " --preset nemotron-3-super-120b -d Q8_0 --layers 11 --state-heads 16" + small), 0)
      << log();
  model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->require("blk.1.ffn_up_exps.weight").value()->shape, (std::vector<std::int64_t>{1024, 64, 16}));
  EXPECT_EQ(model->require("blk.1.ffn_latent_up.weight").value()->shape, (std::vector<std::int64_t>{1024, 256}));
}

TEST_F(SynthModel, WritesStreamsAndATableOfNgrams) {
  const std::string small = " --dim 256 --vocab 1000 --experts 16 --top-k 2 --expert-ff 64 --ngram-rows 50";
  ASSERT_EQ(run(path("m.gguf") + " --preset qwen3.8-flash-next -d Q8_0 --layers 4" + small), 0) << log();
  const auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_ints("qwen4exp.attention.compress_ratios").value(), (std::vector<std::int64_t>{0, 0, 0, 4}));
  EXPECT_EQ(model->get_ints("qwen4exp.ple.head_offsets").value().back(), 15 * 50);
  EXPECT_EQ(model->require("per_layer_token_embd.weight").value()->shape, (std::vector<std::int64_t>{160, 16 * 50}));
  EXPECT_EQ(model->require("blk.1.ple_key.weight").value()->shape, (std::vector<std::int64_t>{2560, 4 * 256}));
  EXPECT_EQ(model->require("blk.3.indexer.q_proj.weight").value()->shape, (std::vector<std::int64_t>{256, 4 * 128}));
  EXPECT_EQ(model->require("output_hc_down.weight").value()->shape, (std::vector<std::int64_t>{4 * 256, 320}));
  for (const char* none : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.indexer.k_proj.weight",
                           "blk.2.ple_key.weight", "blk.3.post_attention_norm.weight"})
    EXPECT_EQ(model->find(none), nullptr) << none;
}

TEST_F(SynthModel, WritesCompressedAttentionAndExpertsOfTokens) {
  const std::string small = " --dim 256 --vocab 1000 --experts 16 --top-k 2 --expert-ff 64";
  ASSERT_EQ(run(path("m.gguf") + " --preset deepseek-v4-flash -d Q8_0 --layers 4" + small), 0) << log();
  const auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_ints("deepseek4.attention.compress_ratios").value(), (std::vector<std::int64_t>{0, 0, 4, 128}));
  EXPECT_EQ(model->require("blk.2.attn_compressor_ape.weight").value()->shape, (std::vector<std::int64_t>{1024, 4}));
  EXPECT_EQ(model->require("blk.3.attn_compressor_ape.weight").value()->shape, (std::vector<std::int64_t>{512, 128}));
  EXPECT_EQ(model->find("blk.3.indexer.proj.weight"), nullptr);
  EXPECT_EQ(model->require("blk.0.hc_attn_fn.weight").value()->shape, (std::vector<std::int64_t>{4 * 256, 24}));
  EXPECT_EQ(model->require("blk.1.ffn_up_exps.weight").value()->dtype, DType::mxfp4);
  EXPECT_EQ(model->find("blk.3.ffn_gate_tid2eid.weight"), nullptr);
  const TensorInfo& table = **model->require("blk.0.ffn_gate_tid2eid.weight");
  ASSERT_EQ(table.dtype, DType::i32);
  ASSERT_EQ(table.shape, (std::vector<std::int64_t>{2, 1000}));
  std::ifstream file(path("m.gguf"), std::ios::binary);
  file.seekg(static_cast<std::streamoff>(table.offset));
  std::vector<std::int32_t> experts(2000);
  file.read(reinterpret_cast<char*>(experts.data()), static_cast<std::streamsize>(experts.size() * 4));
  for (std::size_t i = 0; i < experts.size(); i += 2) {
    EXPECT_TRUE(experts[i] >= 0 && experts[i] < 16 && experts[i + 1] >= 0 && experts[i + 1] < 16) << i;
    EXPECT_NE(experts[i], experts[i + 1]) << i;
  }
}

TEST_F(SynthModel, WritesLatentAttentionAndItsMixture) {
  const std::string small = " --layers 4 --dim 256 --ff 512 --vocab 1000 --experts 16 --top-k 2 --expert-ff 64";
  ASSERT_EQ(run(path("m.gguf") + " --preset deepseek-v3 -d Q8_0" + small), 0) << log();
  const auto model = Model::open(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->require("blk.0.attn_k_b.weight").value()->shape, (std::vector<std::int64_t>{128, 512, 128}));
  EXPECT_EQ(model->require("blk.0.attn_v_b.weight").value()->shape, (std::vector<std::int64_t>{512, 128, 128}));
  EXPECT_EQ(model->require("blk.0.attn_q_b.weight").value()->shape, (std::vector<std::int64_t>{1536, 128 * 192}));
  EXPECT_NE(model->find("blk.2.ffn_gate.weight"), nullptr);
  EXPECT_NE(model->find("blk.3.exp_probs_b.bias"), nullptr);
  EXPECT_EQ(model->get_int("deepseek2.expert_group_count").value(), 8);
  EXPECT_NE(run(path("x.gguf") + " --arch deepseek2" + small), 0);
  EXPECT_NE(log().find("--preset"), std::string::npos);
}

TEST_F(SynthModel, SplitsAndRefuses) {
  ASSERT_EQ(run(path("m.gguf") + kSmall + " --split 1M"), 0) << log();
  const auto model = Model::open(path("m-00001-of-00004.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message() << log();
  EXPECT_NE(run(path("x.gguf") + " --dtype Q9"), 0);
  EXPECT_NE(log().find("Q9"), std::string::npos);
  EXPECT_NE(run(path("x.gguf") + " --preset none"), 0);
  EXPECT_NE(log().find("tinyllama-1.1b"), std::string::npos);
  EXPECT_NE(run(path("x.gguf") + " --heads 6 --kv-heads 4"), 0);
  EXPECT_NE(log().find("--kv-heads"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("x.gguf")));
}

}  // namespace
}  // namespace millrace::modelfile
