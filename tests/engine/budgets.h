// A budget that a plan accepts serves its context, to the last token, on every device: models of six architectures in
// which weights and KV are both worth a budget, a request that fills a context, and the walk over fifty budgets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/support.h"
#include "engine/synth_file.h"
#include "residency/budget.h"

namespace millrace::engine::test {

inline constexpr const char* kBudgetArchitectures[] = {"llama",    "gemma3",    "gpt-oss",
                                                       "qwen3moe", "qwen35moe", "deepseek2"};

/// The name of a test's parameter.
inline std::string without_dashes(std::string name) {
  std::erase(name, '-');
  return name;
}

/// dim: a multiple of 128. A context of 1,500 tokens takes about a third of the weights.
inline synth::Shape budget_shape(const std::string& architecture, std::int64_t dim) {
  synth::Shape shape;
  shape.architecture = architecture;
  shape.layers = 8, shape.dim = dim, shape.ff = dim * 11 / 4;
  shape.heads = dim / 64, shape.kv_heads = dim / 128, shape.head_dim = 128;
  shape.vocab = 8003;
  if (architecture != "llama" && architecture != "gemma3")
    shape.experts = 24, shape.top_k = 3, shape.expert_ff = dim * 11 / 512 * 32;
  if (architecture == "deepseek2") shape.latent = {64, 256, 64, 128}, shape.head_dim = 192, shape.kv_heads = 1;
  if (architecture == "gpt-oss") shape.head_dim = 64, shape.kv_heads = shape.heads;
  if (architecture == "qwen35moe") shape.state_heads = 32, shape.head_dim = 256;
  return shape;
}

/// As many tokens as the context has, eight of them generated.
inline Result fill_context(Engine& engine, std::int64_t context_tokens) {
  std::vector<TokenId> prompt;
  for (std::int64_t i = 0; i < context_tokens - 8; ++i)
    prompt.push_back(static_cast<TokenId>((i * 37 + i * i % 11) % 8000));
  Request request = greedy(std::move(prompt), 8);
  request.ignore_end_tokens = true;
  return engine.run(std::move(request));
}

inline const residency::Budget* budget_of(const Engine& engine, std::uint64_t MemoryOptions::*cap) {
  return cap == &MemoryOptions::vram_bytes ? engine.vram_budget() : &engine.budget();
}

/// Fifty budgets, from nearly no weight to a little more than the whole model, by steps that no page divides. Where a
/// plan is accepted, it serves the context within the budget, with the tokens of the whole model in memory; where it is
/// not, the refusal names `flag`. options: with room for the whole model, and demand.context_tokens. cap: the budget.
/// beyond_bytes: the last budget is so much larger than what the whole model takes before a request.
inline void expect_budgets_to_serve(EngineOptions options, std::uint64_t MemoryOptions::*cap, const std::string& flag,
                                    std::uint64_t beyond_bytes) {
  constexpr int kBudgets = 50;
  const std::uint64_t weights = std::filesystem::file_size(options.model.path);
  const std::int64_t context = options.demand.context_tokens;
  std::uint64_t whole = 0;
  std::vector<TokenId> tokens;
  {
    const auto resident = make(options);
    ASSERT_NE(resident, nullptr);
    whole = budget_of(*resident, cap)->reserved_bytes();
    const Result result = fill_context(*resident, context);
    ASSERT_NE(result.finish, Finish::error) << result.status.message();
    tokens = result.tokens;
  }
  ASSERT_GT(whole, weights);
  int accepted = 0;
  for (int i = 0; i < kBudgets; ++i) {
    const std::uint64_t bytes =
        whole - weights + (weights + beyond_bytes) / kBudgets * static_cast<std::uint64_t>(i) + 1234 * 17;
    options.memory.*cap = bytes;
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    const Expected<std::unique_ptr<Engine>> engine = Engine::create(options);
    if (!engine.ok()) {
      EXPECT_EQ(engine.status().code(), Code::out_of_budget) << engine.status().message();
      EXPECT_NE(engine.status().message().find(flag), std::string::npos) << engine.status().message();
      continue;
    }
    ++accepted;
    const Result result = fill_context(**engine, context);
    EXPECT_NE(result.finish, Finish::error) << result.status.message();
    EXPECT_EQ(result.tokens, tokens);
    EXPECT_LE(budget_of(**engine, cap)->reserved_bytes(), bytes);
  }
  EXPECT_GE(accepted, kBudgets / 4);  // states and KV of qwen35moe are more than its weights: 16 in RAM
}

}  // namespace millrace::engine::test
