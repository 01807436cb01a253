// Which of a mixture's experts its user's traffic calls for: counted while a model runs, kept in a small file between
// runs, and told to the caches when it runs again, which then read the likeliest ahead and let go of them last.
//
// What is counted are passes: how many used experts, and of them how many used each. Of more than kMostPasses the older
// ones count for less, so that traffic which drifts wins. A file is for one model; it has a version and a checksum, and
// one that is damaged is as good as none. Thread-safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "residency/unit.h"

namespace millrace::residency {

struct ExpertUsage {
  /// About an hour of decoding a mixture that streams; what is older fades.
  static constexpr std::int64_t kMostPasses = 16384;

  std::int64_t passes = 0;                      // that used experts
  std::vector<std::vector<std::int64_t>> uses;  // [layer][expert]: passes that used it; empty where a layer has none

  bool any() const { return passes > 0; }
  friend bool operator==(const ExpertUsage&, const ExpertUsage&) = default;
};

/// No uses, in the shape that this model's experts have.
ExpertUsage no_usage(const UnitTable& units);
/// What has come to `now` since `before`. REQUIRES: of one count, earlier and later.
ExpertUsage usage_since(const ExpertUsage& before, const ExpertUsage& now);
/// Counts `more` as the later traffic. REQUIRES: of one model.
void add_usage(const ExpertUsage& more, ExpertUsage& usage);
/// By unit, the part of all passes that use it; 0 for what is no expert. Empty: too few passes were counted to tell.
std::vector<float> usage_by_unit(const UnitTable& units, const ExpertUsage& usage);

/// Of the model that `model` names (kv::copy_identity()), in the shape of `like`. Errors: not_found, io_error; corrupt
/// (damaged), unsupported (another version), invalid_argument (another model's, or too long).
Expected<ExpertUsage> read_usage(const std::string& path, std::string_view model, const ExpertUsage& like);
/// The same of such a file's text; `path`: what errors name.
Expected<ExpertUsage> parse_usage(std::string_view text, const std::string& path, std::string_view model,
                                  const ExpertUsage& like);
/// In one step, for its owner to read. Makes the folder it lies in. Errors: io_error.
Status write_usage(const std::string& path, std::string_view model, const ExpertUsage& usage);

}  // namespace millrace::residency
