// The fields of each API's requests: which of them are supported, which are refused by name, and which have no effect
// here. No field of a request is ignored silently.
// Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/generate/json.h"
#include "base/status.h"

namespace millrace::generate {

enum class FieldUse {
  supported,
  refused,  // an error, unless the value asks for nothing
  ignored,  // a warning in the log: the answer is right without it
};

struct RequestField {
  const char* name;
  FieldUse use = FieldUse::supported;
  const char* says = "";     // refused: what to send instead; ignored: why it has no effect
  const char* neutral = "";  // refused: JSON values beside null that ask for nothing, one a line
};

enum class RequestKind {
  chat,
  completion,
  infill,
  native_completion,
  response,
  message,
  embedding,
  rerank,
  ollama_generate,
  ollama_chat,
  ollama_options,
  ollama_embed,
};

/// "POST /v1/chat/completions", as messages and documents call it.
std::string_view name_of(RequestKind kind);
/// All fields that are known of such a request, each once, by name.
const std::vector<RequestField>& fields_of(RequestKind kind);

/// Refuses what is refused, and warns once of each field that has no effect or that nobody knows.
/// Errors: unsupported.
Status check_fields(RequestKind kind, const Json& body);

}  // namespace millrace::generate
