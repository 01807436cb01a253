// The table of docs/reference/models-and-file-types.md is what the reference tests hold (engine/reference.h): a cell
// says yes where its test wants transformers' logits, no where it wants a refusal. With MILLRACE_WRITE_TABLE set, the
// table is written anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/reference.h"

namespace millrace::engine {
namespace {

using namespace test;

constexpr const char* kPage = MILLRACE_SOURCE_DIR "/docs/reference/models-and-file-types.md";
constexpr const char* kBegin = "<!-- What the reference tests hold; `make models-table` writes it. -->\n";
constexpr const char* kEnd = "<!-- -->\n";

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A GGUF file's general.architecture: a string behind its key, its type (4 bytes) and its length (8).
std::string architecture(const Checkpoint& checkpoint) {
  const std::string file = read(checkpoint.model()), key = "general.architecture";
  const std::size_t at = file.find(key);
  EXPECT_NE(at, std::string::npos) << checkpoint.model();
  if (at == std::string::npos) return "";
  return file.substr(at + key.size() + 12, static_cast<unsigned char>(file[at + key.size() + 4]));
}

std::string table() {
  std::string text = "| models | architecture |", rule = "|---|---|";
  for (const PlaceName& place : kPlaces) {
    text += std::string(" ") + place.heading + " |";
    rule += "---|";
  }
  text += "\n" + rule + "\n";
  for (const Checkpoint& checkpoint : kCheckpoints) {
    text += std::string("| ") + checkpoint.family + " | `" + architecture(checkpoint) + "` |";
    for (const PlaceName& place : kPlaces) text += checkpoint.runs(place.place) ? " yes |" : " no |";
    text += "\n";
  }
  return text;
}

TEST(ModelsTable, IsWhatTheReferenceTestsHold) {
  std::string page = read(kPage);
  const std::size_t begin = page.find(kBegin);
  ASSERT_NE(begin, std::string::npos) << "docs/reference/models-and-file-types.md has no mark " << kBegin;
  const std::size_t from = begin + std::string(kBegin).size(), end = page.find(kEnd, from);
  ASSERT_NE(end, std::string::npos) << "docs/reference/models-and-file-types.md has no mark " << kEnd;
  if (std::getenv("MILLRACE_WRITE_TABLE") != nullptr) {
    page.replace(from, end - from, table());
    std::ofstream(kPage, std::ios::binary) << page;
    return;
  }
  EXPECT_EQ(page.substr(from, end - from), table()) << "`make models-table` writes it anew";
}

}  // namespace
}  // namespace millrace::engine
