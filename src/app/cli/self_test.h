// `millrace doctor --self-test`: whether this machine reads and computes as Millrace expects, for reports of testers.
#pragma once

#include <string>

namespace millrace::cli {

struct SelfTest {
  std::string report;  // lines for people, who attach them to an issue
  bool passed = false;
};

/// Reads a file of 32 MiB, made on the disk of `path` and removed again, by every storage backend of this system, and
/// multiplies with weights of every type by the kernels of every instruction set of this processor, whose results must
/// have the bits of the plain ones. `path`: a file or a directory ("": the current directory). Takes seconds.
SelfTest run_self_test(const std::string& path);

}  // namespace millrace::cli
