// Standard input as texts, of bounded length: what never ends is an error, not all of the memory.
// Thread-safety: one thread reads.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace::cli {

/// Bytes that one text may have: an eighth of the memory, as a server's requests have, and 64 MB at most. `ram_bytes`:
/// the cap; 0: none was given.
std::uint64_t most_text_bytes(std::uint64_t ram_bytes);

/// All of standard input. Errors: invalid_argument (it has more bytes than `most`), io_error.
Expected<std::string> read_input(std::uint64_t most);

/// The next line of it, without its end; false: there is none. Errors: as read_input().
Expected<bool> read_input_line(std::string& line, std::uint64_t most);

}  // namespace millrace::cli
