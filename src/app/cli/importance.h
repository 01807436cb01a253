// --imatrix, of the verbs that quantize.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "modelfile/imatrix.h"

namespace millrace::cli {

/// The importance matrix of that file; none where no file is named. Errors: as read_imatrix().
inline Expected<std::optional<modelfile::ImportanceMatrix>> read_importance(const std::string& path) {
  if (path.empty()) return std::optional<modelfile::ImportanceMatrix>();
  MR_ASSIGN_OR_RETURN(modelfile::ImportanceMatrix read, modelfile::read_imatrix(path));
  return std::optional<modelfile::ImportanceMatrix>(std::move(read));
}

}  // namespace millrace::cli
