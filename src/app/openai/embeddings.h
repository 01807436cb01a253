// Embeddings as text: an answer of millions of numbers is written at once, not built as JSON first. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::openai {

/// A JSON list of the shortest decimals that read back as the same floats. REQUIRES: finite.
void append_list(std::string& out, std::span<const float> vector);

/// The body of POST /v1/embeddings. `base64`: each vector as its little-endian float32s.
std::string embeddings_body(const std::string& model, const std::vector<std::vector<float>>& vectors, bool base64,
                            std::int64_t prompt_tokens);

}  // namespace millrace::openai
