// A checkpoint whose activations go far beyond the range of f16 (65,504) while its answer stays what it was: factors
// that cancel each other, powers of two. What is left is that the norms' epsilon counts for less, which moves some
// activations in int8 by a step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/reference.h"
#include "modelfile/gguf.h"
#include "modelfile/quantize.h"
#include "tensor/codec.h"

namespace millrace::engine::test {

inline const Checkpoint kGranite{"granite", "Granite 3"};
constexpr float kF16Most = 65504;

/// RMS norm takes the first factor away again; the residual factor takes the second.
constexpr float kStream = 0x1p17f, kInside = 0x1p14f;

/// Multiplies a float of the metadata: a key's bytes, its type (4 bytes), the value.
inline void grow_key(std::string& bytes, const std::string& key, float times) {
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos) << key;
  float value = 0;
  std::memcpy(&value, bytes.data() + at + key.size() + 4, sizeof(value));
  value *= times;
  std::memcpy(bytes.data() + at + key.size() + 4, &value, sizeof(value));
}

/// The largest magnitude in the tensor, once it was multiplied.
inline float grow_tensor(std::string& bytes, const modelfile::TensorInfo& tensor, float times) {
  EXPECT_EQ(tensor.dtype, DType::f16);
  std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  auto* at = reinterpret_cast<std::byte*>(bytes.data()) + tensor.offset;
  const auto count = static_cast<std::int64_t>(values.size());
  decode_row(DType::f16, at, count, values.data());
  float most = 0;
  for (float& value : values) most = std::max(most, std::fabs(value *= times));
  if (times != 1) encode_row(DType::f16, values.data(), count, at);
  return most;
}

/// Writes the Granite checkpoint with a residual stream kStream times as large, and what its feed-forwards and its
/// attention hand on kInside times.
inline void write_large_granite(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(kGranite.model(), std::ios::binary).rdbuf();
  std::string bytes = text.str();
  auto file = modelfile::Model::open(kGranite.model());
  ASSERT_TRUE(file.ok()) << file.status().message();
  grow_key(bytes, "granite.embedding_scale", kStream);
  grow_key(bytes, "granite.residual_scale", kStream / kInside);
  for (const modelfile::TensorInfo& tensor : file->tensors()) {
    const bool grows = tensor.name.find("ffn_up.weight") != std::string::npos ||
                       tensor.name.find("attn_output.weight") != std::string::npos;
    if (grows) {
      EXPECT_LT(grow_tensor(bytes, tensor, kInside), kF16Most);
    }
    if (tensor.name == "token_embd.weight") {
      const auto scale = file->get_float("granite.embedding_scale");
      ASSERT_TRUE(scale.ok());
      EXPECT_GT(grow_tensor(bytes, tensor, 1) * kStream * static_cast<float>(*scale), 2 * kF16Most);
    }
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Of every prompt of the references, in one pass each.
inline std::vector<float> logits_of(EngineOptions options, const std::string& path) {
  options.model.path = path;
  options.demand.context_tokens = 256;
  const auto engine = make(options);
  std::vector<float> all;
  for (const Reference& reference : read_references(kGranite.logits())) {
    std::vector<float> logits;
    Request request = greedy(reference.tokens, 1);
    keep_logits(request, logits);
    EXPECT_TRUE(engine->submit(std::move(request)).ok());
    drain(*engine);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// With weights in F16 as transformers answers, and in Q8_0 as the same weights do without the factors.
inline void expect_large_activations_change_nothing(const EngineOptions& options, const std::string& folder) {
  const std::string large = folder + "/large.gguf";
  write_large_granite(large);
  EngineOptions changed = options;
  changed.model.path = large;
  changed.demand.context_tokens = 256;
  const Agreement found = agreement(changed, kGranite.logits());
  EXPECT_LE(found.relative_l2, 2e-3);
  EXPECT_EQ(found.same_argmax, 1);

  modelfile::QuantizeOptions q8;
  q8.type = modelfile::QuantizeType::q8_0;
  const std::string small_q8 = folder + "/small-q8.gguf", large_q8 = folder + "/large-q8.gguf";
  for (const auto& [in, out] : {std::pair{kGranite.model(), small_q8}, std::pair{large, large_q8}}) {
    const Status status = modelfile::quantize(in, out, q8);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const std::vector<float> want = logits_of(options, small_q8), got = logits_of(options, large_q8);
  ASSERT_FALSE(got.empty());
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float logit) { return std::isfinite(logit); }));
  EXPECT_LE(relative_l2(got, want), 2e-2);
}

}  // namespace millrace::engine::test
