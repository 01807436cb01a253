// JSON schemas from anywhere: compiling one and walking its masks ends soon, in a grammar or in an error. The input is
// a schema, a zero byte, and the walk's choices.
#include "form_walk.h"
#include "text/constraint/schema.h"

using namespace millrace::text;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto cut = input.find('\0');
  const auto grammar = schema_grammar(input.substr(0, cut));
  if (grammar.ok()) walk_masks(*grammar, cut == std::string_view::npos ? "" : input.substr(cut + 1));
  return 0;
}
