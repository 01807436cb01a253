// Ranks that are threads of one process: for tests of what runs over a link. Thread-safe between ranks.
#pragma once

#include <memory>
#include <vector>

#include "link/link.h"

namespace millrace::link {

/// A link for each of `size` ranks.
std::vector<std::unique_ptr<Link>> make_local_links(int size);

}  // namespace millrace::link
