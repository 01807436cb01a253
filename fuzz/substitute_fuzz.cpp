// Files of substitutes: any bytes are refused in one line, or what is found lies inside the file and stands part by
// part beside the model's units. The first byte says whether a file holds the bytes as they are, or put into one that
// was written.
#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/log.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/quantize.h"
#include "patched.h"
#include "residency/substitutes.h"

namespace {

using namespace millrace;
using namespace millrace::residency;

constexpr std::string_view kModel = "0123456789abcdef0123456789abcdef";
constexpr std::int64_t kCols = 64, kRows = 6, kExperts = 3;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Setting {
  std::string folder, model_path, path;
  modelfile::Model model;
  UnitTable units;
  std::vector<char> good;

  Setting() {
    log::set_level(log::Level::off);
    char name[] = "/tmp/substitute-fuzz-XXXXXX";
    check(mkdtemp(name) != nullptr);
    folder = name;
    model_path = folder + "/model";
    path = folder + "/model.substitute";
    modelfile::Writer writer(model_path);
    check(writer.add("general.architecture", modelfile::Value(std::string("llama"))).ok());
    check(writer.declare("blk.0.attn_norm.weight", DType::f32, {kCols}).ok());
    check(writer.declare("blk.0.attn_q.weight", DType::f32, {kCols, kRows}).ok());
    check(writer.declare("blk.0.ffn_up_exps.weight", DType::f32, {kCols, kRows, kExperts}).ok());
    check(writer.begin().ok());
    const std::vector<std::byte> rows(static_cast<std::size_t>(kCols * 4 * (1 + kRows + kRows * kExperts)));
    check(writer.write_tensor_data(rows).ok() && writer.finish().ok());
    modelfile::QuantizeOptions options;
    options.type = modelfile::QuantizeType::q8_0;
    options.threads = 1;
    options.substitute_of = kModel;
    check(modelfile::quantize(model_path, path, options).ok());
    auto opened = modelfile::Model::open(model_path);
    check(opened.ok());
    model = std::move(*opened);
    list_units();
    std::ifstream file(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(file), {});
  }
  ~Setting() { std::filesystem::remove_all(folder); }

  void list_units() {
    const auto &norm = model.tensors()[0], &query = model.tensors()[1], &experts = model.tensors()[2];
    Unit trunk;
    trunk.layer = 0;
    trunk.parts = {{norm.name, DType::f32, 1, kCols, 0, norm.offset},
                   {query.name, DType::f32, kRows, kCols, 0, query.offset}};
    units.add(std::move(trunk));
    for (int expert = 0; expert < kExperts; ++expert) {
      Unit unit;
      unit.kind = UnitKind::expert;
      unit.layer = 0;
      unit.expert = expert;
      unit.parts = {{experts.name, DType::f32, kRows, kCols, 0, experts.offset}};
      unit.parts[0].offset += static_cast<std::uint64_t>(expert) * unit.parts[0].bytes();
      units.add(std::move(unit));
    }
    units.cut(1 << 20);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Setting setting;
  if (size < 3) return 0;
  std::vector<char> file(data + 3, data + size);
  if (data[0] % 4 != 0) file = patched(setting.good, data, file);
  std::ofstream(setting.path, std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
  const auto found = Substitutes::open(setting.path, setting.model, setting.units, kModel);
  if (!found.ok()) {
    check(!found.status().message().empty() && found.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const UnitTable both = (*found)->beside(setting.units, 1 << 20, 1);
  check(both.units().size() > setting.units.units().size());
  for (const Unit& unit : both.units()) {
    if (unit.substitute_of < 0) continue;
    const Unit& own = both.units()[static_cast<std::size_t>(unit.substitute_of)];
    check(unit.parts.size() == own.parts.size());
    for (std::size_t p = 0; p < unit.parts.size(); ++p) {
      const Part& part = unit.parts[p];
      check(part.rows == own.parts[p].rows && part.cols == own.parts[p].cols);
      check(part.file == 0 || part.offset + part.bytes() <= file.size());
    }
  }
  return 0;
}
