// The files of the page at "/", as they lie in this folder. The build puts them into the program (see CMakeLists.txt).
#pragma once

#include <string_view>

namespace millrace::web {

std::string_view index_html();
std::string_view app_js();
std::string_view style_css();

}  // namespace millrace::web
