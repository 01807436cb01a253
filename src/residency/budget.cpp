#include "residency/budget.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace millrace::residency {

std::string ram_argument(std::uint64_t bytes) {
  constexpr std::uint64_t kilo = 1000, mega = 1000 * kilo, giga = 1000 * mega;
  const auto decimal = [](std::uint64_t hundredths, char unit) {
    return fmt::format("{}.{:02}{}", hundredths / 100, hundredths % 100, unit);
  };
  // Ten digits of room below UINT64_MAX keep the rounding from wrapping.
  if (bytes > UINT64_MAX - giga) return fmt::format("{}", bytes);
  if (bytes >= 10 * giga) return decimal((bytes + 10 * mega - 1) / (10 * mega), 'G');
  if (bytes >= 100 * mega) return fmt::format("{}M", (bytes + mega - 1) / mega);
  const std::uint64_t tenths = (bytes + 100 * kilo - 1) / (100 * kilo);
  return fmt::format("{}.{}M", tenths / 10, tenths % 10);
}

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      tag_(std::move(other.tag_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    if (budget_ != nullptr) budget_->shrink(tag_, bytes_);
    budget_ = std::exchange(other.budget_, nullptr);
    tag_ = std::move(other.tag_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->shrink(tag_, bytes_);
}

Status Reservation::resize(std::uint64_t bytes) {
  if (budget_ == nullptr) return error(Code::internal, "an empty reservation cannot be resized");
  if (bytes > bytes_) {
    MR_RETURN_IF_ERROR(budget_->grow(tag_, bytes - bytes_));
  } else {
    budget_->shrink(tag_, bytes_ - bytes);
  }
  bytes_ = bytes;
  return {};
}

bool Reservation::try_grow(std::uint64_t bytes) {
  if (budget_ == nullptr || !budget_->grow_if_free(tag_, bytes)) return false;
  bytes_ += bytes;
  return true;
}

Budget::Budget(std::uint64_t cap_bytes, std::string_view flag) : flag_(flag), cap_(cap_bytes) {}

bool Budget::set_cap(std::uint64_t cap_bytes) {
  const MutexLock lock(mutex_);
  if (cap_bytes < reserved_) return false;
  cap_ = cap_bytes;
  return true;
}

Expected<Reservation> Budget::reserve(std::string tag, std::uint64_t bytes) {
  MR_RETURN_IF_ERROR(grow(tag, bytes));
  return Reservation(this, std::move(tag), bytes);
}

std::uint64_t Budget::reserved_bytes() const {
  const MutexLock lock(mutex_);
  return reserved_;
}

std::uint64_t Budget::available_bytes() const {
  const MutexLock lock(mutex_);
  return cap_ - reserved_;
}

std::vector<Budget::Entry> Budget::entries() const {
  std::vector<Entry> entries;
  {
    const MutexLock lock(mutex_);
    for (const auto& [tag, bytes] : by_tag_)
      if (bytes > 0) entries.push_back({tag, bytes});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.bytes > b.bytes; });
  return entries;
}

void Budget::set_reclaimer(GivesWay kind, std::function<std::uint64_t(std::uint64_t bytes)> give_way) {
  const MutexLock lock(reclaim_mutex_);
  reclaimers_[static_cast<std::size_t>(kind)] = std::move(give_way);
}

bool Budget::grow_if_free(const std::string& tag, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (bytes > cap_ - reserved_) return false;
  std::uint64_t& held = by_tag_[tag];  // may throw
  reserved_ += bytes;
  held += bytes;
  return true;
}

Status Budget::grow(const std::string& tag, std::uint64_t bytes) {
  if (grow_if_free(tag, bytes)) return {};
  // Two reservations that grow at once would each ask for the same bytes: one at a time, the second looks again first.
  const MutexLock reclaim_lock(reclaim_mutex_);
  if (grow_if_free(tag, bytes)) return {};
  for (const auto& give_way : reclaimers_) {
    if (!give_way || bytes > cap_) continue;
    const std::uint64_t available = available_bytes();
    if (bytes > available) give_way(bytes - available);
    if (grow_if_free(tag, bytes)) return {};
  }
  return refusal(tag, bytes);
}

Status Budget::refusal(const std::string& tag, std::uint64_t bytes) const {
  std::string holders;
  for (const Entry& entry : entries()) {
    holders += fmt::format("{}{} {}", holders.empty() ? "" : ", ", entry.tag, format_bytes(entry.bytes));
  }
  const std::uint64_t reserved = reserved_bytes();
  const std::uint64_t needed = bytes > UINT64_MAX - reserved ? UINT64_MAX : reserved + bytes;
  return error(Code::out_of_budget, "{} needs {} more, but the budget of {} is taken ({}); give at least {} {}", tag,
               format_bytes(bytes), format_bytes(cap_bytes()), holders.empty() ? "nothing held" : holders, flag_,
               ram_argument(needed));
}

void Budget::shrink(const std::string& tag, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto entry = by_tag_.find(tag);
  MR_ASSERT(bytes == 0 || (entry != by_tag_.end() && entry->second >= bytes));
  if (entry == by_tag_.end()) return;
  entry->second -= bytes;
  reserved_ -= bytes;
  // Entries of zero bytes stay: a tag that grows again must not allocate.
}

}  // namespace millrace::residency
