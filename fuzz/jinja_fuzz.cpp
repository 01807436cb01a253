// Any text as a template, over any text as input; and JSON the fuzzer chooses as the whole input. Errors are fine,
// crashes, hangs and trust in foreign bytes are not. The template ends at a zero byte, then comes the input.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::text;
  millrace::log::set_level(millrace::log::Level::off);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = std::min(all.find('\0'), all.size());
  const auto made = jinja::Template::parse(all.substr(0, cut));
  if (!made.ok()) return 0;
  const std::string_view rest = all.substr(std::min(cut + 1, all.size()));
  nlohmann::ordered_json values = nlohmann::ordered_json::parse(rest, nullptr, false);
  if (!values.is_object()) {
    // \x01 is in no template: wherever it comes out, it must not be trusted.
    const std::string text = "\x01" + std::string(rest);
    values = {{"x", text},
              {"l", {text, 1, 2.5, nullptr}},
              {"d", {{"k", text}, {text, "v"}}},
              {"messages", {{{"role", "user"}, {"content", text}}, {{"role", text}, {"content", "x"}}}}};
  }
  jinja::Inputs inputs;
  inputs.values = &values;
  inputs.trusted = {{"bos_token", "<s>"}};
  inputs.now = 0;
  jinja::Limits limits;
  limits.steps = 100'000;
  limits.live_bytes = 8u << 20;
  limits.output_bytes = 1u << 20;
  const auto text = made->render(inputs, limits);
  if (!text.ok() || all.substr(0, cut).find_first_of("\x01\\%") != std::string_view::npos) return 0;
  for (std::size_t i = 0; i < text->size(); ++i) {
    if (text->bytes()[i] == '\x01' && text->trusted_at(i)) std::abort();
  }
  return 0;
}
