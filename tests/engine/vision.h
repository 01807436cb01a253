// Models that see, of tools/reference-models/vision.py: pictures, what transformers makes of them, and prompts with
// them (tests/data/vision/README.md has the format).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "engine/pictures.h"
#include "engine/support.h"

namespace millrace::engine::test {

struct VisionPicture {
  vision::Grid grid;
  std::int64_t cols = 0;
  std::vector<float> pixels, states;
};

struct VisionPrompt {
  std::vector<std::int32_t> tokens, answer;  // rows of pictures: -1 - (1000 * picture + row)
  std::vector<float> logits;                 // [tokens, vocab]
};

struct VisionReference {
  std::vector<VisionPicture> pictures;
  std::vector<VisionPrompt> prompts;
  std::size_t vocab = 0;
};

inline std::string vision_path(const std::string& name) { return MILLRACE_TEST_DATA "/vision/" + name; }

inline VisionReference read_vision(const std::string& name) {
  std::ifstream file(vision_path(name + ".bin"), std::ios::binary);
  const auto numbers = [&](std::size_t count) {
    std::vector<std::int32_t> read(count);
    file.read(reinterpret_cast<char*>(read.data()), static_cast<std::streamsize>(count * 4));
    return read;
  };
  const auto floats = [&](std::size_t count) {
    std::vector<float> read(count);
    file.read(reinterpret_cast<char*>(read.data()), static_cast<std::streamsize>(count * 4));
    return read;
  };
  VisionReference reference;
  static const std::map<std::string, std::int32_t> kMerges = {
      {"gemma3", 4}, {"gemma4", 3}, {"gemma4-moe", 3}, {"gemma4-moe-unified", 1}, {"llama-idefics3", 4}};
  const auto known = kMerges.find(name);
  const std::int32_t merge = known == kMerges.end() ? 2 : known->second;
  for (std::int32_t pictures = numbers(1)[0]; pictures > 0 && file; --pictures) {
    const auto head = numbers(4);
    VisionPicture picture;
    picture.grid = {head[0], head[1]};
    picture.cols = head[3];
    const auto tokens = static_cast<std::size_t>(head[0] * head[1]);
    picture.pixels = floats(tokens * static_cast<std::size_t>(merge * merge * head[2]));
    picture.states = floats(tokens * static_cast<std::size_t>(head[3]));
    reference.pictures.push_back(std::move(picture));
  }
  const auto head = numbers(2);
  reference.vocab = static_cast<std::size_t>(head[1]);
  for (std::int32_t prompts = head[0]; prompts > 0 && file; --prompts) {
    const auto sizes = numbers(2);
    VisionPrompt prompt;
    prompt.tokens = numbers(static_cast<std::size_t>(sizes[0]));
    prompt.answer = numbers(static_cast<std::size_t>(sizes[1]));
    prompt.logits = floats(static_cast<std::size_t>(sizes[0]) * reference.vocab);
    reference.prompts.push_back(std::move(prompt));
  }
  EXPECT_TRUE(file.good()) << name;
  return reference;
}

inline PictureKey file_key(std::size_t picture) {
  PictureKey key{};
  key.fill(static_cast<std::byte>(picture + 1));
  return key;
}

inline vision::Patches patches_of(const VisionPicture& picture, const vision::Spec& spec) {
  vision::Patches patches;
  patches.rows = picture.grid.rows * spec.merge;
  patches.cols = picture.grid.cols * spec.merge;
  patches.dim = 3 * spec.patch * spec.patch;
  patches.pixels = picture.pixels;
  return patches;
}

inline std::shared_ptr<const EncodedPicture> encoded(Engine& engine, const VisionReference& reference,
                                                     std::size_t picture) {
  PictureEncoder* const encoder = engine.pictures();
  if (encoder == nullptr) {
    ADD_FAILURE() << "no encoder";
    return nullptr;
  }
  if (auto found = encoder->find(file_key(picture)); found != nullptr) return found;
  const vision::Patches patches = patches_of(reference.pictures[picture], encoder->spec());
  auto made = encoder->encode(file_key(picture), std::span(&patches, 1), {});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : nullptr;
}

/// The prompt's first `count` tokens with their pictures, greedily answered. A picture that is cut by the end of the
/// prompt is placed as far as it goes.
inline Request with_pictures(Engine& engine, const VisionReference& reference, std::span<const std::int32_t> tokens,
                             std::int64_t max_tokens) {
  Request request = greedy({}, max_tokens);
  request.ignore_end_tokens = true;
  for (const std::int32_t token : tokens) {
    if (token >= 0) {
      request.prompt.push_back(token);
      continue;
    }
    const std::int32_t picture = (-1 - token) / 1000, row = (-1 - token) % 1000;
    const auto made = encoded(engine, reference, static_cast<std::size_t>(picture));
    if (made == nullptr) return request;
    const auto at = std::ssize(request.prompt);
    request.prompt.push_back(picture_token(made->key, row));
    if (!request.pictures.empty()) {
      PlacedPicture& last = request.pictures.back();
      if (last.picture == made && last.first + last.count == at && last.first_row + last.count == row) {
        ++last.count;
        continue;
      }
    }
    request.pictures.push_back({at, 1, row, made});
  }
  return request;
}

inline double relative(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// Every text fits, and KV is exact enough for the tolerance.
inline EngineOptions sees(const std::string& name) {
  std::string decoder = name;
  for (const char* tower : {"-quick", "-unified", "-internvl", "-idefics3", "-kimivl"})
    decoder = decoder.substr(0, decoder.find(tower));
  EngineOptions options = roomy(MILLRACE_TEST_DATA "/reference/" + decoder + ".gguf");
  options.model.mmproj = vision_path(name + "-mmproj.gguf");
  if (name == "gemma4") options.kv.dtype = DType::f32;  // as without pictures (reference.h)
  options.demand.context_tokens = 256;
  options.demand.max_sequences = 4;
  return options;
}

}  // namespace millrace::engine::test
