// What tests of stages share: a stage of the bundled model with all that computes it, in this process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu.h"
#include "exec/executor.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "residency/plan.h"
#include "residency/weight_store.h"
#include "storage/storage.h"

namespace millrace::exec::test {

inline std::string demo_path() { return MILLRACE_SOURCE_DIR "/models/demo-moe-q4_k_m.gguf"; }

/// Everything that computes some of the layers. `prepared`: with passes of so many rows.
struct StageParts {
  static constexpr std::int64_t kMostRows = 48, kMostPositions = 512;

  std::unique_ptr<model::Model> model;
  residency::Budget budget{1u << 28};
  residency::Plan plan;
  std::unique_ptr<storage::Backend> backend;
  std::unique_ptr<residency::WeightStore> store;
  ThreadPool pool{{.threads = 1, .pin = false}};
  std::unique_ptr<Executor> executor;
  std::shared_ptr<kv::BlockPool> kv;

  static PassLimits limits() {
    return {.max_rows = kMostRows, .max_sequences = 4, .max_logit_rows = kMostRows, .max_positions = kMostPositions};
  }

  explicit StageParts(const model::Stage& stage) {
    auto file = modelfile::Model::open(demo_path());
    if (!file.ok()) throw std::runtime_error(file.status().message());
    auto loaded = model::load(*file, {.stage = stage});
    if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
    model = std::move(*loaded);
    const auto top_k = static_cast<int>(model->hyperparameters().top_k);
    auto made = residency::make_plan(model->units(), {.ram_bytes = 1u << 27, .passes = {.top_k = top_k}}, {});
    if (!made.ok()) throw std::runtime_error(made.status().message());
    plan = std::move(*made);
    backend = storage::open_backend(file->paths(), {.kind = storage::BackendKind::pread_buffered}).value();
    store = residency::WeightStore::create(model->units(), plan, *backend, budget, {}).value();
    executor = make_cpu_executor(*store, pool, budget, {.isa = device::best_isa(), .embedding_rows_from_disk = true});
    const Status ready = executor->prepare(model->program(), limits());
    if (!ready.ok()) throw std::runtime_error(ready.message());
    kv = std::make_shared<kv::BlockPool>(model->program().layout.with(DType::f16, kv::kOnHost), budget);
  }
};

/// Tokens of a text that is none.
inline std::vector<std::int32_t> some_tokens(std::int64_t count, std::int32_t seed) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * 7919 + seed * 104729 + i * i * 31) % 2200));
  return tokens;
}

}  // namespace millrace::exec::test
