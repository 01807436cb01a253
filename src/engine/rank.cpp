#include "engine/rank.h"

#include <algorithm>
#include <iterator>

#include "engine/embed.h"
#include "text/marked_text.h"

namespace millrace::engine {
namespace {

Expected<const model::RankHead*> head_of(const Engine& engine) {
  MR_RETURN_IF_ERROR(engine.rank_head().status());
  if (engine.rank_head()->has_value()) return &**engine.rank_head();
  return error(Code::unsupported,
               "this model is no reranker: its file has neither a ranking head (cls.output.weight) nor 'rerank' in its "
               "name; Qwen3-Reranker and bge-reranker are such");
}

/// `prompt` with the texts in their places; what stands in the texts is never a place itself.
text::MarkedText fill(std::string_view prompt, std::string_view query, std::string_view document) {
  constexpr std::string_view kQuery = "{query}", kDocument = "{document}";
  text::MarkedText out;
  while (!prompt.empty()) {
    const std::size_t at = std::min(prompt.find(kQuery), prompt.find(kDocument));
    out.append(prompt.substr(0, at), true);
    if (at == std::string_view::npos) break;
    prompt.remove_prefix(at);
    const bool is_query = prompt.substr(0, kQuery.size()) == kQuery;
    out.append(is_query ? query : document, false);
    prompt.remove_prefix(is_query ? kQuery.size() : kDocument.size());
  }
  return out;
}

/// [CLS] query [SEP] document [SEP], or what of this and how the model's tokenizer has it.
Expected<std::vector<text::TokenId>> pair_tokens(const text::Tokenizer& tokenizer, std::string_view query,
                                                 std::string_view document) {
  if (!tokenizer.eos())
    return error(Code::unsupported,
                 "its tokenizer has no separator token between two texts "
                 "(tokenizer.ggml.eos_token_id)");
  std::vector<text::TokenId> ids;
  const auto append = [&](std::string_view text) {
    const std::vector<text::TokenId> own = tokenizer.encode(text, text::Specials::as_text);
    std::copy(own.begin(), own.end(), std::back_inserter(ids));
    ids.push_back(*tokenizer.eos());
  };
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  append(query);
  if (tokenizer.parts_pairs_twice()) ids.push_back(*tokenizer.eos());
  append(document);
  return ids;
}

Expected<std::vector<text::TokenId>> prompt_tokens(const text::Tokenizer& tokenizer, const std::string& prompt,
                                                   std::string_view query, std::string_view document) {
  std::vector<text::TokenId> ids;
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  const std::vector<text::TokenId> body = tokenizer.encode(fill(prompt, query, document));
  std::copy(body.begin(), body.end(), std::back_inserter(ids));  // insert() makes g++ 13 warn of its own code
  return ids;
}

}  // namespace

Expected<std::vector<text::TokenId>> rank_tokens(const Engine& engine, std::string_view query,
                                                 std::string_view document) {
  MR_ASSIGN_OR_RETURN(const model::RankHead* head, head_of(engine));
  const text::Tokenizer& tokenizer = engine.tokenizer();
  MR_ASSIGN_OR_RETURN(
      const std::vector<text::TokenId> ids,
      head->pairs ? pair_tokens(tokenizer, query, document) : prompt_tokens(tokenizer, head->prompt, query, document));
  const std::int64_t positions = engine.model().hyperparameters().most_positions;
  if (positions > 0 && std::ssize(ids) > positions)
    return error(Code::invalid_argument,
                 "{} tokens with the query, but this model's maximum context length is {}; shorten it", ids.size(),
                 positions);
  if (std::ssize(ids) > engine.context_tokens())
    return error(Code::invalid_argument,
                 "{} tokens with the query, but this model's maximum context length is {}; shorten it, or serve with "
                 "--ctx {}",
                 ids.size(), engine.context_tokens(), ids.size());
  return ids;
}

Expected<Ranking> rank(Service& service, const std::vector<std::vector<text::TokenId>>& prompts,
                       const std::string& client, const std::function<bool()>& gone) {
  MR_ASSIGN_OR_RETURN(const model::RankHead* head, head_of(service.engine()));
  EmbedOptions options;
  options.pooling = head->pooling;
  if (head->pairs) options.separator = service.engine().tokenizer().eos().value_or(-1);
  options.client = client;
  MR_ASSIGN_OR_RETURN(const Embeddings states, embed(service, prompts, options, gone));
  Ranking out;
  for (const std::vector<float>& state : states.vectors) out.scores.push_back(head->score(state));
  out.prompt_tokens = states.prompt_tokens;
  out.seconds = states.seconds;
  return out;
}

}  // namespace millrace::engine
