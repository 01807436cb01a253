// OpenAI's request bodies, read into Jobs: chat completions, completions, embeddings. Shared by the server and batches.
// Pure functions; errors are invalid_argument and begin with the field's name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/generate/fields.h"
#include "app/generate/job.h"
#include "base/base64.h"

namespace millrace::openai {

using generate::Job;
using generate::Json;
using generate::Picture;
using generate::word;

/// POST /v1/chat/completions.
Expected<Job> parse_chat(const Json& body);
/// The same of what another API's request was made into: its fields are checked there.
Expected<Job> parse_chat(generate::RequestKind kind, const Json& body);

/// [{"id": 0, "scale": 0.5}, ...], as llama-server has adapters. False: it is no such list.
bool read_adapters(const Json& list, kv::AdapterMix& mix);

/// POST /completion, as llama-server has it: prompt, n_predict.
Expected<Job> parse_native_completion(const Json& body);

/// mirostat, mirostat_tau and mirostat_eta, as llama-server and Ollama have them: version 2, or none.
void parse_mirostat(generate::Fields& fields, engine::SamplerOptions& sampler);

/// POST /v1/completions: a job a prompt (`prompt` may be a list).
Expected<std::vector<Job>> parse_completion(const Json& body);

/// POST /infill, as llama-server has it: input_prefix, input_suffix, input_extra (other files), prompt (how the filling
/// begins), n_predict.
Expected<Job> parse_infill(const Json& body);

/// Texts of one request for embeddings at most, so that its answer stays bounded.
constexpr std::size_t kMostEmbeddings = 2048;

/// POST /v1/embeddings: texts or token ids.
struct EmbeddingJob {
  std::string model;
  std::vector<std::string> texts;
  std::vector<std::vector<text::TokenId>> tokens;  // instead of texts
  bool base64 = false;
  std::int64_t dimensions = 0;
};
Expected<EmbeddingJob> parse_embeddings(const Json& body);

/// POST /v1/rerank: documents as texts, or as objects with "text".
struct RerankJob {
  std::string model, query;
  std::vector<std::string> documents;
  std::int64_t most = 0;  // of the best that the answer has
  bool return_documents = false;
};
Expected<RerankJob> parse_rerank(const Json& body);

/// A message's content as one text: a string, or parts joined: texts, refusals, files of text that lie in them in
/// base64, and markers of pictures, which go into `pictures`. Errors: invalid_argument (sound, other files, and
/// pictures where `pictures` is null), unless these are only noted: what a tool has answered stays in its conversation,
/// which would be refused from then on.
enum class Unreadable { refused, noted };
Expected<std::string> content_text(const Json& content, const char* where, Unreadable others = Unreadable::refused,
                                   generate::Pictures* pictures = nullptr);
/// Whether a part of a content is a picture, in OpenAI's form or Anthropic's, and that picture. `where`: what errors
/// about it begin with.
bool is_picture(const Json& part);
Picture picture_of(const Json& part, const std::string& where);

using generate::note_of;

/// The form of the answer: response_format ({"type": "text" | "json_object" | "json_schema" | "grammar", ...}), or as
/// llama-server, vLLM and sglang spell it; what we have no means for is refused. Ignored it would give an answer of any
/// form.
Status parse_form(const generate::Fields& fields, Job& job);

/// A tool that takes a text, as a function of one parameter, "input": {"name", "description", "format"}. Its format, a
/// text or a grammar, is put into `client` and told in the description.
Expected<Json> custom_function(const Json& tool, generate::ClientTool& client);

/// Messages, tools and tool_choice in OpenAI's form.
Status parse_messages(const Json& messages, Job& job);
Status parse_tools(const Json& body, Job& job);

}  // namespace millrace::openai
