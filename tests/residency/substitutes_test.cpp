#include "residency/substitutes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "modelfile/quantize.h"
#include "modelfile/substitute.h"
#include "residency/homes.h"
#include "residency/plan.h"
#include "residency/store_fixture.h"

namespace millrace::residency {
namespace {

using test::make_units;
using test::ModelShape;

const Rates kRates{
    .disk = 3e9, .ram = 40e9, .cpu_decode = 25e9, .host_to_device = 25e9, .device_memory = 500e9, .machine = "a test"};
constexpr std::string_view kIdentity = "0123456789abcdef0123456789abcdef";

std::string model_path() { return MILLRACE_TEST_DATA "/demo-draft-f16.gguf"; }

/// The layers of a real file, a unit each.
UnitTable units_of(const modelfile::Model& file) {
  UnitTable units;
  for (int layer = 0;; ++layer) {
    Unit unit;
    unit.layer = layer;
    for (const modelfile::TensorInfo& tensor : file.tensors())
      if (tensor.name.starts_with(fmt::format("blk.{}.", layer)))
        unit.parts.push_back({tensor.name, tensor.dtype, tensor.rows(), tensor.cols(), tensor.file, tensor.offset});
    if (unit.parts.empty()) break;
    units.add(std::move(unit));
  }
  units.cut(1 << 20);
  return units;
}

class SubstituteFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / fmt::format("millrace-substitute-{}", getpid())).string();
    write(path_, kIdentity, modelfile::QuantizeType::q4_0);
    auto opened = modelfile::Model::open(model_path());
    ASSERT_TRUE(opened.ok());
    model_ = std::move(*opened);
    units_ = units_of(model_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static void write(const std::string& path, std::string_view identity, modelfile::QuantizeType type) {
    modelfile::QuantizeOptions options;
    options.type = type;
    options.threads = 2;
    options.substitute_of = identity;
    const Status status = modelfile::quantize(model_path(), path, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::string path_;
  modelfile::Model model_;
  UnitTable units_;
};

TEST_F(SubstituteFile, HasTheMatricesOfLayersAndNothingElse) {
  const auto file = modelfile::Model::open(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->get_string(modelfile::kSubstituteOf), kIdentity);
  EXPECT_FALSE(file->has("tokenizer.ggml.tokens"));
  std::set<std::string> names;
  for (const modelfile::TensorInfo& tensor : file->tensors()) {
    names.insert(tensor.name);
    EXPECT_EQ(tensor.dtype, DType::q4_0) << tensor.name;
    EXPECT_EQ(tensor.shape, model_.find(tensor.name)->shape);
  }
  for (const modelfile::TensorInfo& tensor : model_.tensors())
    EXPECT_EQ(names.contains(tensor.name), modelfile::can_be_substituted(tensor)) << tensor.name;
  EXPECT_FALSE(names.contains("output.weight") || names.contains("token_embd.weight"));
  EXPECT_FALSE(names.contains("blk.0.attn_norm.weight"));
  EXPECT_TRUE(names.contains("blk.0.attn_q.weight"));
}

TEST_F(SubstituteFile, StandsBesideTheModelsUnits) {
  const auto found = Substitutes::open(path_, model_, units_, kIdentity);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)->dtype(), DType::q4_0);
  const UnitTable both = (*found)->beside(units_, 1 << 20, 7);
  ASSERT_EQ(both.units().size(), 2 * units_.units().size());
  EXPECT_TRUE(has_substitutes(both) && !has_substitutes(units_));
  EXPECT_EQ(both.total_bytes(), units_.total_bytes()) << "the model's own";
  const auto file = *modelfile::Model::open(path_);
  for (std::size_t u = 0; u < units_.units().size(); ++u) {
    const Unit &own = both.units()[u], &copy = both.units()[units_.units().size() + u];
    EXPECT_TRUE(copy.aside);
    EXPECT_EQ(copy.substitute_of, static_cast<std::int32_t>(u));
    ASSERT_EQ(copy.parts.size(), own.parts.size());
    for (std::size_t p = 0; p < own.parts.size(); ++p) {
      const Part &from = own.parts[p], &to = copy.parts[p];
      EXPECT_EQ(to.name, from.name);
      EXPECT_EQ(to.rows, from.rows);
      EXPECT_EQ(to.cols, from.cols);
      const modelfile::TensorInfo* const tensor = file.find(from.name);
      EXPECT_EQ(to.file, tensor != nullptr ? 7 : from.file);
      EXPECT_EQ(to.offset, tensor != nullptr ? tensor->offset : from.offset);
      EXPECT_EQ(to.dtype, tensor != nullptr ? DType::q4_0 : from.dtype);
    }
  }
  const UnitTable again = without_substitutes(both, 1 << 20);
  EXPECT_EQ(again.units().size(), units_.units().size());
  EXPECT_EQ(again.tiles().size(), units_.tiles().size());
}

TEST_F(SubstituteFile, OfAnotherModelOrDamagedIsRefusedByName) {
  const auto refused = [&](const std::string& path, Code code, const std::string& word) {
    const Status status = Substitutes::open(path, model_, units_, kIdentity).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  refused("/nowhere", Code::not_found, "no such file");
  refused(model_path(), Code::invalid_argument, "is no substitute");
  const std::string other = path_ + "-other";
  write(other, "another model's, of 32 characters", modelfile::QuantizeType::q4_0);
  refused(other, Code::invalid_argument, "is stale");
  for (std::uintmax_t bytes = 0; bytes < std::filesystem::file_size(path_); bytes += 40'001) {
    std::filesystem::copy_file(path_, other, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(other, bytes);
    refused(other, Code::corrupt, "");
  }
  modelfile::Writer writer(other);
  const modelfile::TensorInfo& tensor = *model_.find("blk.0.attn_q.weight");
  ASSERT_TRUE(modelfile::add_substitute_metadata(model_, kIdentity, writer).ok());
  ASSERT_TRUE(writer.declare(tensor.name, DType::q8_0, {tensor.shape[0], tensor.shape[1] - 1}).ok());
  ASSERT_TRUE(writer.begin().ok());
  const std::vector<std::byte> zeros(static_cast<std::size_t>(row_bytes(DType::q8_0, tensor.shape[0])));
  for (std::int64_t row = 1; row < tensor.shape[1]; ++row) ASSERT_TRUE(writer.write_tensor_data(zeros).ok());
  ASSERT_TRUE(writer.finish().ok());
  refused(other, Code::corrupt, "blk.0.attn_q.weight is not the model's");
  std::filesystem::remove(other);
}

/// Copies of trunks and experts in an eighth of the bytes, somewhere.
UnitTable with_copies(const UnitTable& units, std::uint64_t tile_bytes) {
  UnitTable both;
  for (const Unit& unit : units.units()) both.add(unit);
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    Unit copy = units.units()[u];
    if (copy.layer < 0) continue;
    copy.aside = true;
    copy.substitute_of = static_cast<std::int32_t>(u);
    for (Part& part : copy.parts)
      if (part.rows > 1) part.dtype = DType::q4_0, part.file = 1;
    both.add(std::move(copy));
  }
  both.cut(tile_bytes);
  return both;
}

TEST(Exchanges, TrunksComeFirstAndAreSpreadOverThePass) {
  std::uint64_t file_bytes = 0;
  const UnitTable units = with_copies(make_units({.layers = 8, .experts = 3}, &file_bytes), 32 << 10);
  const std::vector<Exchange> all = exchanges(units);
  ASSERT_EQ(all.size(), 16u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].own.size(), i < 8 ? 1u : 3u);
    ASSERT_EQ(all[i].own.size(), all[i].substitutes.size());
    for (std::size_t k = 0; k < all[i].own.size(); ++k)
      EXPECT_EQ(units.units()[static_cast<std::size_t>(all[i].substitutes[k])].substitute_of, all[i].own[k]);
  }
  for (const std::size_t count : {2u, 4u})  // of any neighbours a part
    for (const int half : {0, 1})
      EXPECT_EQ(std::count_if(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count),
                              [&](const Exchange& one) { return one.layer / 4 == half; }),
                static_cast<std::ptrdiff_t>(count / 2));
}

std::uint64_t smallest_named(const Status& status) {
  const auto at = status.message().rfind("--ram ");
  return at == std::string::npos ? 0 : *parse_bytes(status.message().substr(at + 6));
}

/// Of every layer either its own weights or their copies are at home, under every budget, and the more the budget the
/// fewer copies.
TEST(PlanWithSubstitutes, EveryLayerHasSomebodyAtHome) {
  for (const ModelShape& shape :
       {ModelShape{.layers = 6, .tile_bytes = 32 << 10}, ModelShape{.layers = 6, .tied = true, .tile_bytes = 20 << 10},
        ModelShape{.layers = 4, .experts = 8, .tile_bytes = 64 << 10}}) {
    std::uint64_t file_bytes = 0;
    const UnitTable plain = make_units(shape, &file_bytes), units = with_copies(plain, shape.tile_bytes);
    PlanOptions options{.ram_bytes = 1, .fixed_bytes = 300000};
    options.top_k = shape.experts > 0 ? 2 : 0;
    const PlanOptions without = options;
    options.front_layers = kFrontOfSubstitutes;
    const std::uint64_t least = smallest_named(make_plan(units, options, kRates).status());
    ASSERT_GT(least, smallest_named(make_plan(plain, without, kRates).status()));
    double speed = 0;
    for (options.ram_bytes = least;; options.ram_bytes += least / 30) {
      const auto plan = make_plan(units, options, kRates);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_LE(plan->weight_memory_bytes() + options.fixed_bytes, options.ram_bytes);
      EXPECT_EQ(plan->front_layers, kFrontOfSubstitutes);
      for (std::size_t u = 0; u < units.units().size(); ++u) {
        const Unit& unit = units.units()[u];
        if (plan->front[u]) {
          EXPECT_EQ(plan->homes[u].tier, Tier::ram) << u;
        }
        if (unit.substitute_of >= 0) {
          EXPECT_NE(plan->front[u], plan->front[static_cast<std::size_t>(unit.substitute_of)]) << u;
          EXPECT_EQ(plan->homes[u].tier, plan->front[u] ? Tier::ram : Tier::disk) << "nobody keeps another";
        } else {
          EXPECT_TRUE(plan->front[u] || unit.by_rows || unit.layer >= 0) << "the head, too";
        }
      }
      EXPECT_GE(plan->predicted_decode_tokens_per_second, 0.97 * speed) << "at " << options.ram_bytes;
      speed = plan->predicted_decode_tokens_per_second;
      // What follows keeps to the same exchanges.
      PlanOptions same = options;
      same.front_own = plan->front_own;
      EXPECT_EQ(make_plan(units, same, kRates)->front, plan->front);
      if (plan->front_own + 1 == static_cast<int>(exchanges(units).size())) break;
      ASSERT_LT(options.ram_bytes, 4 * units.total_bytes()) << "it ends somewhere";
    }
    EXPECT_NE(render_plan(*make_plan(units, options, kRates), options, kRates).find("substitutes"), std::string::npos);
  }
}

/// Where they are not asked for they are nobody's: the plan is that of the model alone.
TEST(PlanWithSubstitutes, WithoutTheWishTheyAreNotThere) {
  for (const ModelShape& shape : {ModelShape{.layers = 6}, ModelShape{.layers = 4, .experts = 8}}) {
    test::Model model(shape);
    const UnitTable units = with_copies(model.units, shape.tile_bytes);
    PlanOptions options{.ram_bytes = model.units.total_bytes() / 2 + 2'000'000};
    options.top_k = shape.experts > 0 ? 2 : 0;
    options.fixed_bytes = 2'000'000;
    const auto plan = make_plan(units, options, kRates), plain = make_plan(model.units, options, kRates);
    ASSERT_TRUE(plan.ok() && plain.ok());
    EXPECT_TRUE(std::equal(plain->resident_tiles.begin(), plain->resident_tiles.end(), plan->resident_tiles.begin()));
    EXPECT_EQ(plan->weight_memory_bytes(), plain->weight_memory_bytes());
    EXPECT_EQ(plan->predicted_decode_tokens_per_second, plain->predicted_decode_tokens_per_second);
    Budget budget(options.ram_bytes);
    const auto store = WeightStore::create(units, *plan, *model.backend, budget, {.poison_evicted = true});
    ASSERT_TRUE(store.ok()) << store.status().message();
    const auto copy = static_cast<std::int32_t>(model.units.tiles().size());
    EXPECT_EQ((*store)->lease(copy).status().code(), Code::internal);
  }
}

/// Beside a GPU: copies of layers outside VRAM, and of no others.
TEST(HomesWithSubstitutes, LayersOutsideVramHaveThemInside) {
  for (const bool tied : {false, true}) {
    std::uint64_t file_bytes = 0;
    const UnitTable plain =
        make_units({.layers = 9, .dim = 1024, .trunk_rows = 2000, .tied = tied, .tile_bytes = 256 << 20}, &file_bytes);
    const UnitTable units = with_copies(plain, 256 << 20);
    const std::uint64_t layer = plain.units()[1].bytes();
    HomesInput input;
    input.vram_bytes = device_weight_bytes(plain, homes_in_vram(plain).placement) - layer * 9 / 2;
    for (const std::uint64_t ram : {std::uint64_t{1} << 40, std::uint64_t{200} << 20}) {
      input.ram_bytes = ram;
      input.front_layers = 0;
      const auto before = choose_homes(units, input, kRates), alone = choose_homes(plain, input, kRates);
      ASSERT_TRUE(before.ok() && alone.ok()) << before.status().message();
      EXPECT_EQ(before->movers, alone->movers);
      input.front_layers = kFrontOfSubstitutes;
      const auto homes = choose_homes(units, input, kRates);
      ASSERT_TRUE(homes.ok()) << homes.status().message();
      EXPECT_GE(homes->movers, alone->movers) << "they take VRAM";
      EXPECT_LT(homes->movers, 9);
      EXPECT_LE(vram_bytes(units, *homes, input), input.vram_bytes);
      EXPECT_LE(ram_bytes(units, *homes, input), input.ram_bytes);
      int movers = 0;
      for (std::size_t u = 0; u < units.units().size(); ++u) {
        const Unit& unit = units.units()[u];
        const std::vector<Tier>& tiers = homes->placement.homes;
        if (unit.substitute_of >= 0) {
          EXPECT_NE(tiers[u] == Tier::vram, tiers[static_cast<std::size_t>(unit.substitute_of)] == Tier::vram) << u;
          EXPECT_FALSE(homes->placement.moves(units, u));
          EXPECT_EQ(homes->placement.absent(units, u), tiers[u] != Tier::vram);
        } else if (unit.layer < 0 && !unit.by_rows) {
          EXPECT_EQ(tiers[u], Tier::vram) << "the head and the last norm";
        }
        movers += homes->placement.moves(units, u) ? 1 : 0;
      }
      EXPECT_EQ(movers, homes->movers);
    }
    input.vram_bytes = 9 * layer / 4;
    EXPECT_EQ(choose_homes(units, input, kRates).status().code(), Code::out_of_budget);
  }
}

}  // namespace
}  // namespace millrace::residency
