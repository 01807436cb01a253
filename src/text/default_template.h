// Chat templates of architectures whose publishers describe the prompt in other words than Jinja, for files that have
// no template. Thread-safety: constants.
#pragma once

#include <string_view>

#include "modelfile/gguf.h"

namespace millrace::text {

/// Empty: the file's architecture has none here, or the file lacks its control tokens.
std::string_view default_template(const modelfile::Model& model);

}  // namespace millrace::text
