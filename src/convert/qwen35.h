// What checkpoints that grew from Qwen3.5's share with it beside names.h's tables.
#pragma once

#include "convert/family.h"

namespace millrace::convert {

void read_qwen35(Config& config, Header& header);
Status write_qwen35(const Header& header, nlohmann::json& config);

}  // namespace millrace::convert
