// Which launches a GPU's passes are made of; no GPU needed.
#include "exec/fusion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "exec/small_model.h"
#include "model/model.h"
#include "residency/plan.h"

namespace millrace::exec::test {
namespace {

/// "norm:q8 product gated:floats,q8 product+": + where the result is added to the residual stream, and what a launch
/// leaves behind where that is not floats alone.
std::string text(const std::vector<Launch>& block) {
  std::vector<std::string> words;
  for (const Launch& launch : block) {
    std::string word(name(launch.kind));
    std::replace(word.begin(), word.end(), ' ', '-');
    if (launch.gathers) word += "-for-all";
    if (launch.adds) word += '+';
    std::vector<std::string> forms;
    if (launch.leaves.floats) forms.emplace_back("floats");
    if (launch.leaves.q8) forms.emplace_back("q8");
    if (launch.leaves.bf16) forms.emplace_back("bf16");
    if (forms != std::vector<std::string>{"floats"}) word += fmt::format(":{}", fmt::join(forms, ","));
    words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

Launches fused(const Program& program, const residency::UnitTable& units, const FuseOptions& options) {
  const Expected<Launches> launches = fuse(program, units, options);
  EXPECT_TRUE(launches.ok()) << launches.status().message();
  return launches.ok() ? *launches : Launches();
}

/// Every step is of one launch, in order, within its block.
void expect_covers(const Program& program, const Launches& launches) {
  ASSERT_EQ(launches.size(), program.blocks.size());
  std::size_t next = 0;
  for (std::size_t b = 0; b < launches.size(); ++b) {
    EXPECT_EQ(next, program.blocks[b]);
    for (const Launch& launch : launches[b]) {
      EXPECT_EQ(launch.first, next);
      EXPECT_GT(launch.end, launch.first);
      next = launch.end;
    }
    EXPECT_EQ(next, program.block_end(program.blocks[b]));
  }
  EXPECT_EQ(next, program.steps.size());
}

std::unique_ptr<model::Model> load(const std::string& fixture) {
  Expected<modelfile::Model> file = modelfile::Model::open(MILLRACE_TEST_DATA "/reference/" + fixture + ".gguf");
  EXPECT_TRUE(file.ok()) << fixture << ": " << file.status().message();
  Expected<std::unique_ptr<model::Model>> loaded = model::load(*file, {});
  EXPECT_TRUE(loaded.ok()) << fixture << ": " << loaded.status().message();
  return std::move(*loaded);
}

struct Known {
  const char* fixture;
  std::vector<std::string> blocks;  // of layers, those that differ, in the order of their coming
  const char* embeds = "embed";     // before them
};
const std::vector<Known>& architectures() {
  static const std::vector<Known> all{
      {"deepseek-v3",
       {"norm product norm product latent head-product attention head-product product+", "norm gated product+",
        "norm experts+"}},
      {"bailingmoe3",
       {"norm product product time-step convolution convolution convolution l2-norm delta-rule heads'-norm "
        "sigmoid-gate product+",
        "norm gated product+", "norm product latent head-product attention head-product sigmoid-gate product+",
        "norm experts+"}},
      {"deepseek-v3.2",
       {"norm product norm product latent product product index keys'-choice head-product attention head-product "
        "product+",
        "norm gated product+", "norm experts+"}},
      {"glm-dsa",
       {"norm product norm product latent product product index keys'-choice head-product attention head-product "
        "product+",
        "norm gated product+", "norm product norm product latent head-product attention head-product product+",
        "norm experts+"}},
      {"gemma3", {"norm product heads attention product norm add", "norm gated product norm add"}},
      {"gemma4-moe",
       {"norm product heads attention product norm add",
        "norm gated product norm norm scale norm experts norm add norm add scale",
        "norm product copy heads attention product norm add"}},
      {"glm4moe", {"norm product heads attention product+", "norm gated product+", "norm experts+"}},
      {"gpt-oss", {"norm product heads attention product+", "norm:floats,q8 experts+"}},
      {"granite", {"norm product heads attention product add", "norm gated product add"}},
      {"granitehybrid",
       {"norm product time-step convolution scan gate heads'-norm product add", "norm experts add",
        "norm product heads attention product add"}},
      {"falcon-h1",
       {"norm product heads attention product product time-step convolution scan gate product add add",
        "norm gated product+"}},
      {"lfm2",
       {"norm product multiply convolution multiply product+", "norm gated product+",
        "norm product heads attention product+"}},
      {"lfm2moe",
       {"norm product multiply convolution multiply product+", "norm gated product+",
        "norm product heads attention product+", "norm experts+"}},
      {"llama", {"norm product heads attention product+", "norm gated product+"}},
      {"mamba2", {"norm product time-step convolution scan gate heads'-norm product+"}},
      {"minimax-m2", {"norm product norm norm heads attention product+", "norm experts+"}},
      {"mistral3", {"norm product temper heads attention product+", "norm gated product+"}},
      {"nemotron-h",
       {"norm product time-step convolution scan gate heads'-norm product+", "norm product activation product+",
        "norm product heads attention product+"}},
      {"nemotron-h-moe",
       {"norm product time-step convolution scan gate heads'-norm product+", "norm product activation product experts+",
        "norm product heads attention product+"}},
      {"plamo3", {"norm product heads attention product norm add", "norm gated product norm add"}},
      {"phi3", {"norm product heads attention product+", "norm gated product+"}},
      {"qwen2", {"norm product heads attention product+", "norm gated product+"}},
      {"qwen3", {"norm product heads attention product+", "norm gated product+"}},
      {"qwen3moe", {"norm product heads attention product+", "norm experts+"}},
      {"qwen35",
       {"norm product delta-net product+", "norm gated product+",
        "norm product pick heads attention sigmoid-gate product+"}},
      {"qwen35moe",
       {"norm product delta-net product+", "norm experts+", "norm product pick heads attention sigmoid-gate product+"}},
      {"qwen3next",
       {"norm product pick delta-net product+", "norm experts+",
        "norm product pick heads attention sigmoid-gate product+"}},
      {"mistral4",
       {"norm product norm product temper latent head-product attention head-product product+", "norm gated product+",
        "norm experts+"}},
      {"kimi-linear",
       {"norm product product product product time-step convolution convolution convolution l2-norm delta-rule "
        "heads'-norm sigmoid-gate product+",
        "norm gated product+", "norm product latent head-product attention head-product product+", "norm experts+"}},
      {"apertus", {"norm product heads attention product+", "norm product activation product+"}},
      {"arcee", {"norm product heads attention product+", "norm product activation product+"}},
      {"baichuan", {"norm product heads attention product+", "norm gated product+"}},
      {"bailingmoe", {"norm product heads attention product+", "norm gated product experts+"}},
      {"bailingmoe2", {"norm product heads attention product+", "norm gated product+", "norm experts+"}},
      {"chatglm", {"norm product heads attention product+", "norm gated product+"}},
      {"deepseek", {"norm product heads attention product+", "norm gated product+", "norm gated product experts+"}},
      {"dots1", {"norm product heads attention product+", "norm gated product+", "norm experts+"}},
      {"ernie4-5", {"norm product heads attention product+", "norm gated product+"}},
      {"ernie4-5-moe", {"norm product heads attention product+", "norm gated product+", "norm gated product experts+"}},
      {"exaone", {"norm product heads attention product+", "norm gated product+"}},
      {"gemma", {"norm product heads attention product+", "norm gated product+"}},
      {"gemma2", {"norm product heads attention product norm add", "norm gated product norm add"}},
      {"glm4", {"norm product heads attention product norm add", "norm gated product norm add"}},
      {"granitemoe", {"norm product heads attention product add", "norm experts add"}},
      {"hunyuan-dense", {"norm product turn turn heads attention product+", "norm gated product+"}},
      {"hunyuan-moe", {"norm product turn turn heads attention product+", "norm experts+"}},
      {"hy-v3", {"norm product heads attention product+", "norm gated product+", "norm experts+"}},
      {"internlm2", {"norm product heads attention product+", "norm gated product+"}},
      {"minicpm", {"norm product heads attention product add", "norm gated product add"}},
      {"minicpm3",
       {"norm product norm product latent head-product attention head-product product add", "norm gated product add"}},
      {"olmo2", {"copy product norm norm heads attention product norm add", "copy gated product norm add"}},
      {"olmoe", {"norm product norm norm heads attention product+", "norm experts+"}},
      {"pangu-embedded", {"norm product heads attention product+", "norm gated product+"}},
      {"qwen", {"norm product heads attention product+", "norm gated product+"}},
      {"qwen2moe", {"norm product heads attention product+", "norm gated product experts+"}},
      {"qwen2vl", {"norm product heads attention product+", "norm gated product+"}},
      {"qwen3vl", {"norm product heads attention product+", "norm gated product+ pictures", "norm gated product+"}},
      {"qwen3vlmoe", {"norm product heads attention product+", "norm experts+ pictures", "norm experts+"}},
      {"seed-oss", {"norm product heads attention product+", "norm gated product+"}},
      {"smollm3", {"norm product heads attention product+", "norm gated product+"}},
      {"xverse", {"norm product heads attention product+", "norm gated product+"}},
      {"afmoe",
       {"norm product heads attention sigmoid-gate product norm add", "norm gated product norm add",
        "norm experts norm add"}},
      {"cohere2", {"layer-norm product heads attention product gated product add add"}},
      {"cohere2moe",
       {"layer-norm product heads attention product gated product add add",
        "layer-norm product heads attention product+ experts scale add"}},
      {"command-r", {"layer-norm product heads attention product gated product add add"}},
      {"exaone4", {"copy product heads attention product norm add", "copy gated product norm add"}},
      {"exaone-moe", {"norm product heads attention product+", "norm gated product+", "norm experts+"}},
      {"nemotron", {"layer-norm product heads attention product+", "layer-norm product activation product+"}},
      {"orion", {"layer-norm product heads attention product+", "layer-norm gated product+"}},
      {"phi2", {"layer-norm product heads attention product product activation product add add"}},
      {"phimoe", {"layer-norm product heads attention product+", "layer-norm experts+"}},
      {"llama4",
       {"norm product turn turn heads'-norm heads'-norm heads attention product+", "norm gated product+",
        "norm gated product product largest copy sigmoid-gate experts+",
        "norm product temper heads attention product+"}},
      {"stablelm", {"layer-norm product heads attention product+", "layer-norm gated product+"}},
      {"starcoder2", {"layer-norm product heads attention product+", "layer-norm product activation product+"}},
      {"gpt2",
       {"layer-norm product heads attention product+", "layer-norm product activation product+"},
       "embed embed add"},
      {"starcoder",
       {"layer-norm product heads attention product+", "layer-norm product activation product+"},
       "embed embed add"},
      {"gptneox", {"layer-norm product heads attention product layer-norm product activation product add add"}},
      {"falcon", {"layer-norm product heads attention product product activation product add add"}},
      {"bloom",
       {"layer-norm product heads attention product+", "layer-norm product activation product+"},
       "embed layer-norm"},
      {"mpt", {"layer-norm product heads attention product+", "layer-norm product activation product+"}},
      {"jais2", {"layer-norm product heads attention product+", "layer-norm product activation product+"}},
      {"codeshell", {"layer-norm product heads attention product+", "layer-norm product activation product+"}},
      {"step35",
       {"norm product heads attention sigmoid-gate product+", "norm gated product+", "norm experts+",
        "norm gated product experts+"}},
  };
  return all;
}

/// Those that no launches are made of: with several residual streams, with gates by a softplus, or keys and values of
/// two sizes where the cache keeps them so.
constexpr const char* kRefused[] = {"deepseek-v4", "gemma3n", "jamba",      "laguna",
                                    "mamba",       "mimo2",   "minimax-m3", "qwen4exp"};

TEST(Fusion, OfEachArchitecture) {
  std::vector<std::string> seen;
  for (const Known& known : architectures()) {
    SCOPED_TRACE(known.fixture);
    const auto model = load(known.fixture);
    seen.push_back(model->hyperparameters().architecture);
    const Program program = model->program().of_passes(false);
    std::vector<std::string> blocks;
    for (const std::vector<Launch>& block : fused(program, model->units(), {}))
      if (std::find(blocks.begin(), blocks.end(), text(block)) == blocks.end()) blocks.push_back(text(block));
    std::vector<std::string> expected{known.embeds};
    expected.insert(expected.end(), known.blocks.begin(), known.blocks.end());
    const bool layer_norms = known.blocks[0].starts_with("layer-norm");
    expected.emplace_back(layer_norms ? "rows layer-norm logits" : "rows'-norm logits");
    EXPECT_EQ(blocks, expected);
    EXPECT_EQ(text(fused(model->program(), model->units(), {}).back()),
              layer_norms ? "rows layer-norm states layer-norm logits" : "rows norm states norm logits");
  }
  for (const char* fixture : kRefused) {
    const auto model = load(fixture);
    seen.push_back(model->hyperparameters().architecture);
    EXPECT_FALSE(fuse(model->program(), model->units(), {}).ok()) << fixture;
  }
  for (const char* fixture : {"../encoders/bert", "../encoders/eurobert", "../encoders/gemma-embedding",
                              "../encoders/jina-bert-v2", "../encoders/modern-bert", "../encoders/nomic-bert",
                              "../encoders/nomic-bert-moe", "../encoders/jina-bert-v3"}) {
    const auto model = load(fixture);
    seen.push_back(model->hyperparameters().architecture);
    EXPECT_FALSE(model->program().is_causal()) << fixture << ": the executor refuses it for that";
  }
  EXPECT_EQ(seen.size(), model::architectures().size());
  for (const std::string& name : model::architectures())
    EXPECT_NE(std::find(seen.begin(), seen.end(), name), seen.end()) << "no expectation for " << name;
}

/// A model of the first layers is a program like any: whole blocks of the others', over weights of those layers alone.
TEST(Fusion, OfTheFirstLayersAlone) {
  for (const Known& known : architectures()) {
    SCOPED_TRACE(known.fixture);
    const auto model = load(known.fixture);
    const Program& whole = model->program();
    const std::int64_t layers = model->hyperparameters().layers;
    ASSERT_EQ(whole.layer_count(), layers);
    EXPECT_EQ(whole.first_layers(layers).steps.size(), whole.steps.size());
    EXPECT_EQ(whole.first_layers(layers).blocks, whole.blocks);
    const Launches all = fused(whole, model->units(), {});
    for (std::int64_t count = 1; count < layers; ++count) {
      const Program front = whole.first_layers(count);
      EXPECT_TRUE(front.check().ok()) << front.check().message();
      EXPECT_EQ(front.layer_count(), count);
      EXPECT_EQ(front.of_passes(false).layer_count(), count);
      for (const WeightRef weight : front.weights()) {
        const residency::Unit& unit = model->units().units()[static_cast<std::size_t>(weight.unit)];
        EXPECT_TRUE(unit.by_rows || residency::in_front(unit, static_cast<int>(count))) << weight.unit;
      }
      const Launches launches = fused(front, model->units(), {});
      for (std::size_t b = 0; b + 1 < launches.size(); ++b) EXPECT_EQ(text(launches[b]), text(all[b])) << b;
      EXPECT_EQ(text(launches.back()), text(all.back()));
    }
  }
}

TEST(Fusion, OfPerLayerEmbeddings) {
  const auto model = load("gemma4");
  const Launches launches = fused(model->program(), model->units(), {});
  expect_covers(model->program(), launches);
  ASSERT_GT(launches.size(), 3u);
  EXPECT_EQ(text(launches[0]), "embed embed product scale heads'-norm add scale");
  EXPECT_EQ(text(launches[2]), "norm gated product norm add product gate product norm add scale");
}

TEST(Fusion, CoversEveryStepOnceInOrder) {
  for (const Known& known : architectures()) {
    const auto model = load(known.fixture);
    for (const bool hidden : {false, true}) {
      const Program program = model->program().of_passes(hidden);
      for (const bool neighbours : {false, true}) {
        for (const bool prompt : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{}: states {}, neighbours {}, prompt {}", known.fixture, hidden, neighbours, prompt));
          const Launches launches = fused(program, model->units(), {neighbours, prompt, {}});
          expect_covers(program, launches);
          if (neighbours) continue;
          for (const std::vector<Launch>& block : launches)
            for (const Launch& launch : block) {
              EXPECT_TRUE(launch.kind == Launch::Kind::heads || launch.kind == Launch::Kind::latent ||
                          launch.kind == Launch::Kind::index || launch.end == launch.first + 1);
              EXPECT_FALSE(launch.adds);
            }
        }
      }
    }
  }
}

TEST(Fusion, ALaunchLeavesWhatLaterProductsRead) {
  SmallShape small;
  small.layers = 1;
  const auto blocks = [&](const FuseOptions& options) {
    const SmallModel model(small);
    const Program program = model.program().of_passes(false);
    const Launches launches = fused(program, model.units(), options);
    expect_covers(program, launches);
    std::vector<std::string> texts;
    for (const std::vector<Launch>& block : launches) texts.push_back(text(block));
    return texts;
  };
  using Texts = std::vector<std::string>;
  const FuseOptions prompt{true, true, {}}, off{false, false, {}};
  EXPECT_EQ(blocks({}),
            (Texts{"embed", "norm product heads attention product+", "norm gated product+", "rows'-norm logits"}));
  EXPECT_EQ(blocks(prompt), blocks({})) << "weights in floats read floats, whose ever the rows are";
  small.dtype = DType::q8_0;
  EXPECT_EQ(blocks({}), (Texts{"embed", "norm:q8 product heads attention:q8 product+", "norm:q8 gated:q8 product+",
                               "rows'-norm:q8 logits"}));
  // Attention writes no bfloat16; rows that want logits are no prompt's.
  EXPECT_EQ(blocks(prompt), (Texts{"embed", "norm:bf16 product heads attention product+",
                                   "norm:bf16 gated:bf16 product+", "rows'-norm:q8 logits"}));
  EXPECT_EQ(blocks(off), (Texts{"embed", "norm product heads attention:q8 product add", "norm gate-and-up product add",
                                "rows norm logits"}));
  small.experts = 4;  // the router's weights are floats
  EXPECT_EQ(blocks({})[2], "norm:floats,q8 experts+");
  EXPECT_EQ(blocks(prompt)[2], "norm:floats,q8 experts+") << "experts have one class of products";
}

TEST(Fusion, WhatTheProcessorComputesIsHandedOutInFloats) {
  SmallShape small;
  small.layers = 1;
  small.dtype = DType::q8_0;
  const SmallModel model(small);
  const Program program = model.program().of_passes(false);
  const auto blocks = [&](const std::function<std::int64_t(WeightRef)>& host_rows) {
    const Launches launches = fused(program, model.units(), {true, false, host_rows});
    expect_covers(program, launches);
    return std::vector<std::string>{text(launches[1]), text(launches[2])};
  };
  const auto half = [&](WeightRef ref) { return ref.unit == 1 ? model.units().part(ref).rows / 2 : 0; };
  EXPECT_EQ(blocks(half), (std::vector<std::string>{"norm:floats,q8 product heads attention:floats,q8 product+",
                                                    "norm:floats,q8 gated product+"}))
      << "of the gated product's columns some are the processor's, so none are quantized yet";
}

/// A program by hand, behind an embedding in x; the weights are of unit 0.
class ByHand : public ::testing::Test {
 protected:
  ByHand() {
    residency::Unit unit;
    for (const DType dtype : {DType::f32, DType::q8_0, DType::q8_0, DType::q4_k})
      unit.parts.push_back({"", dtype, 256, 256, 0, 0});
    units_.add(std::move(unit));
    const kv::LayerKv kept{kv::Keeps::attention, 1, 256, 256, 0};
    ops.keep(kv::Layout(std::span(&kept, 1)));
    ops.add_rope({std::vector<float>(128), 256, false, 1});
    ops.embed(x, norm);
    ops.begin_block();
    ops.rms_norm(h, x, norm, 0);
  }

  /// The launches behind those steps.
  std::string launches(const FuseOptions& options = {}) const {
    const Expected<Program> program = ops.finish();
    EXPECT_TRUE(program.ok()) << program.status().message();
    const Expected<Launches> launches = fuse(*program, units_, options);
    if (!launches.ok()) return launches.status().message();
    expect_covers(*program, *launches);
    return text({(*launches)[1].begin() + 1, (*launches)[1].end()});
  }

  residency::UnitTable units_;
  Ops ops;
  const Act x = ops.buffer("x", 256, Rows::whole), h = ops.buffer("h", 256), y = ops.buffer("y", 256),
            q = ops.buffer("q", 256), k = ops.buffer("k", 256), v = ops.buffer("v", 256);
  const WeightRef norm{0, 0}, matrix{0, 1}, other{0, 2}, of_another_dtype{0, 3};
};

TEST_F(ByHand, AProductIsAddedAtOnceWhereNothingElseReadsIt) {
  ops.matmul(y, matrix, h);
  ops.add(x, y);
  EXPECT_EQ(launches(), "product+");
}
TEST_F(ByHand, AProductThatIsReadOnceMoreIsAddedBehindIt) {
  ops.matmul(y, matrix, h);
  ops.add(x, y);
  ops.matmul(h, other, y);
  ops.add(x, h);
  EXPECT_EQ(launches(), "product add product+");
}
TEST_F(ByHand, AProductThatIsAddedInPartIsAddedBehindIt) {
  ops.matmul(y, matrix, h);
  ops.add(x, y, 0.5f);
  EXPECT_EQ(launches(), "product add");
}
TEST_F(ByHand, ProductsOfOneInputAreOneUpToFour) {
  const Product three[] = {{y, matrix, {}}, {q, other, {}}, {k, norm, {}}};
  ops.matmul(three, h);
  ops.matmul(v, of_another_dtype, h);
  EXPECT_EQ(launches(), "product");
  EXPECT_EQ(launches({true, false, [](WeightRef) { return 1; }}), "product product") << "the processor shares them";
  const Product two[] = {{y, matrix, {}}, {q, other, {}}};
  ops.matmul(two, h);
  ops.matmul(three, h);
  EXPECT_EQ(launches(), "product product product") << "five are too many";
}
TEST_F(ByHand, ProductsThatReadWhatOnesBeforeWroteAreApart) {
  ops.matmul(h, matrix, h);
  ops.matmul(v, other, h);
  ops.matmul(y, other, v);
  ops.add(x, y);
  EXPECT_EQ(launches(), "product product product+");
}
TEST_F(ByHand, ProductsOfOneInputAreNotAddedAtOnce) {
  const Product two[] = {{y, matrix, {}}, {q, other, {}}};
  ops.matmul(two, h);
  ops.add(x, y);
  EXPECT_EQ(launches(), "product add");
}
TEST_F(ByHand, GateAndUpOfTwoDtypesAreApart) {
  ops.matmul_gated(y, matrix, other, h, kernels::Activation::silu);
  ops.matmul_gated(y, matrix, of_another_dtype, h, kernels::Activation::silu);
  EXPECT_EQ(launches(), "gated: gate-and-up") << "nothing reads the first";
}
TEST_F(ByHand, AdaptersStandBetweenAProductAndWhatComesOfIt) {
  ops.rms_norm(h, x, norm, 0);
  ops.matmul_gated(y, matrix, other, h, kernels::Activation::silu);
  ops.matmul(k, matrix, y);
  ops.add(x, k);
  EXPECT_EQ(launches(), "norm:q8 gated:q8 product+");
  FuseOptions options;
  const auto change = [&options](WeightRef changed, Adapted how) {
    options.adapted = [=](WeightRef ref) {
      return ref.unit == changed.unit && ref.part == changed.part ? how : Adapted::no;
    };
  };
  change(other, Adapted::behind);
  EXPECT_EQ(launches(options), "norm:floats,q8 gate-and-up product+") << "of the up alone";
  change(matrix, Adapted::behind);
  EXPECT_EQ(launches(options), "norm:floats,q8 gate-and-up product add") << "of the gate, and of what is added";
  change(matrix, Adapted::before);
  EXPECT_EQ(launches(options), "norm:floats,q8 gated:floats,q8 product+") << "made before: only floats are wanted";
  options.prompt = true;
  change(matrix, Adapted::behind);
  EXPECT_EQ(launches(options), "norm:bf16 gate-and-up:bf16 product add") << "of a prompt: they read what products read";
}
TEST_F(ByHand, WhatAllDevicesNeedIsGatheredByTheProduct) {
  const Act all = ops.buffer("all", 512), sums = ops.buffer("sums", 256);
  const WeightRef wide{1, 0}, down{1, 1};
  residency::Unit unit;
  for (const std::int64_t cols : {512, 512}) unit.parts.push_back({"", DType::q8_0, 128, cols, 0, 0});
  units_.add(std::move(unit));
  ops.matmul_gated(y, matrix, other, h, kernels::Activation::silu);
  ops.gather(all, y, 0);
  const Act own = ops.buffer("own", 128);
  ops.matmul(own, down, all);
  ops.gather(sums, own, 128);
  ops.add(x, sums);
  const FuseOptions prompt{true, true, {}};
  EXPECT_EQ(launches(prompt), "gated-for-all:bf16 product-for-all+");
  EXPECT_EQ(launches(), "gated gather:q8 product gather+") << "few values are gathered faster";
  EXPECT_EQ(launches({true, true, [](WeightRef) { return 16; }}), "gated gather:floats,bf16 product gather+")
      << "the processor's columns come behind the product";
  EXPECT_EQ(launches({false, true, {}}), "gate-and-up gather product gather add");
  ops.matmul(v, matrix, own);
  EXPECT_EQ(launches(prompt), "gated-for-all:bf16 product gather+ product") << "the own columns are read, too";
  ops.matmul(own, wide, all);
  ops.gather(sums, own, 128);
  ops.matmul(k, matrix, sums);
  EXPECT_EQ(launches(prompt), "gated-for-all:bf16 product gather+ product product gather:bf16 product")
      << "a product stores floats alone";
}
TEST_F(ByHand, DevicesMeetBeforeTheyStoreWhatOthersMayRead) {
  const Act sums = ops.buffer("sums", 256), own = ops.buffer("own", 128);
  const WeightRef half{1, 0};
  residency::Unit unit;
  unit.parts.push_back({"", DType::q8_0, 128, 256, 0, 0});
  units_.add(std::move(unit));
  const auto meet_first = [&] {
    const Expected<Program> program = ops.finish();
    EXPECT_TRUE(program.ok()) << program.status().message();
    std::vector<bool> first;
    for (const std::vector<Launch>& block : fused(*program, units_, {}))
      for (const Launch& launch : block)
        if (launch.kind == Launch::Kind::gather) first.push_back(launch.meets_first);
    return first;
  };
  ops.matmul(own, half, h);
  ops.gather(sums, own, 0);
  ops.add(x, sums);
  EXPECT_EQ(meet_first(), std::vector{true}) << "the norm before reads x";
  ops.matmul(own, half, h);
  ops.gather(y, own, 0);
  EXPECT_EQ(meet_first(), (std::vector{true, false})) << "nothing has touched y since the gather before";
  ops.begin_block();
  ops.rms_norm(h, x, norm, 0);
  ops.matmul(own, half, h);
  ops.gather(sums, own, 0);
  ops.add(x, sums);
  EXPECT_EQ(meet_first(), (std::vector{true, false, true})) << "the norm of this block reads x";
}
TEST_F(ByHand, HeadsAreOneLaunchUpToTheStore) {
  const Product qkv[] = {{q, matrix, {}}, {k, other, {}}, {v, other, {}}};
  ops.matmul(qkv, h);
  ops.rms_norm_heads(v, {}, 256, 0);
  ops.rope(k, 1, 256, 0);
  ops.rms_norm_heads(q, norm, 256, 0);
  ops.rope(q, 1, 256, 0);
  ops.store_kv(0, k, v);
  ops.attention(h, q, 0, {1, 1, 256, 1, 0, {}});
  EXPECT_EQ(launches(), "product heads attention");
}
TEST_F(ByHand, HeadsOfQueriesAloneEndBeforeTheAttention) {
  ops.matmul(q, matrix, h);
  ops.rope(q, 1, 256, 0);
  ops.attention(h, q, 0, {1, 1, 256, 1, 0, {}});
  EXPECT_EQ(launches(), "product heads attention");
}
TEST_F(ByHand, HeadsThatNothingAttendsWithHaveANormOfTheirOwn) {
  ops.rms_norm_heads(h, norm, 64, 0);
  ops.gate(h, x, 0, kernels::Activation::gelu);
  EXPECT_EQ(launches(), "heads'-norm gate");
  ops.rms_norm_heads(h, {}, 64, 0);
  EXPECT_NE(launches().find("RoPE without attention"), std::string::npos) << launches();
}
TEST_F(ByHand, ANormOfHeadsAndTheGateOfItsResultAreOne) {
  ops.copy(q, h);
  ops.rms_norm_heads(q, norm, 256, 0);
  ops.gate(h, q, 0, kernels::Activation::silu);
  ops.matmul(y, matrix, h);
  EXPECT_EQ(launches(), "copy gated-norm:q8 product");
  ops.multiply(y, q);
  EXPECT_EQ(launches(), "copy heads'-norm gate product multiply") << "the norm's result is read once more";
}
TEST_F(ByHand, ANormThatIsReadLaterLeavesFloatsBesideAPromptsForm) {
  const FuseOptions prompt{true, true, {}};
  ops.rms_norm(q, x, norm, 0);
  ops.matmul(y, matrix, q);
  EXPECT_EQ(launches(prompt), "norm:bf16 product");
  ops.matmul(k, of_another_dtype, y);
  ops.matmul(v, other, q);
  EXPECT_EQ(launches(prompt), "norm:floats,bf16 product product product") << "its form may be gone by then";
}
TEST_F(ByHand, TwoPicksOfOneInputAreOne) {
  ops.pick_heads(q, h, 1, 256, 0);
  ops.pick_heads(k, h, 1, 256, 0);
  ops.pick_heads(v, q, 1, 256, 0);
  ops.pick_heads(y, q, 2, 128, 0);
  EXPECT_EQ(launches(), "pick pick pick") << "the last have other heads";
}
TEST_F(ByHand, AGateOfChannelsLeavesWhatIsRead) {
  ops.sigmoid_gate(h, x);
  ops.matmul(y, matrix, h);
  EXPECT_EQ(launches(), "sigmoid-gate:q8 product");
  ops.multiply(y, h);
  EXPECT_EQ(launches(), "sigmoid-gate:floats,q8 product multiply");
}

/// Behind an expert that all rows share, whose result is in y.
class MixtureByHand : public ByHand {
 protected:
  MixtureByHand() {
    ops.matmul(y, matrix, h);
    experts.count = experts.top_k = 1;
    experts.gate_part = 1, experts.up_part = 2, experts.down_part = 3;
  }
  void mix() { ops.moe(q, h, h, norm, 0, experts); }

  Experts experts;
  const Act by = ops.buffer("by", 1);
};

TEST_F(MixtureByHand, ASharedExpertIsAddedWithTheOthers) {
  mix();
  ops.add(q, y);
  ops.add(x, q);
  EXPECT_EQ(launches(), "product experts+");
}
TEST_F(MixtureByHand, ASharedExpertsGateIsMadeBesideTheRouter) {
  ops.matmul(by, norm, h);
  ops.sigmoid_gate(y, by);
  mix();
  ops.add(q, y);
  ops.add(x, q, 0.5f);
  EXPECT_EQ(launches(), "product experts add");
}
TEST_F(MixtureByHand, ASharedExpertOfAnotherShapeHasLaunchesOfItsOwn) {
  ops.matmul_gated(k, matrix, other, h, kernels::Activation::silu);
  ops.matmul(v, other, k);  // the experts' is of another dtype
  mix();
  ops.add(q, v);
  ops.add(x, q);
  EXPECT_EQ(launches(), "product gated:q8 product experts+");
}
TEST_F(MixtureByHand, ASharedExpertLikeTheOthersGoesWithThem) {
  ops.matmul_gated(k, matrix, other, h, kernels::Activation::silu);
  ops.matmul(v, of_another_dtype, k);
  ops.matmul(by, norm, h);
  ops.sigmoid_gate(v, by);
  mix();
  ops.add(q, v);
  ops.add(x, q);
  EXPECT_EQ(launches(), "product experts+");
  EXPECT_EQ(launches({true, true, {}}), "product gated:bf16 product experts+") << "a prompt's have another class";
  EXPECT_EQ(launches({true, false, {}, true}), "product gated:q8 product experts+") << "some are the processor's";
  ops.multiply(y, k);
  EXPECT_EQ(launches(), "product gated:floats,q8 product experts+ multiply");
}
TEST_F(MixtureByHand, AGateOfQuantizedWeightsIsMadeBefore) {
  ops.matmul(by, other, h);
  ops.sigmoid_gate(y, by);
  mix();
  ops.add(q, y);
  ops.add(x, q);
  EXPECT_EQ(launches(), "product experts+") << "with the product before";
}
TEST_F(MixtureByHand, WhatIsReadOnceMoreIsMadeBefore) {
  ops.matmul(by, norm, h);
  ops.sigmoid_gate(y, by);
  mix();
  ops.add(q, y);
  ops.add(x, q);
  ops.add(x, y);
  EXPECT_EQ(launches(), "product sigmoid-gate experts+ add");
}
TEST_F(MixtureByHand, AGateOfSomethingElseIsMadeBefore) {
  ops.copy(k, h);
  ops.matmul(by, norm, h);
  ops.sigmoid_gate(k, by);
  mix();
  ops.add(q, y);
  ops.add(x, q);
  EXPECT_EQ(launches(), "product copy product sigmoid-gate experts+");
}

TEST_F(ByHand, WhatNoKernelDoesIsRefused) {
  ops.rope(h, 1, 256, 0);
  EXPECT_NE(launches().find("step 2 of the program (rope): RoPE without attention"), std::string::npos) << launches();
}
TEST_F(ByHand, KeysThatAreNotRotatedAreStoredAlone) {
  ops.store_kv(0, h, h);
  EXPECT_EQ(launches(), "heads");
}
TEST_F(ByHand, KeysThatAreRotatedWithoutQueriesTurnWhereTheyLie) {
  ops.copy(v, h);
  ops.rope(h, 1, 256, 0);
  ops.store_kv(0, h, v);
  EXPECT_EQ(launches(), "copy turn heads");
}
TEST_F(ByHand, ValuesThatAreRotatedAreRefused) {
  ops.copy(v, h);
  ops.rope(v, 1, 256, 0);
  ops.rope(h, 1, 256, 0);
  ops.store_kv(0, h, v);
  EXPECT_NE(launches().find("values that are rotated"), std::string::npos) << launches();
}

}  // namespace
}  // namespace millrace::exec::test
