// The arguments of an earlier tool call, as an object.
// Thread-safety: pure.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace millrace::text {

/// Clients send back arguments as the model wrote them: an object or its JSON text, but also "", null, [], truncated
/// JSON, or a Python dict. Templates accept objects only. Missing arguments become {}; text that cannot be read as an
/// object becomes the value of "arguments".
nlohmann::ordered_json past_arguments(const nlohmann::ordered_json& arguments);

/// The quotes and brackets that complete truncated JSON.
std::string closing_brackets(std::string_view json);

}  // namespace millrace::text
