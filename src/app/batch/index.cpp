#include "app/batch/index.h"

#include <xxhash.h>

#include <algorithm>

#include "app/batch/request.h"

namespace millrace::batch {
namespace {

/// 64 bits: among a million requests two hashes agree by chance once in 37 million batches.
std::uint64_t hash_of(const std::string& custom_id) { return XXH3_64bits(custom_id.data(), custom_id.size()); }

}  // namespace

Expected<Index> Index::of(const std::string& path) {
  MR_ASSIGN_OR_RETURN(LineReader reader, LineReader::open(path));
  Index index;
  index.done_.push_back(false);
  for (;;) {
    MR_ASSIGN_OR_RETURN(const auto line, reader.next());
    if (!line) break;
    index.done_.push_back(false);
    if (line->blank()) continue;
    ++index.requests_;
    if (const std::string id = custom_id_of(line->text, line->number); !id.empty())
      index.names_.push_back({hash_of(id), line->number});
  }
  if (index.requests_ == 0) return error(Code::invalid_argument, "{}: holds no requests", path);
  std::sort(index.names_.begin(), index.names_.end(), [](const Name& one, const Name& other) {
    return one.hash != other.hash ? one.hash < other.hash : one.line < other.line;
  });
  const auto twice = std::adjacent_find(index.names_.begin(), index.names_.end(),
                                        [](const Name& one, const Name& other) { return one.hash == other.hash; });
  if (twice != index.names_.end())
    return error(Code::invalid_argument, "{}: lines {} and {} have the same custom_id; give each line one of its own",
                 path, twice[0].line, twice[1].line);
  return index;
}

Status Index::mark(std::string_view answered_line) {
  MR_ASSIGN_OR_RETURN(const Answered answered, parse_answered(answered_line));
  std::int64_t line = answered.line_number;
  if (!answered.custom_id.empty()) {
    const std::uint64_t hash = hash_of(answered.custom_id);
    const auto found = std::lower_bound(names_.begin(), names_.end(), hash,
                                        [](const Name& one, std::uint64_t wanted) { return one.hash < wanted; });
    if (found == names_.end() || found->hash != hash)
      return error(Code::invalid_argument, "answers '{}', which no request is called; give another file to write to",
                   answered.custom_id);
    line = found->line;
  }
  if (line < 1 || line >= static_cast<std::int64_t>(done_.size()))
    return error(Code::invalid_argument, "answers line {}, which there is not; give another file to write to", line);
  if (!done_[static_cast<std::size_t>(line)]) ++answered_;
  done_[static_cast<std::size_t>(line)] = true;
  return {};
}

}  // namespace millrace::batch
