#include "modelfile/inspect.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "modelfile/escape.h"

namespace millrace::modelfile {
namespace {

using Row = std::vector<std::string>;

/// Rows of cells as aligned columns, two spaces apart; `left[i]` says which are flush left.
std::string table(const std::vector<Row>& rows, const std::vector<bool>& left) {
  std::vector<std::size_t> widths(left.size(), 0);
  const auto width = [](const std::string& cell) {  // characters, not bytes
    return static_cast<std::size_t>(
        std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width(row[i]), ' ');
      line += fmt::format("  {}{}", left[i] ? row[i] : padding, left[i] ? padding : row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

/// 151936 as "151,936".
std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

/// A parameter count as people say it: "1.10B", "20.7M".
std::string count_words(double number) {
  for (const auto& [unit, word] : {std::pair{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}) {
    if (number >= unit) return fmt::format("{:.3g}{}", number / unit, word);
  }
  return fmt::format("{:.0f}", number);
}

std::uint64_t elements(const TensorInfo& tensor) {
  return static_cast<std::uint64_t>(tensor.cols()) * static_cast<std::uint64_t>(tensor.rows());
}

std::string shape_words(const TensorInfo& tensor) {
  std::string out;
  for (const std::int64_t dim : tensor.shape) out += fmt::format("{}{}", out.empty() ? "" : " x ", dim);
  return out;
}

// ---------------------------------------------------------------------------------------------------------------------
// Metadata.

template <typename T>
constexpr std::string_view element_word() {
  if constexpr (std::is_same_v<T, bool>)
    return "bool";
  else if constexpr (std::is_same_v<T, std::string>)
    return "string";
  else if constexpr (std::is_same_v<T, float>)
    return "f32";
  else if constexpr (std::is_same_v<T, double>)
    return "f64";
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return "u8";
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return "i8";
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return "u16";
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return "i16";
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return "u32";
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return "i32";
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return "u64";
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return "i64";
  else
    return "array";
}

std::string array_words(const Array& array, const InspectOptions& options);

template <typename T>
std::string element_words(const T& held, const InspectOptions& options) {
  if constexpr (std::is_same_v<T, bool>)
    return held ? "true" : "false";
  else if constexpr (std::is_same_v<T, std::string>)
    return fmt::format("\"{}\"", escape(held, options.text_characters));
  else if constexpr (std::is_arithmetic_v<T>)
    return fmt::format("{}", held);
  else
    return array_words(*held, options);
}

std::string array_words(const Array& array, const InspectOptions& options) {
  return std::visit(
      [&](const auto& values) {
        using T = typename std::decay_t<decltype(values)>::value_type;
        const std::size_t shown =
            options.array_elements == 0 ? values.size() : std::min(values.size(), options.array_elements);
        std::string out = "[";
        for (std::size_t i = 0; i < shown; ++i)
          out += fmt::format("{}{}", i == 0 ? "" : ", ", element_words<T>(values[i], options));
        return out + (shown < values.size() ? ", ...]" : "]");
      },
      array.elements);
}

std::string type_words(const Value& value) {
  if (const auto* array = std::get_if<std::shared_ptr<const Array>>(&value)) {
    return std::visit(
        [](const auto& values) {
          using T = typename std::decay_t<decltype(values)>::value_type;
          return fmt::format("{} x {}", grouped(values.size()), element_word<T>());
        },
        (*array)->elements);
  }
  return std::visit([](const auto& held) { return std::string(element_word<std::decay_t<decltype(held)>>()); }, value);
}

std::string metadata_section(const Model& model, const InspectOptions& options) {
  std::vector<Row> rows;
  for (const auto& [key, value] : model.metadata()) {
    rows.push_back({escape(key), type_words(value),
                    std::visit(
                        [&](const auto& held) {
                          using T = std::decay_t<decltype(held)>;
                          return element_words<T>(held, options);
                        },
                        value)});
  }
  if (rows.empty()) return "";
  return fmt::format("\nMetadata, {} keys\n", rows.size()) + table(rows, {true, true, true});
}

// ---------------------------------------------------------------------------------------------------------------------
// Hyperparameters.

/// <architecture>.KEY as a number where the file has it as one.
class Hyperparameters {
 public:
  explicit Hyperparameters(const Model& model) : model_(model) {
    if (auto name = model.get_string("general.architecture"); name.ok()) architecture_ = std::move(name).value();
  }
  const std::string& architecture() const { return architecture_; }
  std::optional<std::int64_t> number(std::string_view key) const {
    const auto value = model_.get_int(fmt::format("{}.{}", architecture_, key));
    return value.ok() ? std::optional(value.value()) : std::nullopt;
  }
  std::optional<double> real(std::string_view key) const {
    const auto value = model_.get_float(fmt::format("{}.{}", architecture_, key));
    return value.ok() ? std::optional(value.value()) : std::nullopt;
  }
  /// Blocks behind the layers that guess more tokens: counted with them, and used by no pass.
  std::int64_t draft_blocks() const {
    const std::int64_t blocks = number("nextn_predict_layers").value_or(0);
    return blocks > 0 && blocks < number("block_count").value_or(0) ? blocks : 0;
  }
  std::optional<std::int64_t> layers() const {
    const auto all = number("block_count");
    return all ? std::optional(*all - draft_blocks()) : std::nullopt;
  }
  std::optional<std::int64_t> head_dim() const {
    if (const auto key = number("attention.key_length")) return key;
    const auto dim = number("embedding_length"), heads = number("attention.head_count");
    return dim && heads && *heads > 0 ? std::optional(*dim / *heads) : std::nullopt;
  }
  /// Layers whose attention sees a window of `window()` tokens alone, and which keep no more of them.
  std::int64_t windowed_layers() const {
    const std::int64_t layers = this->layers().value_or(0);
    if (layers <= 0 || number("attention.sliding_window").value_or(0) <= 0) return 0;
    if (architecture_ == "gpt-oss") return layers - layers / 2;
    if (architecture_ == "gemma3") {
      const std::int64_t period = number("attention.sliding_window_pattern").value_or(6);
      return period > 0 ? layers - layers / period : 0;
    }
    return 0;
  }
  /// Bytes that one token adds to an f16 KV cache, were there no windows.
  std::optional<double> kv_bytes_per_token() const {
    const auto layers = this->layers(), width = head_dim();
    auto heads = number("attention.head_count_kv");
    if (!heads) heads = number("attention.head_count");
    if (!layers || !width || !heads) return std::nullopt;
    if (const auto rank = number("attention.kv_lora_rank"))  // one latent for all heads
      return static_cast<double>(*layers) * static_cast<double>(*rank + number("rope.dimension_count").value_or(0)) * 2;
    const double values = static_cast<double>(number("attention.value_length").value_or(*width));
    return static_cast<double>(*layers) * static_cast<double>(*heads) * (static_cast<double>(*width) + values) * 2;
  }

 private:
  const Model& model_;
  std::string architecture_;
};

std::optional<std::uint64_t> vocabulary(const Model& model, const Hyperparameters& hp) {
  const auto tokens = model.metadata().find("tokenizer.ggml.tokens");
  if (tokens != model.metadata().end()) {
    if (const auto* array = std::get_if<std::shared_ptr<const Array>>(&tokens->second)) return (*array)->size();
  }
  const auto number = hp.number("vocab_size");
  return number && *number >= 0 ? std::optional(static_cast<std::uint64_t>(*number)) : std::nullopt;
}

std::string hyperparameter_section(const Model& model, const Hyperparameters& hp) {
  std::vector<Row> rows;
  const auto add = [&](std::string label, std::string value) { rows.push_back({std::move(label), std::move(value)}); };
  const auto integer = [&](std::string label, std::string_view key) {
    const auto value = hp.number(key);
    if (value && *value >= 0) add(std::move(label), grouped(static_cast<std::uint64_t>(*value)));
  };
  if (const auto name = model.get_string("general.name"); name.ok()) add("name", escape(name.value(), 72));
  if (!hp.architecture().empty()) add("architecture", escape(hp.architecture(), 72));
  integer("context length", "context_length");
  if (const auto layers = hp.layers(); layers && *layers >= 0) {
    const std::string more = hp.draft_blocks() > 0 ? fmt::format(", and {} that guess{} more tokens", hp.draft_blocks(),
                                                                 hp.draft_blocks() == 1 ? "es" : "")
                                                   : "";
    add("layers", grouped(static_cast<std::uint64_t>(*layers)) + more);
  }
  integer("model dim", "embedding_length");
  integer("feed-forward dim", "feed_forward_length");
  integer("heads", "attention.head_count");
  integer("kv heads", "attention.head_count_kv");
  if (const auto dim = hp.head_dim()) add("head dim", fmt::format("{}", *dim));
  if (const auto experts = hp.number("expert_count"); experts && *experts > 0) {
    add("experts", fmt::format("{}, {} a token", *experts, hp.number("expert_used_count").value_or(0)));
    integer("expert dim", "expert_feed_forward_length");
  }
  if (const auto theta = hp.real("rope.freq_base")) add("rope theta", fmt::format("{}", *theta));
  if (const auto eps = hp.real("attention.layer_norm_rms_epsilon")) add("rms epsilon", fmt::format("{:.3g}", *eps));
  if (const auto tokens = vocabulary(model, hp)) add("vocabulary", grouped(*tokens));
  if (const auto bytes = hp.kv_bytes_per_token(); bytes && *bytes > 0 && *bytes < 1e15) {
    const std::int64_t layers = std::max<std::int64_t>(1, hp.layers().value_or(1)), windowed = hp.windowed_layers();
    const double lasting = *bytes * static_cast<double>(layers - windowed) / static_cast<double>(layers);
    std::string text = format_bytes(static_cast<std::uint64_t>(lasting)) + " a token in f16";
    if (windowed > 0)
      text +=
          fmt::format(", and {} for each of the last {}", format_bytes(static_cast<std::uint64_t>(*bytes - lasting)),
                      grouped(static_cast<std::uint64_t>(*hp.number("attention.sliding_window"))));
    add("kv cache", std::move(text));
  }
  return rows.empty() ? "" : fmt::format("\nHyperparameters\n{}", table(rows, {true, true}));
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensors.

bool is_expert(const TensorInfo& tensor) { return tensor.name.find("_exps.") != std::string::npos; }

/// "blk.12.attn_q.weight" as {"blk.*.attn_q.weight", 12}; a name without a layer gets -1.
std::pair<std::string, std::int64_t> pattern_of(const std::string& name) {
  constexpr std::string_view prefix = "blk.";
  std::size_t end = prefix.size();
  while (end < name.size() && end < prefix.size() + 6 && std::isdigit(static_cast<unsigned char>(name[end])) != 0)
    ++end;
  if (!name.starts_with(prefix) || end == prefix.size() || end == name.size() || name[end] != '.') return {name, -1};
  return {fmt::format("blk.*{}", name.substr(end)), std::stoll(name.substr(prefix.size(), end - prefix.size()))};
}

/// Bytes of weights that one generated token reads: everything but the embedding (unless it is the head too), of the
/// experts the share that works.
double bytes_per_token(const Model& model, const Hyperparameters& hp) {
  const auto experts = hp.number("expert_count"), used = hp.number("expert_used_count");
  double share = 1;
  if (experts && used && *experts > 0 && *used >= 0 && *used <= *experts) {
    share = static_cast<double>(*used) / static_cast<double>(*experts);
  }
  const bool tied = model.find("output.weight") == nullptr;
  double bytes = 0;
  for (const TensorInfo& tensor : model.tensors()) {
    if ((tensor.name == "token_embd.weight" && !tied) || tensor.name == "per_layer_token_embd.weight") continue;
    if (hp.draft_blocks() > 0 && pattern_of(tensor.name).second >= hp.layers().value_or(0)) continue;
    bytes += static_cast<double>(tensor.bytes) * (is_expert(tensor) ? share : 1);
  }
  return bytes;
}

std::string summary(const Model& model, const Hyperparameters& hp) {
  const std::string name =
      model.paths().empty() ? "model" : escape(std::filesystem::path(model.paths()[0]).filename().string());
  std::string out = fmt::format("{}: GGUF v{}, {}", name, model.version(), format_bytes(model.file_bytes()));
  if (model.paths().size() > 1) out += fmt::format(" in {} files", model.paths().size());
  if (model.tensors().empty()) return out + ", no tensors\n";
  double parameters = 0;
  for (const TensorInfo& tensor : model.tensors()) parameters += static_cast<double>(elements(tensor));
  out += fmt::format("\n{} parameters in {} tensors, {:.2f} bits a weight", count_words(parameters),
                     grouped(model.tensors().size()), static_cast<double>(model.tensor_bytes()) * 8 / parameters);
  const double touched = bytes_per_token(model, hp);
  out += fmt::format("\na token reads {} of weights ({:.0f} %)\n", format_bytes(static_cast<std::uint64_t>(touched)),
                     100 * touched / static_cast<double>(model.tensor_bytes()));
  return out;
}

std::string type_section(const Model& model) {
  struct Sum {
    std::uint64_t tensors = 0, parameters = 0, bytes = 0;
  };
  std::map<DType, Sum> sums;
  for (const TensorInfo& tensor : model.tensors()) {
    Sum& sum = sums[tensor.dtype];
    ++sum.tensors;
    sum.parameters += elements(tensor);
    sum.bytes += tensor.bytes;
  }
  if (sums.empty()) return "";
  std::vector<std::pair<DType, Sum>> order(sums.begin(), sums.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::vector<Row> rows{{"type", "tensors", "parameters", "bytes", "share", "bits"}};
  for (const auto& [dtype, sum] : order) {
    const auto bytes = static_cast<double>(sum.bytes);
    rows.push_back({std::string(info(dtype).name), grouped(sum.tensors),
                    count_words(static_cast<double>(sum.parameters)), format_bytes(sum.bytes),
                    fmt::format("{:.1f} %", 100 * bytes / static_cast<double>(model.tensor_bytes())),
                    fmt::format("{:.2f}", bytes * 8 / static_cast<double>(sum.parameters))});
  }
  return fmt::format("\nSizes by type\n{}", table(rows, {true, false, false, false, false, false}));
}

std::string full_list(const Model& model) {
  const bool split = model.paths().size() > 1;
  std::vector<Row> rows{{"tensor", "shape", "type", "bytes", "offset"}};
  std::vector<bool> left{true, true, true, false, false};
  if (split) rows[0].push_back("file"), left.push_back(false);
  for (const TensorInfo& tensor : model.tensors()) {
    rows.push_back({escape(tensor.name), shape_words(tensor), std::string(info(tensor.dtype).name),
                    grouped(tensor.bytes), grouped(tensor.offset)});
    if (split) rows.back().push_back(std::to_string(tensor.file + 1));
  }
  return fmt::format("\nTensors, {}\n", grouped(model.tensors().size())) + table(rows, left);
}

/// {0, 1, 2, 5} as "0-2,5". REQUIRES: sorted, not empty.
std::string ranges(const std::vector<std::int64_t>& numbers) {
  std::string out;
  for (std::size_t first = 0, last = 0; first < numbers.size(); first = last = last + 1) {
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    out += fmt::format("{}{}", out.empty() ? "" : ",", numbers[first]);
    if (last > first) out += fmt::format("-{}", numbers[last]);
  }
  return out;
}

std::string grouped_list(const Model& model) {
  struct Group {
    const TensorInfo* first;
    std::size_t place;  // of the pattern's first appearance
    std::vector<std::int64_t> layers;
    std::uint64_t bytes = 0;
  };
  std::vector<Group> groups;  // in order of first appearance
  std::map<std::string, std::vector<std::size_t>> by_pattern;
  for (const TensorInfo& tensor : model.tensors()) {
    auto [pattern, layer] = pattern_of(tensor.name);
    std::vector<std::size_t>& same = by_pattern[std::move(pattern)];
    auto found = std::find_if(same.begin(), same.end(), [&](std::size_t i) {
      return groups[i].first->dtype == tensor.dtype && groups[i].first->shape == tensor.shape;
    });
    if (found == same.end()) {
      groups.push_back({&tensor, same.empty() ? groups.size() : same.front(), {}, 0});
      found = same.insert(same.end(), groups.size() - 1);
    }
    groups[*found].layers.push_back(layer);
    groups[*found].bytes += tensor.bytes;
  }
  std::vector<Row> rows{{"tensor", "layers", "shape", "type", "bytes each", "bytes"}};
  // Groups of one pattern stand together, where the first of them appeared.
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.place < b.place; });
  for (Group& group : groups) {
    std::sort(group.layers.begin(), group.layers.end());
    rows.push_back({escape(pattern_of(group.first->name).first), group.layers[0] < 0 ? "" : ranges(group.layers),
                    shape_words(*group.first), std::string(info(group.first->dtype).name),
                    format_bytes(group.first->bytes), format_bytes(group.bytes)});
  }
  return fmt::format("\nTensors, {} (one by one with --tensors)\n", grouped(model.tensors().size())) +
         table(rows, {true, true, true, true, false, false});
}

}  // namespace

std::string render_inspect(const Model& model, const InspectOptions& options) {
  const Hyperparameters hp(model);
  std::string out = summary(model, hp) + hyperparameter_section(model, hp) + metadata_section(model, options);
  if (model.tensors().empty()) return out;
  return out + type_section(model) + (options.tensors ? full_list(model) : grouped_list(model));
}

}  // namespace millrace::modelfile
