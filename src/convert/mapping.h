// Maps a checkpoint's tensors to those of a GGUF file by a family's table.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "convert/family.h"

namespace millrace::convert {

/// A checkpoint's tensor name with placeholders for its numbers: "model.layers.#.mlp.experts.*.up_proj.weight".
struct ParsedName {
  std::string pattern;
  std::int64_t layer = -1, expert = -1;  // or a piece; -1: none
};
/// Multimodal models have several prefixes for the language model; the result always has "model.". `layers`: the number
/// of layers; if Family::draft_apart, the blocks of "mtp." are numbered after them.
ParsedName parse_name(std::string_view name, const Family& family, std::int64_t layers);

/// The checkpoint's name for a rule's tensor.
std::string their_name(const NameRule& rule, const Family& family, std::int64_t layers, std::int64_t layer,
                       std::int64_t expert);
/// GGUF's name for it.
std::string our_name(const NameRule& rule, std::int64_t layer);

enum class Duty : std::uint8_t {
  weight,   // the table has it
  beside,   // belongs to a part that this function does not convert: vision or audio
  nothing,  // not needed to compute: scales of activations, frequencies that follow from the config, position ids
  unknown
};
/// What to do with a checkpoint's tensor for which the family has no rule.
Duty duty_of(std::string_view name);

/// A tensor of the GGUF file, and the indices (into the list of names) of the checkpoint's tensors that make it.
struct Group {
  const NameRule* rule = nullptr;
  std::int64_t layer = -1;
  std::vector<std::size_t> parts;  // experts and pieces: in order
};

struct Mapping {
  std::vector<Group> groups;  // in the file's order: embedding, layers, the rest
  std::size_t hears = 0;      // skipped audio tensors
  std::size_t unused = 0;     // skipped tensors of Family::unused and ::skips_extra
  std::int64_t draft_blocks = 0;
};

/// `names`: all tensors except scales that are part of others. Errors: unsupported (a tensor that the family does not
/// know, named), corrupt (a missing or duplicate expert, a layer after the last).
Expected<Mapping> map_names(const std::vector<std::string>& names, const Family& family, std::int64_t layers,
                            std::int64_t most_draft_blocks);

/// A rule and layer for a tensor of a GGUF file; rule is null if the family has none.
struct OurName {
  const NameRule* rule = nullptr;
  std::int64_t layer = -1;
};
std::vector<OurName> rules_of(std::string_view name, const Family& family);

}  // namespace millrace::convert
