// Which tensors of a checkpoint make which of a GGUF file, by a family's table.
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

/// A checkpoint's name with its numbers taken out: "model.layers.#.mlp.experts.*.up_proj.weight".
struct ParsedName {
  std::string pattern;
  std::int64_t layer = -1, expert = -1;  // -1: none
};
/// Models that see and hear name the part that writes in several ways; here it is always "model.". `layers`: how many
/// there are: the blocks of "mtp." stand behind them, where the family has them apart.
ParsedName parse_name(std::string_view name, const Family& family, std::int64_t layers);

/// The checkpoint's name of a rule's tensor.
std::string their_name(const NameRule& rule, const Family& family, std::int64_t layers, std::int64_t layer,
                       std::int64_t expert);
/// GGUF's.
std::string our_name(const NameRule& rule, std::int64_t layer);

enum class Duty : std::uint8_t {
  weight,   // has its place in the table
  beside,   // of a part that this version does not run: what sees and hears
  nothing,  // nothing that a model computes with: scales of activations, frequencies that the config says, numbers of
            // positions
  unknown
};
/// What becomes of a checkpoint's tensor that no rule of the family has.
Duty duty_of(std::string_view name);

/// One tensor of the GGUF file and those of the checkpoint that it is made of, as positions in a list of names.
struct Group {
  const NameRule* rule = nullptr;
  std::int64_t layer = -1;
  std::vector<std::size_t> parts;  // of experts: in their order
};

struct Mapping {
  std::vector<Group> groups;  // in the order of the file: embedding, layers, what is behind them
  std::size_t hears = 0;      // tensors of what hears, which are left out
  std::size_t unused = 0;     // and of Family::unused
  std::int64_t draft_blocks = 0;
};

/// `names`: all tensors, without the scales that belong to others. Errors: unsupported (a tensor that the family does
/// not know, named), corrupt (an expert that is missing or there twice, a layer behind the last).
Expected<Mapping> map_names(const std::vector<std::string>& names, const Family& family, std::int64_t layers,
                            std::int64_t most_draft_blocks);

/// The rule and the layer of a GGUF file's tensor; no rule where the family's table has none.
struct OurName {
  const NameRule* rule = nullptr;
  std::int64_t layer = -1;
};
std::vector<OurName> rules_of(std::string_view name, const Family& family);

}  // namespace millrace::convert
