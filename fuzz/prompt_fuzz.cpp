// The files of the prompt cache: any bytes under a name that is looked for are refused in one line, or they are exactly
// what was written for it. The first byte says whether the folder holds them as they are or put into a file that was
// written before, where they are next to right.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/log.h"
#include "kv/prompt_store.h"
#include "patched.h"

namespace {

using namespace millrace;
using namespace millrace::kv;

constexpr LayerKv kLayer{.kv_heads = 1, .k_dim = 1, .v_dim = 1};
const Layout kLayout(std::span(&kLayer, 1));
const Group& kShape = kLayout.groups()[0];

void check(bool holds) {
  if (!holds) std::abort();
}

struct Setting {
  std::vector<Token> tokens;
  PromptBlock block;
  std::vector<std::byte> payload, out;
  std::string folder, path;
  std::vector<char> good;  // the file as it should be
  std::unique_ptr<PromptStore> store;

  Setting() : tokens(2 * kBlockTokens), payload(static_cast<std::size_t>(kShape.block_bytes())), out(payload.size()) {
    log::set_level(log::Level::off);
    std::iota(tokens.begin(), tokens.end(), 0);
    const PromptKey root = root_key("a model", kLayout);
    const std::span<const Token> all = tokens;
    block = {kShape, 0, root, next_key(next_key(root, all.first(kBlockTokens)), all.last(kBlockTokens)), all};
    for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
    char name[] = "/tmp/prompt-fuzz-XXXXXX";
    check(mkdtemp(name) != nullptr);
    folder = name;
    path = folder + "/" + block.key.hex() + ".kv";
    auto opened = PromptStore::open({folder, 1 << 20, 0});
    check(opened.ok());
    store = std::move(*opened);
    check(store->save(block, payload.data(), {}).ok());
    std::ifstream file(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(file), {});
    check(good.size() == block.file_bytes());
  }
  ~Setting() { std::filesystem::remove_all(folder); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Setting setting;
  if (size < 3) return 0;
  std::vector<char> file(data + 3, data + size);
  if (data[0] % 2 == 0) file = patched(setting.good, data, file);
  std::ofstream(setting.path, std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
  const Status status = setting.store->load(setting.block, setting.out.data());
  check(status.ok() == (file == setting.good));
  check(status.ok() || (status.code() == Code::corrupt && status.message().find('\n') == std::string::npos));
  check(!status.ok() || setting.out == setting.payload);
  check(std::filesystem::exists(setting.path) == status.ok());
  return 0;
}
