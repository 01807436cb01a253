// The typed look-ups of Model: one place that says which stored types convert to which asked ones.
#include <concepts>
#include <limits>
#include <type_traits>

#include "modelfile/escape.h"
#include "modelfile/gguf.h"

namespace millrace::modelfile {
namespace {

template <typename T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <typename T>
constexpr std::string_view type_word() {
  if constexpr (is_integer<T>)
    return "an integer";
  else if constexpr (std::is_floating_point_v<T>)
    return "a float";
  else if constexpr (std::is_same_v<T, bool>)
    return "a boolean";
  else if constexpr (std::is_same_v<T, std::string>)
    return "a string";
  else
    return "an array";
}

std::string_view word_of(const Value& value) {
  return std::visit([](const auto& held) { return type_word<std::decay_t<decltype(held)>>(); }, value);
}

template <typename T>
bool fits(T value) {
  if constexpr (std::is_same_v<T, std::uint64_t>)
    return value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  return true;
}

/// Where look-ups fail: file and key, then what is wrong.
struct Lookup {
  const Model& model;
  std::string_view key;

  std::string where() const {
    return fmt::format("{}: metadata key '{}'", model.paths().empty() ? "model" : escape(model.paths()[0]),
                       escape(key, 80));
  }
  Expected<const Value*> value() const {
    const auto found = model.metadata().find(key);
    if (found == model.metadata().end()) {
      return error(Code::not_found, "{} is missing; convert the model again with a current converter", where());
    }
    return &found->second;
  }
  Status wrong(const Value& value, std::string_view expected) const {
    return error(Code::corrupt, "{} is {} where {} is expected; convert the model again with a current converter",
                 where(), word_of(value), expected);
  }
  Status too_large() const {
    return error(Code::corrupt, "{} holds a number past 2^63; download the file again", where());
  }
  Expected<const Array*> array(std::string_view expected) const {
    MR_ASSIGN_OR_RETURN(const Value* const found, value());
    const auto* held = std::get_if<std::shared_ptr<const Array>>(found);
    if (held == nullptr) return wrong(*found, expected);
    return held->get();
  }
};

}  // namespace

Expected<std::int64_t> Model::get_int(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Value* const value, lookup.value());
  return std::visit(
      [&](const auto& held) -> Expected<std::int64_t> {
        if constexpr (is_integer<std::decay_t<decltype(held)>>) {
          if (!fits(held)) return lookup.too_large();
          return static_cast<std::int64_t>(held);
        } else {
          return lookup.wrong(*value, "an integer");
        }
      },
      *value);
}

Expected<double> Model::get_float(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Value* const value, lookup.value());
  return std::visit(
      [&](const auto& held) -> Expected<double> {
        using T = std::decay_t<decltype(held)>;
        // Converters write whole numbers as integers at times (a rope base of 10000).
        if constexpr (std::is_floating_point_v<T> || is_integer<T>)
          return static_cast<double>(held);
        else
          return lookup.wrong(*value, "a float");
      },
      *value);
}

Expected<bool> Model::get_bool(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Value* const value, lookup.value());
  if (const bool* held = std::get_if<bool>(value)) return *held;
  return lookup.wrong(*value, "a boolean");
}

Expected<std::string> Model::get_string(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Value* const value, lookup.value());
  if (const auto* held = std::get_if<std::string>(value)) return *held;
  return lookup.wrong(*value, "a string");
}

Expected<std::vector<std::string>> Model::get_strings(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Array* const array, lookup.array("an array of strings"));
  if (const auto* held = std::get_if<std::vector<std::string>>(&array->elements)) return *held;
  return error(Code::corrupt, "{} is an array of another type where strings are expected; convert the model again",
               lookup.where());
}

Expected<std::vector<float>> Model::get_floats(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Array* const array, lookup.array("an array of floats"));
  return std::visit(
      [&](const auto& held) -> Expected<std::vector<float>> {
        using T = typename std::decay_t<decltype(held)>::value_type;
        if constexpr (std::is_floating_point_v<T>)
          return std::vector<float>(held.begin(), held.end());
        else
          return error(Code::corrupt,
                       "{} is an array of another type where floats are expected; convert the model again",
                       lookup.where());
      },
      array->elements);
}

Expected<std::vector<std::int64_t>> Model::get_ints(std::string_view key) const {
  const Lookup lookup{*this, key};
  MR_ASSIGN_OR_RETURN(const Array* const array, lookup.array("an array of integers"));
  return std::visit(
      [&](const auto& held) -> Expected<std::vector<std::int64_t>> {
        using T = typename std::decay_t<decltype(held)>::value_type;
        if constexpr (std::is_integral_v<T>) {  // of booleans, too: 0 and 1
          for (const T number : held) {
            if (!fits(number)) return lookup.too_large();
          }
          return std::vector<std::int64_t>(held.begin(), held.end());
        } else {
          return error(Code::corrupt,
                       "{} is an array of another type where integers are expected; convert the model again",
                       lookup.where());
        }
      },
      array->elements);
}

Expected<std::int64_t> Model::get_int_or(std::string_view key, std::int64_t fallback) const {
  return has(key) ? get_int(key) : fallback;
}

Expected<double> Model::get_float_or(std::string_view key, double fallback) const {
  return has(key) ? get_float(key) : fallback;
}

Expected<bool> Model::get_bool_or(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : fallback;
}

}  // namespace millrace::modelfile
