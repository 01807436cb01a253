#include "link/local_link.h"

#include <deque>
#include <utility>

#include "base/mutex.h"

namespace millrace::link {
namespace {

struct Letter {
  int from = 0;
  std::vector<std::byte> message;
};

/// What is on its way to a rank.
struct Mailbox {
  Mutex mutex;
  std::deque<Letter> letters MR_GUARDED_BY(mutex);
};

using Mailboxes = std::shared_ptr<std::vector<Mailbox>>;

class LocalLink final : public Link {
 public:
  LocalLink(int rank, Mailboxes boxes) : rank_(rank), boxes_(std::move(boxes)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(boxes_->size()); }
  std::string host(int /*rank*/) const override { return "this process"; }

  Status send(int to, std::span<const std::byte> message) override {
    Mailbox& box = (*boxes_)[static_cast<std::size_t>(to)];
    const MutexLock lock(box.mutex);
    box.letters.push_back({rank_, {message.begin(), message.end()}});
    return {};
  }
  Expected<std::optional<int>> try_receive(std::vector<std::byte>& message) override {
    Mailbox& box = (*boxes_)[static_cast<std::size_t>(rank_)];
    const MutexLock lock(box.mutex);
    if (box.letters.empty()) return std::optional<int>();
    const int from = box.letters.front().from;
    message = std::move(box.letters.front().message);
    box.letters.pop_front();
    return std::optional(from);
  }

 private:
  const int rank_;
  const Mailboxes boxes_;
};

}  // namespace

std::vector<std::unique_ptr<Link>> make_local_links(int size) {
  const auto boxes = std::make_shared<std::vector<Mailbox>>(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<Link>> links;
  for (int rank = 0; rank < size; ++rank) links.push_back(std::make_unique<LocalLink>(rank, boxes));
  return links;
}

}  // namespace millrace::link
