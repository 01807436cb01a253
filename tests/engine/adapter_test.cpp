// Adapters: what a model answers with some beside it is what one answers whose weights have them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/adapted_files.h"
#include "engine/reference.h"

namespace millrace::engine {
namespace {

using namespace test;

using Floats = std::vector<float>;

EngineOptions adapted(const std::string& model, const std::vector<std::string>& adapters) {
  EngineOptions options = roomy(model);
  options.device.choice = DeviceChoice::cpu;
  for (const std::string& path : adapters) options.model.adapters.push_back({path, "", 1, {}});
  return options;
}

/// Of each prompt all logits, all prompts in one engine, each `ways.size()` times, through the adapters that a way has.
std::vector<std::vector<Floats>> logits_of(const EngineOptions& options,
                                           const std::vector<std::vector<TokenId>>& prompts,
                                           const std::vector<std::optional<kv::AdapterMix>>& ways) {
  std::vector<std::vector<Floats>> all(prompts.size(), std::vector<Floats>(ways.size()));
  const auto engine = make(options);
  if (engine == nullptr) return all;
  for (std::size_t p = 0; p < prompts.size(); ++p)
    for (std::size_t w = 0; w < ways.size(); ++w) {
      Request request = greedy(prompts[p], 1);
      request.adapters = ways[w];
      keep_logits(request, all[p][w]);
      EXPECT_TRUE(engine->submit(std::move(request)).ok());
    }
  drain(*engine);
  return all;
}

std::vector<std::vector<TokenId>> prompts_of(const std::string& logits_path) {
  std::vector<std::vector<TokenId>> prompts;
  for (const Reference& one : read_references(logits_path)) prompts.push_back(one.tokens);
  return prompts;
}

/// Every architecture, every matrix that may have an adapter.
class Adapters : public testing::TestWithParam<Checkpoint> {
 protected:
  EngineOptions options(const std::string& model, const std::vector<std::string>& adapters) const {
    EngineOptions made = adapted(model, adapters);
    made.demand.context_tokens = GetParam().context;
    made.demand.max_sequences = 4;
    made.kv.dtype = GetParam().kv;
    return made;
  }
};

/// A head that is the embedding has no adapter of its own here.
std::function<bool(const std::string&)> without_tied(const std::string& model) {
  const auto file = modelfile::Model::open(model);
  const bool tied = file.ok() && file->find("output.weight") == nullptr;
  return [tied](const std::string& name) { return !tied || name != "token_embd.weight"; };
}

TEST_P(Adapters, AnswerAsMergedWeights) {
  const std::string model = GetParam().model();
  Adapting adapting;
  adapting.wants = without_tied(model);
  const AdaptedFiles files(model, adapting);
  EXPECT_GE(files.matrices(), 4);
  const auto prompts = prompts_of(GetParam().logits());
  const auto base = logits_of(options(model, {}), prompts, {std::nullopt});
  const auto merged = logits_of(options(files.merged(), {}), prompts, {std::nullopt});
  // With and without in the same passes, whole prompts and in pieces.
  EngineOptions pieces = options(model, {files.adapter()});
  const auto both = logits_of(pieces, prompts, {std::nullopt, kv::AdapterMix{}});
  pieces.demand.batch_tokens = 7;
  const auto cut = logits_of(pieces, prompts, {kv::AdapterMix{}, std::nullopt});
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    SCOPED_TRACE(p);
    const double off = distance(both[p][0], merged[p][0]), changed = distance(both[p][0], base[p][0]);
    std::printf("relative L2 %.2e of merged weights, %.2e of none\n", off, changed);
    EXPECT_LE(off, 2e-3);
    EXPECT_GE(changed, 2e-2);
    EXPECT_EQ(both[p][1], base[p][0]) << "a row without adapters has other bits beside one that has some";
    EXPECT_EQ(both[p][0], cut[p][1]);
    EXPECT_EQ(both[p][1], cut[p][0]);
  }
}

TEST_P(Adapters, StayInMemoryWhereTheModelDoesNot) {
  const std::string model = GetParam().model();
  Adapting adapting;
  adapting.wants = without_tied(model);
  const AdaptedFiles files(model, adapting);
  const auto prompts = prompts_of(GetParam().logits());
  EngineOptions options = this->options(model, {files.adapter()});
  const auto roomy = logits_of(options, {prompts.front()}, {std::nullopt});
  options.memory.tile_bytes = 4096;
  options.memory.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = named_ram(Engine::create(options).status().message());
  ASSERT_TRUE(smallest.has_value());
  options.memory.ram_bytes = *smallest;
  const auto streamed = logits_of(options, {prompts.front()}, {std::nullopt});
  EXPECT_EQ(roomy, streamed);
}

INSTANTIATE_TEST_SUITE_P(Reference, Adapters, testing::ValuesIn(kCheckpoints),
                         [](const testing::TestParamInfo<Checkpoint>& info) {
                           return test_name({{info.param, kPlaces[0]}, info.index});
                         });

TEST(AdapterTypes, AreWhatFilesHave) {
  const auto prompts = prompts_of(MILLRACE_TEST_DATA "/reference/llama3.bin");
  for (const DType dtype : {DType::f16, DType::bf16, DType::q8_0}) {
    SCOPED_TRACE(info(dtype).name);
    const AdaptedFiles files(
        reference("llama3"),
        {.rank = 32, .dtype = dtype, .alpha = 0, .scale = 0.5F, .wants = without_tied(reference("llama3"))});
    EngineOptions options = adapted(reference("llama3"), {files.adapter()});
    const kv::AdapterMix half{{0, 0.5F}};
    const auto with = logits_of(options, {prompts.front()}, {half});
    options.model.adapters.front().scale = 0.5F;
    const auto by_default = logits_of(options, {prompts.front()}, {std::nullopt});
    const auto merged = logits_of(adapted(files.merged(), {}), {prompts.front()}, {std::nullopt});
    EXPECT_LE(distance(with[0][0], merged[0][0]), 2e-3);
    EXPECT_EQ(with, by_default);
  }
}

/// Eight at once: two adapters, both, none, at several scales.
TEST(AdapterMixes, ShareAPassAndAnswerAsAlone) {
  for (const char* name : {"llama3", "qwen3moe", "gpt-oss-f16"}) {
    SCOPED_TRACE(name);
    const AdaptedFiles first(reference(name), {.seed = 2}), second(reference(name), {.seed = 3, .rank = 7});
    EngineOptions options = adapted(reference(name), {first.adapter(), second.adapter()});
    options.demand.max_sequences = 8;
    options.demand.context_tokens = 256;
    options.kv.share_prefixes = true;
    const std::vector<kv::AdapterMix> mixes = {{},        {{0, 1}}, {{1, 1}}, {{0, 0.5F}, {1, 0.5F}},
                                               {{0, -1}}, {{1, 2}}, {},       {{0, 1}, {1, 1}}};
    const auto tokens = prompts_of(MILLRACE_TEST_DATA "/reference/" +
                                   std::string(name == std::string("gpt-oss-f16") ? "gpt-oss" : name) + ".bin")
                            .front();
    const auto ask = [&](Engine& engine, const kv::AdapterMix& mix) {
      Request request = greedy(tokens, 24);
      request.ignore_end_tokens = true;
      request.adapters = mix;
      const auto id = engine.submit(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status().message();
      return *id;
    };
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    std::vector<Engine::Id> ids;
    for (const kv::AdapterMix& mix : mixes) ids.push_back(ask(*engine, mix));
    drain(*engine);
    std::vector<std::vector<TokenId>> together;
    for (const Engine::Id id : ids) together.push_back(engine->take(id).tokens);
    int different = 0;
    for (std::size_t i = 0; i < mixes.size(); ++i) {
      SCOPED_TRACE(i);
      options.kv.share_prefixes = false;
      const auto alone = make(options);
      const Engine::Id id = ask(*alone, mixes[i]);
      drain(*alone);
      EXPECT_EQ(together[i], alone->take(id).tokens);
      EXPECT_EQ(together[i].size(), 24u);
      different += together[i] != together[0] ? 1 : 0;
      // Again, from the KV that the first left: of no other mix.
      const Engine::Id again = ask(*engine, mixes[i]);
      drain(*engine);
      EXPECT_EQ(engine->take(again).tokens, together[i]);
    }
    EXPECT_GE(different, 4);
    EXPECT_GT(engine->load().shared_tokens, 0u);
  }
}

TEST(AdapterMixes, BelongToAConversation) {
  const AdaptedFiles files(reference("llama3"), {});
  const auto engine = make(adapted(reference("llama3"), {files.adapter()}));
  ASSERT_NE(engine, nullptr);
  const auto tokens = prompts_of(MILLRACE_TEST_DATA "/reference/llama3.bin").front();
  const auto session = engine->new_session();
  const auto ask = [&](const std::optional<kv::AdapterMix>& mix, Session* of) {
    Request request = greedy(tokens, 12);
    request.ignore_end_tokens = true;
    request.adapters = mix;
    return engine->run(std::move(request), of);
  };
  const Result plain = ask(kv::AdapterMix{}, session.get()), changed = ask(std::nullopt, session.get());
  EXPECT_EQ(changed.cached_tokens, 0) << "KV of another mix";
  EXPECT_NE(plain.tokens, changed.tokens);
  EXPECT_EQ(changed.tokens, ask(std::nullopt, nullptr).tokens);
  EXPECT_GT(ask(std::nullopt, session.get()).cached_tokens, 0);

  EXPECT_TRUE(engine->set_adapter_scales({}).ok());
  EXPECT_EQ(engine->adapters().front().scale, 0);
  EXPECT_EQ(ask(std::nullopt, nullptr).tokens, plain.tokens);
  EXPECT_TRUE(engine->set_adapter_scales({{0, 1}}).ok());
  EXPECT_EQ(ask(std::nullopt, nullptr).tokens, changed.tokens);
}

TEST(AdapterMixes, AreRefusedWhereTheyCannotBe) {
  const AdaptedFiles files(reference("llama3"), {});
  const auto engine = make(adapted(reference("llama3"), {files.adapter()}));
  ASSERT_NE(engine, nullptr);
  for (const kv::AdapterMix& mix : {kv::AdapterMix{{1, 1}}, kv::AdapterMix{{-1, 1}}, kv::AdapterMix{{0, 1}, {0, 1}},
                                    kv::AdapterMix{{0, std::nanf("")}}, kv::AdapterMix{{0, INFINITY}}}) {
    Request request = greedy({1, 2, 3}, 1);
    request.adapters = mix;
    EXPECT_EQ(engine->submit(std::move(request)).status().code(), Code::invalid_argument);
    EXPECT_EQ(engine->set_adapter_scales(mix).code(), Code::invalid_argument);
  }
}

/// What the message of an adapter that cannot be used has to name.
struct Damage {
  const char* name;
  Adapting adapting;
  Code code;
  std::string says;
};

TEST(AdapterFiles, AreRefusedInWords) {
  using modelfile::Value;
  const Damage damages[] = {
      {"another architecture",
       {.keys = {{"general.architecture", Value(std::string("qwen2"))}}},
       Code::invalid_argument,
       "'qwen2'"},
      {"no adapter", {.keys = {{"general.type", Value(std::string("model"))}}}, Code::unsupported, "general.type"},
      {"another kind", {.keys = {{"adapter.type", Value(std::string("ia3"))}}}, Code::unsupported, "'ia3'"},
      {"behind tokens",
       {.keys = {{"adapter.alora.invocation_tokens", Value(std::uint32_t{1})}}},
       Code::unsupported,
       "aLoRA"},
      {"half is missing", {.leave_out = "blk.0.attn_q.weight.lora_b"}, Code::corrupt, "blk.0.attn_q.weight"},
      {"no half", {.rename_to = "blk.0.attn_q.weight.lora_c"}, Code::unsupported, "blk.0.attn_q.weight.lora_c"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    const AdaptedFiles files(reference("llama3"), damage.adapting);
    const auto engine = Engine::create(adapted(reference("llama3"), {files.adapter()}));
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), damage.code) << engine.status().message();
    EXPECT_NE(engine.status().message().find(damage.says), std::string::npos) << engine.status().message();
  }
  // Of a model of the same architecture and other shapes.
  const AdaptedFiles other(reference("mistral-nemo"), {});
  const auto engine = Engine::create(adapted(reference("llama"), {other.adapter()}));
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), Code::invalid_argument) << engine.status().message();
  // The same twice.
  const AdaptedFiles files(reference("llama3"), {});
  EXPECT_EQ(Engine::create(adapted(reference("llama3"), {files.adapter(), files.adapter()})).status().code(),
            Code::invalid_argument);
  // Where it is not computed.
  EngineOptions on_gpus = adapted(reference("llama3"), {files.adapter()});
  on_gpus.device.choice = DeviceChoice::cuda;
  on_gpus.device.gpus_beside = {1};
  EXPECT_EQ(Engine::create(on_gpus).status().code(), Code::unsupported);
  // A model is no adapter.
  EXPECT_EQ(Engine::create(adapted(reference("llama3"), {reference("llama3")})).status().code(), Code::unsupported);
}

}  // namespace
}  // namespace millrace::engine
