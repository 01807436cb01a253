#include "engine/usage_keeper.h"

#include <filesystem>
#include <utility>

#include "base/log.h"
#include "engine/setup.h"
#include "kv/model_identity.h"

namespace millrace::engine {

std::unique_ptr<UsageKeeper> UsageKeeper::open(const EngineOptions& options, const residency::UnitTable& units) {
  const bool of_traffic = options.experts.routing.empty() && options.part.stage.whole();
  if (options.experts.usage_folder.empty() || units.experts() == 0 || !of_traffic) return nullptr;
  const auto left_out = [](const Status& why) {
    log::warn("which experts are used is not learned: {}", why.message());
    return nullptr;
  };
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  const Expected<modelfile::Model> file = open_file(options, no_words);
  if (!file.ok()) return left_out(file.status());
  Expected<std::string> identity = kv::copy_identity(*file);
  if (!identity.ok()) return left_out(identity.status());
  std::string path = (std::filesystem::path(options.experts.usage_folder) / (*identity + ".json")).string();
  std::unique_ptr<UsageKeeper> keeper(new UsageKeeper(units, std::move(path), std::move(*identity)));
  keeper->known_ = keeper->read();
  log::info("experts: {} passes of earlier traffic are known ({})", keeper->known_.passes, keeper->path_);
  return keeper;
}

/// What the file has now.
residency::ExpertUsage UsageKeeper::read() const {
  residency::ExpertUsage none = residency::no_usage(units_);
  Expected<residency::ExpertUsage> usage = residency::read_usage(path_, model_, none);
  if (usage.ok()) return std::move(*usage);
  if (usage.status().code() != Code::not_found)
    log::warn("{}; which experts are used is learned anew", usage.status().message());
  return none;
}

void UsageKeeper::save(const Count& count) {
  last_ = std::chrono::steady_clock::now();
  if (failed_) return;
  const residency::ExpertUsage now = count(), since = residency::usage_since(saved_, now);
  if (!since.any()) return;
  residency::ExpertUsage all = read();
  residency::add_usage(since, all);
  const Status written = residency::write_usage(path_, model_, all);
  failed_ = !written.ok();
  if (failed_) return log::warn("{}", written.message());
  saved_ = now;
}

void UsageKeeper::save_in_time(const Count& count) {
  if (std::chrono::steady_clock::now() - last_ >= kEvery) save(count);
}

}  // namespace millrace::engine
