// Where measured rates are kept: one JSON file of the user's cache, a member a machine and disk.
#include <filesystem>

#include "base/json.h"
#include "base/json_nesting.h"
#include "base/os/file_info.h"
#include "base/os/user_folders.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "residency/calibrate.h"
#include "residency/small_file.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;
constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // a machine's name may hold any bytes

/// The file's members; an empty object if there is no such file or it is not ours.
nlohmann::json read_rates_file(const std::string& path) {
  const auto text = read_small_file(path, kMostRatesBytes);
  if (!text.ok() || nests_too_deep(*text)) return nlohmann::json::object();
  nlohmann::json all = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return all.is_object() ? all : nlohmann::json::object();
}

}  // namespace

Expected<std::string> machine_key(const std::string& path) {
  const std::string looked_at = path.empty() ? "." : path;
  const auto info = os::file_info(looked_at);
  if (!info.ok()) return error(Code::not_found, "{}: {}; check the path", looked_at, info.status().message());
  return fmt::format("{}, {} processors; disk {}", device::cpu_model_name(), ThreadPool::usable_processors(),
                     os::volume_name(info->volume));
}

Expected<std::string> rates_file() {
  const std::string cache = os::user_folder(os::UserFolder::cache);
  if (cache.empty())
    return error(Code::not_found, "no home directory to keep rates in: {}",
                 os::user_folder_hint(os::UserFolder::cache));
  return cache + "/millrace/rates.json";
}

Expected<Rates> load_rates(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string key, machine_key(path));
  MR_ASSIGN_OR_RETURN(const std::string file, rates_file());
  const nlohmann::json all = read_rates_file(file);
  const auto found = all.find(key);
  if (found == all.end()) {
    return error(Code::not_found, "no rates are known for this machine and disk ({}): run 'millrace calibrate'", key);
  }
  auto rates = parse_rates_json(found->dump(-1, ' ', false, kReplace));
  if (!rates.ok()) return rates.status().with_context(file);
  return rates;
}

Status save_rates(const std::string& path, const Rates& rates) {
  MR_ASSIGN_OR_RETURN(const std::string key, machine_key(path));
  MR_ASSIGN_OR_RETURN(const std::string file, rates_file());
  nlohmann::json all = read_rates_file(file);
  if (rates.brief) {
    const auto kept = all.find(key);
    if (kept != all.end()) {
      const auto known = parse_rates_json(kept->dump(-1, ' ', false, kReplace));
      if (known.ok() && !known->brief) return {};
    }
  }
  all[key] = nlohmann::json::parse(rates_to_json(rates), nullptr, /*allow_exceptions=*/false);

  std::error_code code;
  fs::create_directories(fs::path(file).parent_path(), code);
  // In one step, so that another millrace never reads half a file.
  const std::string text = all.dump(2, ' ', false, kReplace) + "\n";
  return write_small_file(file, text).with_context("cannot keep the rates");
}

}  // namespace millrace::residency
