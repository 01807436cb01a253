// Adapters on a GPU: what a model answers with some beside it is what one answers whose weights have them.
#include "cuda_engine/on_gpu.h"
#include "engine/adapted_files.h"
#include "engine/reference.h"

namespace millrace::engine {
namespace {

using namespace test;

using Floats = std::vector<float>;

/// Matrices whose adapters a GPU computes: not those of routers, experts, and heads of latents, nor the embedding.
bool is_for_gpu(const std::string& name) {
  for (const char* other : {"_exps", "ffn_gate_inp", "token_embd", "_k_b", "_v_b", "_kv_b"})
    if (name.find(other) != name.npos) return false;
  return true;
}

std::vector<TokenId> prompt_of(const std::string& name) {
  return read_references(MILLRACE_TEST_DATA "/reference/" + name + ".bin").front().tokens;
}

class AdaptersOnGpu : public OnGpu, public testing::WithParamInterface<const char*> {
 protected:
  static EngineOptions on_gpu(const std::string& model, const std::vector<std::string>& adapters) {
    EngineOptions options;
    options.model.path = model;
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 2;
    options.demand.context_tokens = 256;
    options.demand.max_sequences = 4;
    for (const std::string& path : adapters) options.model.adapters.push_back({path, "", 1, {}});
    return options;
  }
  static bool is_mixture(const std::string& name) { return name.find("moe") != name.npos; }
  /// Of the prompt and four tokens behind it, decoded, through each of the ways, all in one engine.
  static std::vector<Floats> logits_by(const EngineOptions& options, const std::vector<TokenId>& prompt,
                                       const std::vector<std::optional<kv::AdapterMix>>& ways) {
    std::vector<Floats> all(ways.size());
    const auto engine = make(options);
    if (engine == nullptr) return all;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      Request request = greedy(prompt, 4);
      request.ignore_end_tokens = true;
      request.adapters = ways[w];
      keep_logits(request, all[w]);
      EXPECT_TRUE(engine->submit(std::move(request)).ok());
    }
    drain(*engine);
    return all;
  }
};

TEST_P(AdaptersOnGpu, AnswerAsMergedWeights) {
  const std::string model = reference(GetParam());
  const AdaptedFiles files(model, {.wants = is_for_gpu});
  ASSERT_GE(files.matrices(), 4);
  const auto prompt = prompt_of(GetParam());
  const Floats base = logits_by(on_gpu(model, {}), prompt, {std::nullopt})[0];
  const Floats merged = logits_by(on_gpu(files.merged(), {}), prompt, {std::nullopt})[0];
  EngineOptions options = on_gpu(model, {files.adapter()});
  const auto both = logits_by(options, prompt, {std::nullopt, kv::AdapterMix{}});
  const double off = distance(both[0], merged), changed = distance(both[0], base);
  std::printf("relative L2 %.2e of merged weights, %.2e of none\n", off, changed);
  EXPECT_LE(off, 3e-3);
  EXPECT_GE(changed, 2e-2);
  expect_same_bits(both[1], base);  // beside rows that go through one
  {
    SCOPED_TRACE("in pieces");
    EngineOptions pieces = options;
    pieces.demand.batch_tokens = 7;
    const auto cut = logits_by(pieces, prompt, {kv::AdapterMix{}, std::nullopt});
    expect_same_bits(cut[0], both[1]);
    expect_same_bits(cut[1], both[0]);
  }
  {
    SCOPED_TRACE("a launch a step, and no recorded passes");
    EngineOptions plain = options;
    plain.device.fuse = plain.device.graphs = false;
    expect_same_bits(logits_by(plain, prompt, {std::nullopt})[0], both[0]);
  }
  {
    SCOPED_TRACE("weights from RAM");
    EngineOptions streamed = options;
    if (is_mixture(GetParam()))
      streamed.experts.vram_slots = 2;
    else
      streamed.memory.pins = *parse_pins("0-=ram");
    const auto got = logits_by(streamed, prompt, {std::nullopt, kv::AdapterMix{}});
    expect_same_bits(got[0], both[0]);
    expect_same_bits(got[1], base);
    if (is_mixture(GetParam())) return;
    streamed.memory.cpu_share_percent = 50;
    const auto shared = logits_by(streamed, prompt, {std::nullopt, kv::AdapterMix{}});
    expect_same_bits(shared[0], both[0]);
    expect_same_bits(shared[1], base);
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, AdaptersOnGpu,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "gemma3", "mistral-nemo", "qwen3moe",
                                         "qwen2moe", "qwen35", "granite"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class AdapterMixesOnGpu : public AdaptersOnGpu {};

/// Several at once: two adapters, both, none, at several scales.
TEST_F(AdapterMixesOnGpu, ShareAPassAndAnswerAsAlone) {
  const auto wants_few = [](const std::string& name) { return name.find("attn_q") != name.npos; };
  const AdaptedFiles first(reference("llama3"), {.seed = 2, .wants = is_for_gpu}),
      second(reference("llama3"), {.seed = 3, .rank = 7, .wants = wants_few});
  EngineOptions options = on_gpu(reference("llama3"), {first.adapter(), second.adapter()});
  options.demand.max_sequences = 8;
  const std::vector<std::optional<kv::AdapterMix>> mixes = {kv::AdapterMix{},
                                                            kv::AdapterMix{{0, 1}},
                                                            kv::AdapterMix{{1, 1}},
                                                            kv::AdapterMix{{0, 0.5F}, {1, 0.5F}},
                                                            kv::AdapterMix{{0, -1}},
                                                            kv::AdapterMix{{1, 2}},
                                                            std::nullopt};
  const auto prompt = prompt_of("llama3");
  const auto together = logits_by(options, prompt, mixes);
  int different = 0;
  for (std::size_t i = 0; i < mixes.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_bits(logits_by(options, prompt, {mixes[i]})[0], together[i]);
    different += together[i] != together[0] ? 1 : 0;
  }
  EXPECT_EQ(different, 6);
}

TEST_F(AdapterMixesOnGpu, TakeVramAsThePlanSays) {
  const AdaptedFiles files(reference("llama3"), {.rank = 64, .wants = is_for_gpu});
  const auto bare = plan_only(on_gpu(reference("llama3"), {}));
  const auto adapted = plan_only(on_gpu(reference("llama3"), {files.adapter()}));
  ASSERT_TRUE(bare.ok() && adapted.ok());
  EXPECT_GT(adapted->plan.vram_fixed_bytes, bare->plan.vram_fixed_bytes + 100'000);
  EXPECT_EQ(adapted->plan.vram_draft_bytes, 0u);
}

TEST_F(AdapterMixesOnGpu, OfWhatTheGpuCannotAdaptAreTheProcessors) {
  for (const char* tensor : {"ffn_gate_inp", "ffn_up_exps", "token_embd"}) {
    SCOPED_TRACE(tensor);
    const AdaptedFiles files(reference("qwen3moe"),
                             {.wants = [&](const std::string& name) { return name.find(tensor) != name.npos; }});
    EngineOptions options = on_gpu(reference("qwen3moe"), {files.adapter()});
    const auto refused = Engine::create(options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::unsupported);
    EXPECT_NE(refused.status().message().find("export-lora"), std::string::npos) << refused.status().message();
    options.device.choice = DeviceChoice::automatic;
    const auto engine = Engine::create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->executor().describe().substr(0, 3), "cpu");
  }
}

}  // namespace
}  // namespace millrace::engine
