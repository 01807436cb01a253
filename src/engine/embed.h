// Many texts to their embeddings on a Service: from text to tokens, a window of requests that share passes, vectors in
// the texts' order.
// Thread-safety: free functions; any thread but the service's own.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/service.h"

namespace millrace::engine {

/// A text as the model's maker would have it embedded: BOS and EOS where the file says so, special tokens parsed.
/// Longer than `most` tokens (0: than the context): the text's end is cut off where `truncate` says so.
/// Errors: invalid_argument (empty, too long).
Expected<std::vector<text::TokenId>> embedding_tokens(const Engine& engine, std::string_view text, bool truncate,
                                                      std::int64_t most = 0);

struct EmbedOptions {
  model::Pooling pooling = model::Pooling::none;  // none: as the file says; where it says nothing, the last token's,
                                                  // or of models that are not causal the mean
  std::int64_t dimensions = 0;   // the first so many values, brought to length 1 again; 0, or more than there are: all
  text::TokenId separator = -1;  // behind its first one a pair's second text begins; -1: there are no pairs
  std::string client = {};       // as Request::client
};

/// What submit() takes for one vector.
Request embedding_request(const Engine& engine, std::vector<text::TokenId> tokens, const EmbedOptions& options);

/// A finished request's vector as the options want it.
void shorten(std::vector<float>& vector, const EmbedOptions& options);

struct Embeddings {
  std::vector<std::vector<float>> vectors;  // in the order of the inputs
  std::int64_t prompt_tokens = 0;
  double seconds = 0;
};

/// One vector an input. `gone` (may be empty) is asked now and then; true gives up.
/// Errors: those of the first request that fails; unavailable; cancelled.
Expected<Embeddings> embed(Service& service, const std::vector<std::vector<text::TokenId>>& inputs,
                           const EmbedOptions& options, const std::function<bool()>& gone = {});

}  // namespace millrace::engine
