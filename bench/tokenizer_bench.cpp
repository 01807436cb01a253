// How fast text becomes tokens: MB of UTF-8 a second, by one core.
//
//   millrace_tokenizer_bench VOCABULARY.gguf... [--benchmark_filter=REGEX]
//
// Without a file, the vocabulary of the bundled model. Names are file/text: a page of English prose, source code,
// Chinese, Hindi, white space alone, and text full of look-alikes of special tokens (read as text); each of 1 MB.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "modelfile/gguf.h"
#include "text/tokenizer.h"

namespace {

using namespace millrace;

struct Sample {
  const char* name;
  std::string_view part;
};
constexpr Sample kSamples[] = {
    {"english",
     "The miller's wheel doesn't stop at night: it grinds 12 sacks of wheat, then 34 of rye. \"Wait,\" she said, and "
     "counted them again while the river carried last year's leaves past the old stone bridge.\n\n"},
    {"code",
     "static int count(const std::vector<Item>& items, size_t limit) {\n    int total = 0;\n    for (const auto& item "
     ": "
     "items) {\n        if (item.size() > limit) total += item.weight * 0x1F;\n    }\n    return total;\n}\n"},
    {"chinese", "河边的水磨日夜不停地转动，磨坊主一袋一袋地数着：一、二、三。春天来了，孩子们在桥上看水。\n"},
    {"hindi", "नदी के किनारे की चक्की दिन-रात चलती है और चक्कीवाला बोरियाँ गिनता है। पुल पर बच्चे पानी देखते हैं।\n"},
    {"spaces", "                                \n\n\t\t"},
    {"specials", "<|im_start|>user<unused12> <td>x</td> <|eot_id|></s><|end|> [INST]"},
};

void encode(benchmark::State& state, const std::shared_ptr<const text::Tokenizer>& tokenizer, std::string_view part) {
  std::string all;
  while (all.size() < 1000000) all += part;
  std::size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = tokenizer->encode(all, text::Specials::as_text);
    tokens = ids.size();
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * all.size()));
  state.counters["bytes/token"] = static_cast<double>(all.size()) / static_cast<double>(tokens);
}

bool add(const std::string& path) {
  const auto model = modelfile::Model::open(path);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().message().c_str());
    return false;
  }
  const auto tokenizer = text::Tokenizer::from_model(*model);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), tokenizer.status().message().c_str());
    return false;
  }
  const std::string name = path.substr(path.find_last_of('/') + 1);
  for (const Sample& sample : kSamples) {
    benchmark::RegisterBenchmark((name + "/" + sample.name).c_str(), encode, *tokenizer, sample.part);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<std::string> paths(argv + 1, argv + argc);
  if (paths.empty()) paths.emplace_back(MILLRACE_SOURCE_DIR "/models/demo-moe-q4_k_m.gguf");
  for (const std::string& path : paths) {
    if (!add(path)) return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
}
