#include "app/server/response_store.h"

#include <utility>

namespace millrace::server {
namespace {

/// Beside the texts: the node, its entry, its id twice.
constexpr std::uint64_t kOverhead = 512, kItemOverhead = 256;

std::uint64_t held_by(const residency::Budget& budget) {
  for (const residency::Budget::Entry& entry : budget.entries())
    if (entry.tag == ResponseStore::kTag) return entry.bytes;
  return 0;
}

}  // namespace

KeptResponse::~KeptResponse() {
  std::shared_ptr<const KeptResponse> next = std::move(previous);
  while (next != nullptr && next.use_count() == 1) {
    // Nobody else holds it, so nobody else sees it change.
    next = std::move(const_cast<KeptResponse&>(*next).previous);
  }
}

ResponseStore::ResponseStore(residency::Budget& budget) : budget_(budget) {
  budget_.set_reclaimer(residency::GivesWay::copies, [this](std::uint64_t bytes) { return give_way(bytes); });
}

ResponseStore::~ResponseStore() { budget_.set_reclaimer(residency::GivesWay::copies, nullptr); }

std::shared_ptr<const KeptResponse> ResponseStore::take(std::map<std::string, Entry>::iterator entry) {
  std::shared_ptr<const KeptResponse> kept = std::move(entry->second.kept);
  for (const std::string& item : kept->items) items_.erase(item);
  uses_.erase(entry->second.use);
  entries_.erase(entry);
  return kept;
}

std::uint64_t ResponseStore::give_way(std::uint64_t bytes) {
  const std::uint64_t before = held_by(budget_);
  for (;;) {
    std::shared_ptr<const KeptResponse> oldest;  // freed without the lock
    {
      const MutexLock lock(mutex_);
      if (uses_.empty()) break;
      oldest = take(entries_.find(uses_.front()));
    }
    oldest.reset();
    const std::uint64_t now = held_by(budget_);
    if (before > now && before - now >= bytes) break;
  }
  const std::uint64_t now = held_by(budget_);
  return before > now ? before - now : 0;
}

bool ResponseStore::keep(const std::string& id, std::string owner, std::shared_ptr<const KeptResponse> previous,
                         std::string turn, std::string body, std::vector<std::string> items) {
  const std::uint64_t bytes = owner.size() + turn.size() + body.size() + kOverhead + items.size() * kItemOverhead;
  const std::uint64_t most = budget_.cap_bytes() / 4;
  if (bytes > most) return false;
  if (const std::uint64_t held = held_by(budget_); held + bytes > most) give_way(held + bytes - most);
  // A conversation that is longer than all that may be kept holds itself: it goes with its end.
  if (held_by(budget_) + bytes > most) return false;
  Expected<residency::Reservation> memory = budget_.reserve(kTag, bytes);
  if (!memory.ok()) return false;
  const auto kept = std::make_shared<KeptResponse>();
  kept->owner = std::move(owner);
  kept->previous = std::move(previous);
  kept->turn = std::move(turn);
  kept->body = std::move(body);
  kept->items = std::move(items);
  kept->memory = std::move(*memory);
  const MutexLock lock(mutex_);
  for (const std::string& item : kept->items) items_[item] = id;
  entries_[id] = {kept, uses_.insert(uses_.end(), id)};
  return true;
}

std::shared_ptr<const KeptResponse> ResponseStore::find(const std::string& id, const std::string& owner) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.kept->owner != owner) return nullptr;
  uses_.splice(uses_.end(), uses_, found->second.use);
  return found->second.kept;
}

std::shared_ptr<const KeptResponse> ResponseStore::find_item(const std::string& item, const std::string& owner) {
  std::string id;
  {
    const MutexLock lock(mutex_);
    const auto found = items_.find(item);
    if (found == items_.end()) return nullptr;
    id = found->second;
  }
  return find(id, owner);
}

bool ResponseStore::remove(const std::string& id, const std::string& owner) {
  std::shared_ptr<const KeptResponse> kept;
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.kept->owner != owner) return false;
  kept = take(found);
  return true;
}

}  // namespace millrace::server
