#include "app/openai/embeddings.h"

#include <fmt/core.h>

#include <bit>
#include <charconv>

#include "app/openai/response.h"

namespace millrace::openai {

static_assert(std::endian::native == std::endian::little, "base64 takes the floats as they lie");

void append_list(std::string& out, std::span<const float> vector) {
  out += '[';
  for (std::size_t i = 0; i < vector.size(); ++i) {
    char digits[32];
    const auto [end, problem] = std::to_chars(digits, digits + sizeof digits, vector[i]);
    if (i > 0) out += ',';
    out.append(digits, end);
    (void)problem;  // a float has at most 15 characters
  }
  out += ']';
}

std::string embeddings_body(const std::string& model, const std::vector<std::vector<float>>& vectors, bool base64,
                            std::int64_t prompt_tokens) {
  std::string out = R"({"object":"list","data":[)";
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    if (i > 0) out += ',';
    out += fmt::format(R"({{"object":"embedding","index":{},"embedding":)", i);
    if (base64)
      out += '"' + openai::base64(vectors[i].data(), vectors[i].size() * sizeof(float)) + '"';
    else
      append_list(out, vectors[i]);
    out += '}';
  }
  const std::string name = Json(model).dump(-1, ' ', false, Json::error_handler_t::replace);
  return out + fmt::format(R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})", name, prompt_tokens,
                           prompt_tokens);
}

}  // namespace millrace::openai
