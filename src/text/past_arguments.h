// The arguments of an earlier tool call, as an object.
// Thread-safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace millrace::text {

/// Clients send back what a model wrote: an object or its JSON text, but also "", null, [], JSON that the token limit
/// cut, or a Python dict. Templates take objects only, so each of these becomes one. Nothing at all becomes {}; what
/// cannot be read as an object stays whole, as the value of "arguments".
nlohmann::ordered_json past_arguments(const nlohmann::ordered_json& arguments);

/// The quotes and brackets that close `json`, which was cut off.
std::string closing_brackets(std::string_view json);

}  // namespace millrace::text
