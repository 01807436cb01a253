// The fields of transformers' config classes: what a key of config.json that is left out means, by which other names it
// goes, and which fields change what a model computes. scripts/config_fields.py writes the table from an installed
// transformers. Thread-safety: constants.
#pragma once

#include <span>
#include <string_view>

namespace millrace::convert {

struct ConfigClass {
  std::string_view model_type;
  std::string_view defaults;  // a JSON object: the value of each field that is left out
  std::string_view aliases;   // a JSON object: another name of a field, and the field
  std::string_view felt;      // a JSON list: fields that the modelling code reads
  bool partial_by_default;    // partial_rotary_factor counts without a scaling, too
};

std::span<const ConfigClass> config_classes();
/// nullptr: none.
const ConfigClass* config_class(std::string_view model_type);

}  // namespace millrace::convert
