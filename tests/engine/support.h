// What the engine's tests share: the bundled models, real text as prompts, and a run that keeps every logit.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "engine/engine.h"

namespace millrace::engine::test {

using text::TokenId;

inline std::string moe_path() { return MILLRACE_SOURCE_DIR "/models/demo-moe-q4_k_m.gguf"; }
inline std::string draft_path() { return MILLRACE_TEST_DATA "/demo-draft-f16.gguf"; }

/// Everything in memory, no measured part: what a test changes is what it asks about.
inline EngineOptions roomy(const std::string& path) {
  EngineOptions options;
  options.model.path = path;
  options.memory.ram_bytes = 200'000'000;
  options.memory.exact_budget = true;
  options.device.threads = 2;
  return options;
}

inline std::unique_ptr<Engine> make(const EngineOptions& options) {
  Expected<std::unique_ptr<Engine>> engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

inline std::vector<TokenId> chat(const Engine& engine, const std::string& question) {
  const auto ids = engine.chat_template()->render(engine.tokenizer(), {{"user", question}}, true);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

/// The first `count` tokens of the questions and answers the demo models were trained to give.
inline std::vector<TokenId> real_text(const Engine& engine, std::size_t count, std::size_t skip_bytes = 0) {
  std::ifstream file(MILLRACE_TEST_DATA "/eval240.jsonl");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<TokenId> ids = engine.tokenizer().encode(text.str().substr(skip_bytes), text::Specials::as_text);
  EXPECT_GE(ids.size(), count);
  ids.resize(count);
  return ids;
}

inline Request greedy(std::vector<TokenId> prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampler.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

/// Makes the request keep its logits, of prompt and decode rows, and never stop by itself.
inline void keep_logits(Request& request, std::vector<float>& logits) {
  request.ignore_end_tokens = true;
  request.logits_of_prompt = true;
  request.on_logits = [&logits](std::int64_t, std::span<const float> row) {
    logits.insert(logits.end(), row.begin(), row.end());
  };
}

/// The size after "--ram " in a message, as the command line would read it.
inline std::optional<std::uint64_t> named_ram(const std::string& message) {
  std::smatch match;
  if (!std::regex_search(message, match, std::regex("--ram ([0-9.]+[A-Za-z]*)"))) return std::nullopt;
  const Expected<std::uint64_t> bytes = parse_bytes(match[1].str());
  return bytes.ok() ? std::optional(*bytes) : std::nullopt;
}

inline void drain(Engine& engine) {
  while (engine.step()) {
  }
}

}  // namespace millrace::engine::test
