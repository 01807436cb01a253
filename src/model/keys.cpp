#include "model/keys.h"

#include <fmt/format.h>

#include <cmath>

namespace millrace::model {

std::string arch_key(const modelfile::Model& file, std::string_view key) {
  const Expected<std::string> architecture = file.get_string("general.architecture");
  return fmt::format("{}.{}", architecture.ok() ? *architecture : "?", key);
}

std::int64_t Keys::required(std::string_view key, std::int64_t least, std::int64_t most) {
  return in_range(key, file_.get_int(arch_key(file_, key)), least, most);
}

std::int64_t Keys::optional(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
  return in_range(key, file_.get_int_or(arch_key(file_, key), fallback), least, most);
}

std::vector<std::int64_t> Keys::of_layers(std::string_view key, std::int64_t count, std::int64_t fallback,
                                          std::int64_t least, std::int64_t most) {
  const auto layers = static_cast<std::size_t>(count);
  const std::string name = arch_key(file_, key);
  const auto found = file_.metadata().find(name);
  const bool array =
      found != file_.metadata().end() && std::holds_alternative<std::shared_ptr<const modelfile::Array>>(found->second);
  if (!array) return std::vector<std::int64_t>(layers, optional(key, fallback, least, most));
  Expected<std::vector<std::int64_t>> values = file_.get_ints(name);
  if (!values.ok()) return fail(values.status()), std::vector<std::int64_t>(layers, least);
  if (values->size() < layers) {
    fail(error(Code::corrupt, "{} has {} values for {} layers", name, values->size(), layers));
    return std::vector<std::int64_t>(layers, least);
  }
  values->resize(layers);
  for (std::int64_t& value : *values) value = in_range(key, value, least, most);
  return *std::move(values);
}

double Keys::optional_float(std::string_view key, double fallback, double above, double most) {
  const Expected<double> value = file_.get_float_or(arch_key(file_, key), fallback);
  if (!value.ok()) return fail(value.status()), fallback;
  return float_in_range(key, *value, fallback, above, most);
}

double Keys::float_in_range(std::string_view key, double value, double fallback, double above, double most) {
  if (std::isfinite(value) && value > above && value <= most) return value;
  return fail(error(Code::corrupt, "{} is {}, which cannot be", arch_key(file_, key), value)), fallback;
}

std::vector<double> Keys::floats_of_layers(std::string_view key, std::int64_t count, double fallback, double above,
                                           double most) {
  const auto layers = static_cast<std::size_t>(count);
  const std::string name = arch_key(file_, key);
  const auto found = file_.metadata().find(name);
  if (found == file_.metadata().end() ||
      !std::holds_alternative<std::shared_ptr<const modelfile::Array>>(found->second))
    return std::vector<double>(layers, optional_float(key, fallback, above, most));
  Expected<std::vector<float>> values = file_.get_floats(name);
  if (!values.ok()) return fail(values.status()), std::vector<double>(layers, fallback);
  if (values->size() < layers) {
    fail(error(Code::corrupt, "{} has {} values for {} layers", name, values->size(), layers));
    return std::vector<double>(layers, fallback);
  }
  std::vector<double> all;
  for (std::size_t i = 0; i < layers; ++i) all.push_back(float_in_range(key, (*values)[i], fallback, above, most));
  return all;
}

bool Keys::optional_bool(std::string_view key, bool fallback) {
  const Expected<bool> value = file_.get_bool_or(arch_key(file_, key), fallback);
  if (!value.ok()) return fail(value.status()), fallback;
  return *value;
}

std::int64_t Keys::in_range(std::string_view key, const Expected<std::int64_t>& value, std::int64_t least,
                            std::int64_t most) {
  if (!value.ok()) return fail(value.status()), least;
  if (*value < least || *value > most) {
    fail(error(Code::corrupt, "{} is {}, which cannot be (it must lie in {}..{})", arch_key(file_, key), *value, least,
               most));
    return least;
  }
  return *value;
}

}  // namespace millrace::model
