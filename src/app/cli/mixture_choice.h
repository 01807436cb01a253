// Types that quantize chooses itself: the mixture of so many bytes, or of so much divergence.
#pragma once

#include <optional>
#include <string>

#include "app/cli/command.h"
#include "base/status.h"
#include "modelfile/quantize.h"

namespace millrace::cli {

struct MixtureFlags {
  std::string bytes, sensitivity;
  std::optional<double> divergence;
  /// Whether types are to be chosen.
  bool chooses() const { return !bytes.empty() || divergence.has_value(); }
};
/// --bytes, --divergence and --sensitivity.
void add_mixture_flags(CLI::App& command, MixtureFlags& flags);
/// Errors: invalid_argument (one of the flags without the one that it needs).
Status check(const MixtureFlags& flags);

/// The model's types into the options, and what was chosen to standard output. REQUIRES: flags.chooses() and
/// check(flags). Errors: invalid_argument, not_found, io_error, out_of_budget (no mixture is so small, or diverges so
/// little).
Status choose_types(const MixtureFlags& flags, int threads, const modelfile::Model& model,
                    modelfile::QuantizeOptions& options);

}  // namespace millrace::cli
