// Documents in the order of a query, by a reranker (model/rank_head.h) on a Service: one prompt a document, many to a
// pass.
// Thread-safety: free functions; any thread but the service's own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/service.h"

namespace millrace::engine {

struct Ranking {
  std::vector<double> scores;  // in [0, 1], in the documents' order
  std::int64_t prompt_tokens = 0;
  double seconds = 0;
};

/// The prompt of the model's maker around the two texts, or both as an encoder's pair; they never become special
/// tokens. Errors: unsupported (the model is no reranker), invalid_argument (too long for the context).
Expected<std::vector<text::TokenId>> rank_tokens(const Engine& engine, std::string_view query,
                                                 std::string_view document);

/// prompts: of rank_tokens(), one a document. `client` as Request::client; `gone` (may be empty) is asked now and then;
/// true gives up. Errors: as embed().
Expected<Ranking> rank(Service& service, const std::vector<std::vector<text::TokenId>>& prompts,
                       const std::string& client, const std::function<bool()>& gone = {});

}  // namespace millrace::engine
