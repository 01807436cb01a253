// Control vectors: what a model answers with one is what one answers that has it in the bias of a layer's last product.
#include "model/control_vector.h"

#include <gtest/gtest.h>

#include "engine/adapted_files.h"
#include "engine/control_files.h"
#include "engine/reference.h"

namespace millrace::engine {
namespace {

using namespace test;

using Floats = std::vector<float>;

EngineOptions steered(const std::string& model, const std::string& control) {
  EngineOptions options = roomy(model);
  options.device.choice = DeviceChoice::cpu;
  options.model.control = control;
  return options;
}

std::vector<TokenId> prompt_of(const std::string& name) {
  return read_references(MILLRACE_TEST_DATA "/reference/" + name + ".bin").front().tokens;
}

/// Of the prompt and of three tokens behind it.
Floats logits_of(const EngineOptions& options, const std::vector<TokenId>& prompt) {
  Floats logits;
  const auto engine = make(options);
  if (engine == nullptr) return logits;
  Request request = greedy(prompt, 4);
  request.ignore_end_tokens = true;
  keep_logits(request, logits);
  EXPECT_TRUE(engine->submit(std::move(request)).ok());
  drain(*engine);
  return logits;
}

TEST(ControlVectors, AnswerAsLlamaCpp) {
  for (const char* name : {"gemma4", "gpt2", "llama3", "qwen3moe"}) {
    SCOPED_TRACE(name);
    const std::string model = reference(name);
    const FreshFile vector("witnessed");
    ASSERT_TRUE(write_witnessed(model, vector.path()).ok());
    const Steering control(model, {{{vector.path()}}, 1, 1000});
    EngineOptions options = steered(model, control.path());
    options.kv.dtype = DType::f32;
    const Agreement found = agreement(options, MILLRACE_TEST_DATA "/reference/" + std::string(name) + "-steered.bin");
    EXPECT_LE(found.relative_l2, 2e-3);
    EXPECT_EQ(found.same_argmax, 1);
  }
}

TEST(ControlVectors, AreAddedBehindTheirLayers) {
  for (const char* name : {"gpt2", "starcoder"}) {
    const std::string model = reference(name);
    const ControlFile vector(model);
    const std::vector<TokenId> prompt = prompt_of(name);
    const Floats base = logits_of(steered(model, ""), prompt);
    for (std::int64_t layer = 1; layer < number_of(model, "block_count"); ++layer) {
      SCOPED_TRACE(fmt::format("{}, layer {}", name, layer));
      const FreshFile shifted("shifted");
      ASSERT_TRUE(
          write_shifted(model, fmt::format("blk.{}.ffn_down.bias", layer), vector.direction(layer), shifted.path())
              .ok());
      const Steering control(model, {{{vector.path()}}, layer, layer});
      const Floats with = logits_of(steered(model, control.path()), prompt);
      const double off = distance(with, logits_of(steered(shifted.path(), ""), prompt));
      std::printf("relative L2 %.2e of a bias, %.2e of none\n", off, distance(with, base));
      EXPECT_LE(off, 1e-4);
      EXPECT_GE(distance(with, base), 1e-2);
    }
  }
}

TEST(ControlVectors, AddUp) {
  const std::string model = reference("gemma3");
  const ControlFile one(model, 1), other(model, 2);
  const std::vector<TokenId> prompt = prompt_of("gemma3");
  const Steering none(model, {{{one.path(), 0}}}), twice(model, {{{one.path(), 0.5F}, {one.path(), 0.5F}}}),
      once(model, {{{one.path()}}}), both(model, {{{one.path()}, {other.path(), -1}}}),
      later(model, {{{one.path()}}, 2, 100});
  const Floats base = logits_of(steered(model, ""), prompt);
  EXPECT_EQ(logits_of(steered(model, none.path()), prompt), base);
  const Floats with = logits_of(steered(model, once.path()), prompt);
  EXPECT_EQ(logits_of(steered(model, twice.path()), prompt), with);
  EXPECT_GE(distance(with, base), 1e-2);
  EXPECT_GE(distance(logits_of(steered(model, both.path()), prompt), with), 1e-2);
  EXPECT_GE(distance(logits_of(steered(model, later.path()), prompt), with), 1e-3);
}

/// Every architecture with one stream: directions come with their layers, wherever these lie, and change every row.
class Steered : public testing::TestWithParam<Checkpoint> {};

TEST_P(Steered, AnswersAlikeWhereverItsWeightsAre) {
  const std::string model = GetParam().model();
  if (layers_of(model) < 2) GTEST_SKIP() << "the model has the first layer alone, which has no direction";
  const ControlFile vector(model);
  const Steering control(model, {{{vector.path()}}});
  EngineOptions options = steered(model, control.path());
  options.demand.context_tokens = GetParam().context;
  options.kv.dtype = GetParam().kv;
  const std::vector<TokenId> prompt = read_references(GetParam().logits()).front().tokens;
  if (const std::string name = GetParam().name; name == "gemma3n" || name == "deepseek-v4" || name == "qwen4exp") {
    const Status refused = Engine::create(options).status();
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_NE(refused.message().find("stream"), std::string::npos) << refused.message();
    return;
  }
  const Floats with = logits_of(options, prompt);
  EngineOptions bare = options;
  bare.model.control.clear();
  EXPECT_GE(distance(with, logits_of(bare, prompt)), 1e-2);
  EngineOptions pieces = options;
  pieces.demand.batch_tokens = 7;
  EXPECT_EQ(logits_of(pieces, prompt), with);
  options.memory.tile_bytes = 4096;
  options.memory.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = named_ram(Engine::create(options).status().message());
  ASSERT_TRUE(smallest.has_value());
  options.memory.ram_bytes = *smallest;
  EXPECT_EQ(logits_of(options, prompt), with);
}

INSTANTIATE_TEST_SUITE_P(Reference, Steered, testing::ValuesIn(kCheckpoints),
                         [](const testing::TestParamInfo<Checkpoint>& info) {
                           return test_name({{info.param, kPlaces[0]}, info.index});
                         });

TEST(ControlVectorFiles, AreHeldToTheModel) {
  const std::string model = reference("gemma3");
  const auto base = modelfile::Model::open(model);
  ASSERT_TRUE(base.ok());
  const auto dim = static_cast<std::size_t>(number_of(model, "embedding_length"));
  const std::int64_t layers = number_of(model, "block_count");
  const FreshFile out("out");
  const auto refused = [&](const model::ControlOptions& options, Code code, const std::string& says) {
    const Status status = model::write_control(*base, options, out.path()).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    EXPECT_FALSE(std::filesystem::exists(out.path()));
  };
  const Floats good(dim, 1.0F), nan(dim, NAN);
  struct Case {
    std::map<std::string, Floats> vectors;
    Code code;
    std::string says;
  };
  for (const Case& one : {Case{{{"direction.1", Floats(dim + 1)}}, Code::invalid_argument, "another model's"},
                          Case{{{"direction.0", good}}, Code::invalid_argument, "direction.0"},
                          Case{{{fmt::format("direction.{}", layers), good}}, Code::invalid_argument, "layers 1 to"},
                          Case{{{"direction.1x", good}}, Code::unsupported, "direction.1x"},
                          Case{{{"direction.1", nan}}, Code::corrupt, "finite"}}) {
    const FreshFile file("wrong");
    ASSERT_TRUE(write_vectors(file.path(), one.vectors).ok());
    refused({{{file.path()}}}, one.code, one.says);
  }
  const FreshFile file("first");
  ASSERT_TRUE(write_vectors(file.path(), {{"direction.1", good}}).ok());
  refused({{{file.path()}}, 2, layers - 1}, Code::invalid_argument, "no directions");
  refused({{{file.path()}}, layers, -1}, Code::invalid_argument, "no layers");
  refused({{{file.path(), NAN}}}, Code::invalid_argument, "no number");
  refused({{{model}}}, Code::unsupported, "direction.N");
  refused({{{"/nowhere.gguf"}}}, Code::not_found, "nowhere");
  const auto report = model::write_control(*base, {{{file.path()}}}, out.path());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->layers, 1);
  EXPECT_EQ(report->last_layer, 1);
}

}  // namespace
}  // namespace millrace::engine
