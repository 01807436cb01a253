// The fields of transformers' config classes: the defaults of missing keys of config.json, the aliases of keys, and the
// fields that change what a model computes. scripts/config_fields.py writes the table from an installed transformers.
// Thread-safety: constants.
#pragma once

#include <span>
#include <string_view>

namespace millrace::convert {

struct ConfigClass {
  std::string_view model_type;
  std::string_view defaults;  // a JSON object: the default of each field
  std::string_view aliases;   // a JSON object: alias to field
  std::string_view felt;      // a JSON list: the fields that the modelling code reads
  bool partial_by_default;    // partial_rotary_factor applies without a scaling, too
};

std::span<const ConfigClass> config_classes();
/// nullptr: none.
const ConfigClass* config_class(std::string_view model_type);

}  // namespace millrace::convert
