#include "convert/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "modelfile/gguf_writer.h"

namespace millrace::convert {

using modelfile::Value;

namespace {

template <typename T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

double shortest(float value) {
  const std::string text = fmt::format("{}", value);
  double parsed = value;
  std::from_chars(text.data(), text.data() + text.size(), parsed);
  return parsed;
}

}  // namespace

const Value* Header::find(std::string_view key) const {
  const auto found = metadata_->find(name(key));
  return found == metadata_->end() ? nullptr : &found->second;
}

void Header::set_integers(std::string_view key, const std::vector<std::int64_t>& values) {
  const bool narrow = std::all_of(values.begin(), values.end(),
                                  [](std::int64_t value) { return value == static_cast<std::int32_t>(value); });
  set(key, narrow ? modelfile::array_value(std::vector<std::int32_t>(values.begin(), values.end()))
                  : modelfile::array_value(values));
}

std::int64_t Header::integer(std::string_view key, std::int64_t fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  return std::visit(
      [&](const auto& held) -> std::int64_t {
        using T = std::decay_t<decltype(held)>;
        if constexpr (is_integer<T>)
          return static_cast<std::int64_t>(held);
        else
          return fallback;
      },
      *value);
}

double Header::number(std::string_view key, double fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  if (const auto* single = std::get_if<float>(value)) return shortest(*single);
  if (const auto* wide = std::get_if<double>(value)) return *wide;
  return fallback;
}

bool Header::flag(std::string_view key, bool fallback) const {
  const Value* value = find(key);
  const auto* held = value == nullptr ? nullptr : std::get_if<bool>(value);
  return held == nullptr ? fallback : *held;
}

std::string Header::text(std::string_view key, std::string_view fallback) const {
  const Value* value = find(key);
  const auto* held = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return held == nullptr ? std::string(fallback) : *held;
}

/// A list's elements, if they are of such a kind.
template <typename To, template <typename> typename kIs>
static std::vector<To> list_of(const Value* value) {
  const auto* array = value == nullptr ? nullptr : std::get_if<std::shared_ptr<const modelfile::Array>>(value);
  std::vector<To> list;
  if (array == nullptr || *array == nullptr) return list;
  std::visit(
      [&](const auto& elements) {
        using T = typename std::decay_t<decltype(elements)>::value_type;
        if constexpr (kIs<T>::value)
          for (const auto element : elements) list.push_back(static_cast<To>(element));
      },
      (*array)->elements);
  return list;
}

std::vector<std::int64_t> Header::integers(std::string_view key) const {
  return list_of<std::int64_t, std::is_integral>(find(key));
}

std::vector<double> Header::numbers(std::string_view key) const {
  return list_of<double, std::is_floating_point>(find(key));
}

std::vector<std::int64_t> Header::of_layers(std::string_view key) const {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, integer("block_count")));
  if (!has(key)) return {};
  std::vector<std::int64_t> list = integers(key);
  if (list.empty()) return std::vector<std::int64_t>(count, integer(key));
  list.resize(count, 0);
  return list;
}

}  // namespace millrace::convert
