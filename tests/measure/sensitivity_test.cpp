// Groups of a model, what they cost in other types, and files of what was found.
#include "app/measure/sensitivity.h"

#include <cmath>
#include <numeric>

#include "app/measure/model_mixture.h"
#include "measure/support.h"
#include "modelfile/overlay.h"
#include "modelfile/quantize.h"

namespace millrace::measure {
namespace {

using namespace test;

TEST(Groups, AreMixersFeedForwardsAndTheHead) {
  const modelfile::Model model = opened(moe_path());
  const std::vector<Group> groups = groups_of(model);
  ASSERT_EQ(groups.size(), 25u);
  std::int64_t elements = 0;
  for (const Group& group : groups) elements += group.elements();
  EXPECT_NEAR(static_cast<double>(elements), 20.7e6, 0.1e6);
  const auto attention =
      std::find_if(groups.begin(), groups.end(), [](const Group& g) { return g.name == "blk.3.attention"; });
  ASSERT_NE(attention, groups.end());
  EXPECT_EQ(attention->tensors.size(), 2u);
  EXPECT_EQ(bytes_as(*attention, DType::q8_0), static_cast<std::uint64_t>(attention->elements() / 32 * 34));
  const auto has = [&](const std::string& name) {
    return std::any_of(groups.begin(), groups.end(), [&](const Group& g) { return g.name == name; });
  };
  for (const char* name : {"blk.0.ffn", "blk.0.down", "blk.5.values"}) EXPECT_TRUE(has(name)) << name;
  EXPECT_TRUE(has("head"));  // the embedding is the head, too
  EXPECT_FALSE(has("embedding"));
}

TEST(Groups, RoundingTakesMoreWhereThereAreFewerBits) {
  const modelfile::Model model = opened(draft_path());
  ThreadPool pool({.threads = 2, .pin = false});
  for (const Group& group : groups_of(model)) {
    const double none = *rounding_error(model, group, DType::f16, pool);
    const double eight = *rounding_error(model, group, DType::q8_0, pool);
    const double four = *rounding_error(model, group, DType::q4_0, pool);
    EXPECT_EQ(none, 0) << group.name;
    EXPECT_GT(eight, 0);
    EXPECT_GT(four, 50 * eight) << group.name;
    EXPECT_LT(four, 0.05);
  }
}

std::vector<const Group*> pointers_to(const std::vector<Group>& groups) {
  std::vector<const Group*> all;
  for (const Group& group : groups) all.push_back(&group);
  return all;
}

double perplexity(const std::string& path, const std::string& overlay, const TextWindows& windows) {
  EngineOptions options = prepared(roomy(path), windows);
  options.model.overlay = overlay;
  Quality quality(windows.rows(), 1, nullptr, nullptr);
  run(options, windows, quality);
  return quality.perplexity().value;
}

/// A model with every group of it laid over in its own type is the model.
TEST(Overlay, OfTheSameWeightsChangesNothing) {
  const Folder folder;
  const modelfile::Model model = opened(draft_path());
  const std::vector<Group> groups = groups_of(model);
  const std::vector<const Group*> all = pointers_to(groups);
  ASSERT_TRUE(write_overlay(model, all, DType::f16, folder / "same.gguf", 2, nullptr).ok());
  ASSERT_TRUE(write_overlay(model, std::span(all).first(1), DType::q4_0, folder / "other.gguf", 2, nullptr).ok());
  const TextWindows windows = windows_of(draft_path(), {.context = 64, .most = 2});
  const double plain = perplexity(draft_path(), "", windows);
  EXPECT_EQ(perplexity(draft_path(), folder / "same.gguf", windows), plain);
  EXPECT_NE(perplexity(draft_path(), folder / "other.gguf", windows), plain);
  EXPECT_EQ(modelfile::lay_over(opened(moe_path()), opened(folder / "same.gguf")).status().code(),
            Code::invalid_argument);
}

/// NVFP4's matrices have numbers beside them that the model lacks: laid over it, they count as in a whole file.
TEST(Overlay, IsWhatQuantizeWrites) {
  const Folder folder;
  const modelfile::Model model = opened(draft_path());
  const std::vector<Group> groups = groups_of(model);
  const TextWindows windows = windows_of(draft_path(), {.context = 64, .most = 2});
  ThreadPool pool({.threads = 2, .pin = false});
  for (const DType dtype : {DType::nvfp4, DType::q3_k}) {
    ASSERT_TRUE(write_overlay(model, pointers_to(groups), dtype, folder / "over.gguf", 2, nullptr).ok());
    modelfile::QuantizeOptions options;
    std::uint64_t bytes = 0;
    for (const Group& group : groups) {
      bytes += bytes_as(group, dtype);
      for (const modelfile::TensorInfo* tensor : group.tensors)
        options.types.emplace(tensor->name, modelfile::fitting_dtype(dtype, tensor->cols()));
      EXPECT_NEAR(*rounding_error(model, group, DType::nvfp4, pool), 0.0066, 0.002) << group.name;
    }
    ASSERT_TRUE(modelfile::quantize(draft_path(), folder / "whole.gguf", options).ok());
    EXPECT_EQ(perplexity(draft_path(), folder / "over.gguf", windows), perplexity(folder / "whole.gguf", "", windows));
    // All that a file has beside its matrices was there before.
    const auto of_groups = [&](DType type) {
      std::uint64_t sum = 0;
      for (const Group& group : groups) sum += bytes_as(group, type);
      return sum;
    };
    const std::uint64_t others = model.file_bytes() - of_groups(DType::f16);
    EXPECT_NEAR(static_cast<double>(opened(folder / "whole.gguf").file_bytes()), static_cast<double>(others + bytes),
                128);
  }
}

TEST(Sensitivity, GroupsAddUpToWhatAllOfThemDo) {
  const Folder folder;
  const modelfile::Model model = opened(draft_path());
  const TextWindows windows = windows_of(draft_path(), {.context = 128, .most = 4});
  const EngineFactory make_engine = [&](const std::string& overlay) {
    EngineOptions options = prepared(roomy(draft_path()), windows);
    options.model.overlay = overlay;
    return engine::Engine::create(options);
  };
  SensitivityOptions options;
  options.types = {DType::q8_0, DType::q4_0};
  options.checks = 2;
  options.scratch = folder / "out.json";
  std::int64_t last = 0, of = 0;
  options.progress = [&](std::int64_t done, std::int64_t total, const std::string&) {
    EXPECT_GE(done, last);
    last = done;
    of = total;
  };
  const auto found = measure_sensitivity(model, windows, make_engine, options);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(last, of);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
  EXPECT_EQ(found->types, (std::vector{DType::q4_0, DType::q8_0}));
  EXPECT_EQ(found->runs, 1 + std::ssize(found->groups) + 2 + 2);
  for (std::size_t t = 0; t < 2; ++t) {
    double sum = 0;
    for (const GroupSensitivity& group : found->groups) sum += group.divergence[t];
    EXPECT_NEAR(sum, found->of_all[t], 1e-9);
    EXPECT_GT(found->of_all[t], 0);
  }
  EXPECT_GT(found->of_all[0], 20 * found->of_all[1]);
  EXPECT_GE(found->check_factor, 1);
  EXPECT_LT(found->check_factor, 3);

  ThreadPool pool({.threads = 1, .pin = false});
  const auto choices = mixture_options(model, &*found, {}, pool);
  ASSERT_TRUE(choices.ok()) << choices.status().message();
  const auto roomy_choice = choose_mixture(*choices, {1u << 30});
  ASSERT_TRUE(roomy_choice.ok());
  for (const std::size_t option : *roomy_choice) EXPECT_EQ(option, 0u);  // everything stays as it is
  EXPECT_EQ(mixture_options(opened(moe_path()), &*found, {}, pool).status().code(), Code::invalid_argument);

  const auto again = parse_sensitivity(sensitivity_to_json(*found));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(sensitivity_to_json(*again), sensitivity_to_json(*found));
}

TEST(Sensitivity, GoesAsRoundingDoes) {
  const Probe one[] = {{1, 0.5}};
  const std::vector<double> found = extrapolate(one, {0.4, 0.1, 0.0});
  EXPECT_DOUBLE_EQ(found[0], 2);
  EXPECT_DOUBLE_EQ(found[1], 0.5);
  EXPECT_DOUBLE_EQ(found[2], 0);
  const Probe of_nothing[] = {{0, 0.5}};
  EXPECT_EQ(extrapolate(of_nothing, {0.0, 0.1})[1], 0);
}

TEST(Sensitivity, GrowsBetweenItsProbesAsTheyShow) {
  // Sixteen times the divergence for four times the error: the square of it, but not below the finer probe.
  const Probe probes[] = {{0, 1.6}, {2, 0.1}};
  const std::vector<double> found = extrapolate(probes, {0.4, 0.2, 0.1, 0.05});
  EXPECT_DOUBLE_EQ(found[0], 1.6);
  EXPECT_NEAR(found[1], 0.4, 1e-12);
  EXPECT_DOUBLE_EQ(found[2], 0.1);
  EXPECT_DOUBLE_EQ(found[3], 0.05);
  // A power beyond reason, as noise makes one, is cut; what was measured stays.
  const Probe wild[] = {{0, 1e6}, {2, 0.1}};
  EXPECT_DOUBLE_EQ(extrapolate(wild, {0.4, 0.2, 0.1})[0], 1e6);
  EXPECT_NEAR(extrapolate(wild, {0.4, 0.2, 0.1})[1], 0.8, 1e-12);
}

TEST(Sensitivity, AFileThatNestsDeeplyIsRefused) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(parse_sensitivity("{\"groups\":" + deep + "}").status().code(), Code::corrupt);
}

TEST(Sensitivity, RefusesFilesThatAreOff) {
  Sensitivity one;
  one.types = {DType::q4_k};
  one.probes = {DType::q4_k};
  one.of_all = {0.1};
  one.groups = {{"head", {"output.weight"}, {0.1}, {0.1}}};
  const std::string good = sensitivity_to_json(one);
  ASSERT_TRUE(parse_sensitivity(good).ok());
  EXPECT_FALSE(parse_sensitivity("").ok());
  EXPECT_FALSE(parse_sensitivity("{}").ok());
  EXPECT_FALSE(parse_sensitivity(good.substr(0, good.size() / 2)).ok());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"\"version\": 2", "\"version\": 1"},
                                                                                 {"0.1", "-0.1"},
                                                                                 {"\"Q4_K\"", "\"Q9_K\""},
                                                                                 {"\"groups\"", "\"group\""},
                                                                                 {"\"tensors\"", "\"tensor\""}}) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << from;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_FALSE(parse_sensitivity(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace millrace::measure
