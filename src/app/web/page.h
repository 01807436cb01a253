// The files of the page at "/": those of this folder, as they lie, and the libraries that it takes from Debian's
// packages (marked.js, purify.js, highlight.js, pdf.js with pdf.worker.js; each may be missing). The build puts them
// into the program (see the server's CMakeLists.txt).
#pragma once

#include <span>
#include <string_view>

namespace millrace::web {

struct File {
  std::string_view name, bytes;
};
std::span<const File> files();

}  // namespace millrace::web
