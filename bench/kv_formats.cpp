// What KV of few bits costs in quality, rotated and not, so that the rotation's part in it can be told: a row a format
// with its bytes a token, the KL divergence of a text's distributions from those over KV in f32, and how many of a file
// of questions (as `millrace eval` takes them) are answered exactly.
//
//   millrace_kv_formats MODEL TEXT CONTEXT [QUESTIONS [cpu|cuda]]
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "app/measure/quality.h"
#include "base/json.h"
#include "base/os/process.h"
#include "engine/engine.h"
#include "modelfile/gguf.h"

namespace {

using namespace millrace;

struct Format {
  const char* name;
  DType dtype;
  kv::Rotation rotation;
};
constexpr Format kFormats[] = {
    {"f16", DType::f16, kv::Rotation::of_format},   {"q8_0, not rotated", DType::q8_0, kv::Rotation::never},
    {"q8_0", DType::q8_0, kv::Rotation::of_format}, {"q4_0, not rotated", DType::q4_0, kv::Rotation::never},
    {"q4_0", DType::q4_0, kv::Rotation::of_format}, {"q3", DType::q3_k, kv::Rotation::of_format},
    {"q2", DType::q2_0, kv::Rotation::of_format}};

[[noreturn]] void give_up(const Status& status) {
  fmt::print(stderr, "{}\n", status.message());
  std::exit(1);
}
template <typename T>
T take(Expected<T> value) {
  if (!value.ok()) give_up(value.status());
  return std::move(*value);
}

/// The windows' distributions, into `save`, or held against `reference`.
std::optional<measure::Divergence> run(engine::EngineOptions options, const measure::TextWindows& windows,
                                       measure::LogitsReader* reference, measure::LogitsWriter* save) {
  if (Status status = measure::prepare_engine(windows, options); !status.ok()) give_up(status);
  const auto engine = take(engine::Engine::create(options));
  measure::Quality quality(windows.rows(), options.device.threads, reference, save);
  const auto add = [&](std::int64_t row, text::TokenId target, std::span<const float> logits) {
    return quality.add(row, target, logits);
  };
  if (Status status = measure::run_windows(*engine, windows, add, {}); !status.ok()) give_up(status);
  if (reference == nullptr) return std::nullopt;
  return quality.divergence();
}

int answered(engine::EngineOptions options, const std::string& questions) {
  options.demand.max_sequences = 8;
  options.demand.context_tokens = 1024;
  const auto engine = take(engine::Engine::create(options));
  std::istringstream lines(take(measure::read_text(questions)));
  std::vector<engine::Engine::Id> ids;
  std::vector<std::string> answers;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    engine::Request request;
    request.prompt =
        take(engine->chat_template()->render(engine->tokenizer(), {{"user", json["prompt"].get<std::string>()}}, true));
    request.sampler.temperature = 0;
    request.max_tokens = 64;
    ids.push_back(take(engine->submit(std::move(request))));
    answers.push_back(json["answer"]);
  }
  while (engine->step()) {
  }
  int exact = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) exact += engine->take(ids[i]).text == answers[i] ? 1 : 0;
  return exact;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) {
    fmt::print(stderr, "usage: {} MODEL TEXT CONTEXT [QUESTIONS [cpu|cuda]]\n", words[0]);
    return 2;
  }
  engine::EngineOptions options;
  options.model.path = words[1];
  options.device.choice =
      count > 5 && std::string(words[5]) == "cuda" ? engine::DeviceChoice::cuda : engine::DeviceChoice::cpu;
  const auto tokenizer = take(text::Tokenizer::from_model(take(modelfile::Model::open(options.model.path))));
  const auto windows = take(
      measure::TextWindows::cut(*tokenizer, take(measure::read_text(words[2])), {.context = std::atoll(words[3])}));
  const std::string saved =
      (std::filesystem::temp_directory_path() / fmt::format("kv-formats-{}", os::process_id())).string();
  engine::EngineOptions whole = options;
  whole.kv.dtype = DType::f32;
  {
    const auto shape = measure::shape_of(windows, *tokenizer, tokenizer->vocab_size(), "f32");
    auto writer = take(measure::LogitsWriter::create(saved, shape));
    run(whole, windows, nullptr, &writer);
    if (Status status = writer.finish(); !status.ok()) give_up(status);
  }
  fmt::print(
      "{} tokens of windows of {}\n| KV | bytes of 64 channels | KL divergence a token | median | 99 % | same "
      "likeliest | "
      "answers |\n|---|---|---|---|---|---|---|\n",
      windows.rows(), words[3]);
  for (const Format& format : kFormats) {
    if (kv_has_few_bits(format.dtype) && options.device.choice == engine::DeviceChoice::cuda) continue;
    options.kv.dtype = format.dtype;
    options.kv.rotation = format.rotation;
    auto reader = take(measure::LogitsReader::open(saved));
    const measure::Divergence found = *run(options, windows, &reader, nullptr);
    fmt::print("| {} | {} | {:.3g} ({:.1g}) | {:.2g} | {:.2g} | {:.2f} % | {} |\n", format.name,
               kv_row_bytes(format.dtype, 64), found.mean, found.error, found.median, found.p99, 100 * found.same_top,
               count > 4 ? fmt::format("{}", answered(options, words[4])) : "");
    std::fflush(stdout);
  }
  std::filesystem::remove(saved);
  return 0;
}
