// `millrace verify`: whether a file's weights can be computed with, what they are by their hashes, and whether they
// come from the disk twice as the same bytes.
#include "modelfile/verify.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <memory>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "base/bytes.h"
#include "model/model.h"
#include "modelfile/escape.h"
#include "residency/weight_store.h"

namespace millrace::cli {
namespace {

struct VerifyFlags {
  std::string model, against, ram;
  bool hashes = false, reload = false;
  int threads = 0;
};

using modelfile::VerifiedTensor;

Expected<std::vector<VerifiedTensor>> check_tensors(const modelfile::Model& model, const VerifyFlags& flags,
                                                    const Program& program) {
  Progress progress("Verifying", Unit::bytes, program.quiet);
  modelfile::VerifyOptions options;
  options.threads = flags.threads;
  follow(progress, options);
  return modelfile::verify(model, options);
}

/// A unit's bytes as they lie in memory, tile by tile; of tables that are read by rows, row by row.
Expected<std::uint64_t> hash_unit(residency::WeightStore& store, std::int32_t unit) {
  constexpr std::int64_t kRowsAtOnce = 256;
  const residency::UnitTable& units = store.units();
  const residency::Unit& what = units.units()[static_cast<std::size_t>(unit)];
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  if (what.by_rows) {
    std::vector<std::byte> bytes;
    for (std::int32_t part = 0; part < static_cast<std::int32_t>(what.parts.size()); ++part) {
      const residency::Part& table = what.parts[static_cast<std::size_t>(part)];
      for (std::int64_t row = 0; row < table.rows; row += kRowsAtOnce) {
        std::vector<std::int64_t> rows;
        for (std::int64_t i = row; i < std::min(row + kRowsAtOnce, table.rows); ++i) rows.push_back(i);
        bytes.resize(rows.size() * static_cast<std::size_t>(row_bytes(table.dtype, table.cols)));
        MR_RETURN_IF_ERROR(store.read_rows({unit, part}, rows, bytes.data()));
        XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
      }
    }
    return XXH3_64bits_digest(state.get());
  }
  const auto [first, last] = units.tiles_of(unit);
  for (std::int32_t tile = first; tile < last; ++tile) {
    MR_ASSIGN_OR_RETURN(residency::Lease lease, store.lease(tile));
    MR_RETURN_IF_ERROR(lease.wait());
    const auto& segments = units.tiles()[static_cast<std::size_t>(tile)].segments;
    for (std::size_t i = 0; i < segments.size(); ++i)
      XXH3_64bits_update(state.get(), lease.segment(i), segments[i].bytes);
  }
  return XXH3_64bits_digest(state.get());
}

/// Of every unit that a pass may use, in a pass's order.
Expected<std::vector<std::uint64_t>> hash_pass(residency::WeightStore& store, std::uint64_t& done, std::uint64_t total,
                                               Progress& progress) {
  std::vector<std::uint64_t> hashes;
  store.begin_pass();
  for (std::int32_t unit = 0; unit < static_cast<std::int32_t>(store.units().units().size()); ++unit) {
    const residency::Unit& what = store.units().units()[static_cast<std::size_t>(unit)];
    if (what.aside) continue;
    if (interrupted()) return error(Code::cancelled, "it was cancelled");
    MR_ASSIGN_OR_RETURN(const std::uint64_t hash, hash_unit(store, unit));
    hashes.push_back(hash);
    progress.update(done += what.bytes(), total);
  }
  store.end_pass();
  return hashes;
}

/// The memory asked for, or a quarter of the weights, or what it takes to hold the largest units.
Expected<residency::Plan> small_plan(const residency::UnitTable& units, const std::string& ram) {
  residency::PlanOptions options;
  options.passes.top_k = 1;
  if (!ram.empty()) {
    MR_ASSIGN_OR_RETURN(options.ram_bytes, parse_bytes(ram));
    return residency::make_plan(units, options, {});
  }
  const std::uint64_t all = units.total_bytes();
  for (options.ram_bytes = all / 4;; options.ram_bytes += all / 4 + 1) {
    auto plan = residency::make_plan(units, options, {});
    if (plan.ok() || plan.status().code() != Code::out_of_budget || options.ram_bytes > 8 * all) return plan;
  }
}

/// All units through a store that has not room for them, twice, and evicted memory poisoned between.
Status reload(const modelfile::Model& file, const VerifyFlags& flags, const Program& program) {
  MR_ASSIGN_OR_RETURN(const auto model, model::load(file, {}));
  const residency::UnitTable& units = model->units();
  MR_ASSIGN_OR_RETURN(const residency::Plan plan, small_plan(units, flags.ram));
  MR_ASSIGN_OR_RETURN(const auto backend, storage::open_backend(file.paths(), {}));
  residency::Budget budget(UINT64_MAX);
  residency::StoreOptions options;
  options.poison_evicted = true;
  MR_ASSIGN_OR_RETURN(const auto store, residency::WeightStore::create(units, plan, *backend, budget, options));
  Progress progress("Loading twice", Unit::bytes, program.quiet);
  std::uint64_t done = 0;
  MR_ASSIGN_OR_RETURN(const auto once, hash_pass(*store, done, 2 * units.total_bytes(), progress));
  MR_ASSIGN_OR_RETURN(const auto again, hash_pass(*store, done, 2 * units.total_bytes(), progress));
  progress.finish();
  for (std::size_t unit = 0; unit < once.size(); ++unit) {
    if (once[unit] == again[unit]) continue;
    const residency::Unit& what = units.units()[unit];
    return error(Code::corrupt, "unit {} (layer {}, {}) came with other bytes the second time", unit, what.layer,
                 residency::unit_kind_name(what.kind));
  }
  const residency::StoreCounters counters = store->counters();
  fmt::print("{} units loaded twice in {} of memory: {} tiles evicted, {} read, the same bytes\n", once.size(),
             format_bytes(plan.weight_memory_bytes()), counters.evictions, format_bytes(counters.bytes_from_disk));
  return {};
}

Expected<modelfile::Model> open(const std::string& name) {
  MR_ASSIGN_OR_RETURN(const store::Resolved resolved, store::Store().resolve(name));
  return modelfile::Model::open(resolved.path, {.skip_vocabulary = true});
}

Status compare(const modelfile::Model& model, const std::vector<VerifiedTensor>& found, const VerifyFlags& flags,
               const Program& program) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model other, open(flags.against));
  MR_ASSIGN_OR_RETURN(const std::vector<VerifiedTensor> others, check_tensors(other, flags, program));
  const std::vector<std::string> lines = modelfile::differences(model, found, other, others);
  for (const std::string& line : lines) fmt::print("{}\n", line);
  if (lines.empty()) return {};
  return error(Code::corrupt, "{} tensors of {} and {} are not the same", lines.size(), modelfile::escape(flags.model),
               modelfile::escape(flags.against));
}

Status verify(const VerifyFlags& flags, const Program& program) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, open(flags.model));
  MR_ASSIGN_OR_RETURN(const std::vector<VerifiedTensor> found, check_tensors(model, flags, program));
  std::size_t bad = 0;
  std::string first;
  for (const VerifiedTensor& tensor : found) {
    const std::string name = modelfile::escape(tensor.name, 120);
    if (flags.hashes) fmt::print("{}  {}\n", tensor.hash, name);
    if (tensor.trouble.empty()) continue;
    if (++bad == 1) first = fmt::format("tensor '{}': {}", name, tensor.trouble);
    if (bad > 1) fmt::print("tensor '{}': {}\n", name, tensor.trouble);
  }
  if (bad > 0)
    return error(Code::corrupt, "{}: {}{}; download the file again", modelfile::escape(flags.model), first,
                 bad > 1 ? fmt::format(" (and {} more)", bad - 1) : "");
  if (!flags.against.empty()) MR_RETURN_IF_ERROR(compare(model, found, flags, program));
  if (flags.reload) MR_RETURN_IF_ERROR(reload(model, flags, program));
  fmt::print("{}: {} tensors, {}, every number finite{}\n", flags.model, found.size(),
             format_bytes(model.tensor_bytes()),
             flags.against.empty() ? "" : fmt::format(", the same as in {}", flags.against));
  return {};
}

}  // namespace

void add_verify(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  auto* command =
      app.add_subcommand("verify", "Check that a file's weights are numbers, and compare them with another's");
  command->add_option("model", flags->model, "A model by name, or a GGUF file (any part of a split one)")->required();
  command->add_flag("--hashes", flags->hashes, "Print each tensor's hash (XXH3, 128 bits)");
  command->add_option("--against", flags->against, "Another model, whose tensors must be the same");
  command->add_flag("--reload", flags->reload, "Load every unit twice in memory that cannot hold all, and compare");
  command->add_option("--ram", flags->ram, "With --reload: memory for weights (default: a quarter of them)");
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  command->callback([flags, &program, &exit_code] {
    install_interrupt_handler();
    const Status status = verify(*flags, program);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace millrace::cli
