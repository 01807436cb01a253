// Where a tiny checkpoint of tools/reference-models is.
#pragma once

#include <string>

namespace millrace::engine::test {

inline std::string reference(const std::string& name) { return MILLRACE_TEST_DATA "/reference/" + name + ".gguf"; }

}  // namespace millrace::engine::test
