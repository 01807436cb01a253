#include <algorithm>
#include <charconv>
#include <climits>

#include "engine/engine.h"

namespace millrace::engine {
namespace {

bool read_number(std::string_view text, int& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() && number >= 0;
}

}  // namespace

Expected<std::vector<Pin>> parse_pins(std::string_view text) {
  std::vector<Pin> pins;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const auto refused = [&] {
      return error(Code::invalid_argument, "--pin {}: write layers and where they stay, for example 0-9=vram,10-=ram",
                   item);
    };
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) return refused();
    const std::string_view layers = item.substr(0, equals), tier = item.substr(equals + 1);
    Pin pin;
    if (tier == "ram") {
      pin.tier = residency::Tier::ram;
    } else if (tier == "disk") {
      pin.tier = residency::Tier::disk;
    } else if (tier != "vram") {
      return refused();
    }
    const std::size_t dash = layers.find('-');
    if (!read_number(layers.substr(0, dash), pin.first_layer)) return refused();
    pin.last_layer = pin.first_layer;
    if (dash != std::string_view::npos) {
      const std::string_view last = layers.substr(dash + 1);
      pin.last_layer = INT_MAX;
      if (!last.empty() && (!read_number(last, pin.last_layer) || pin.last_layer < pin.first_layer)) return refused();
    }
    pins.push_back(pin);
  }
  return pins;
}

}  // namespace millrace::engine
