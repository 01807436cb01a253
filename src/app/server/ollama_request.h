// Ollama's request bodies, read into Jobs. Pure functions; errors are invalid_argument.
#pragma once

#include <string>

#include "app/generate/job.h"
#include "app/server/catalog.h"
#include "app/server/context.h"

namespace millrace::server {

struct OllamaRequest {
  generate::Job job;
  KeepAlive keep_alive;
  bool empty = false;  // no prompt, no messages: the model is loaded (or unloaded), nothing else
};

/// The name alone, `model` or `name`: what is looked up before the rest is read.
Expected<std::string> ollama_model(const Json& body);

/// POST /api/generate and /api/chat; `info` brings the model's own defaults.
Expected<OllamaRequest> parse_ollama_generate(const Json& body, const ModelInfo& info);
Expected<OllamaRequest> parse_ollama_chat(const Json& body, const ModelInfo& info);

/// POST /api/embed (`input`) and /api/embeddings (`prompt`).
struct OllamaEmbedRequest {
  std::vector<std::string> texts;
  bool truncate = true;         // too long a text loses its end
  std::int64_t context = 0;     // tokens of a text at most; 0: what the model was loaded with
  std::int64_t dimensions = 0;  // 0: all
  KeepAlive keep_alive;
};
Expected<OllamaEmbedRequest> parse_ollama_embed(const Json& body, const char* field);

/// Seconds, or a Go duration ("5m", "1h30m", "-1"); negative: for ever. Errors: invalid_argument.
Expected<KeepAlive> parse_keep_alive(const Json& body);

/// RFC 3339 in UTC; decimals: of the seconds, 9 at most.
std::string rfc3339(std::chrono::system_clock::time_point time, std::size_t decimals = 9);

}  // namespace millrace::server
