#include "kv/prompt_cache.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace millrace::kv {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);  // at the end, for what still waits to be written

PromptCache::Tokens block_of(PromptCache::Tokens tokens, std::int64_t index) {
  return tokens.subspan(static_cast<std::size_t>(index * kBlockTokens), kBlockTokens);
}

/// Earlier blocks of a prompt count as used later, so that the later ones leave first.
PromptStore::Time use_of(PromptStore::Time now, std::int64_t index) { return now - std::chrono::microseconds(index); }

}  // namespace

Expected<std::unique_ptr<PromptCache>> PromptCache::open(const Options& options, std::string_view identity,
                                                         std::shared_ptr<BlockPool> pool, residency::Budget& budget) {
  MR_ASSIGN_OR_RETURN(auto store, PromptStore::open(options.store));
  const PromptKey root = root_key(identity, pool->shape());
  std::unique_ptr<PromptCache> cache(new PromptCache(options, root, std::move(pool), budget));
  cache->store_ = std::move(store);
  MR_ASSIGN_OR_RETURN(cache->thread_,
                      storage::SmallThread::start("prompt-cache", [self = cache.get()] { self->work(); }));
  return cache;
}

PromptCache::PromptCache(const Options& options, PromptKey root, std::shared_ptr<BlockPool> pool,
                         residency::Budget& budget)
    : least_seconds_(options.least_seconds), root_(root), pool_(std::move(pool)), budget_(budget) {}

PromptCache::~PromptCache() {
  const Clock::time_point deadline = Clock::now() + kPatience;
  const auto ended = [this] { return waiting_.empty(); };
  for (bool done = false; !done;) {
    pump();
    std::unique_lock lock(mutex_);
    done = went_.wait_until(lock, std::min(deadline, Clock::now() + std::chrono::milliseconds(5)), ended) ||
           Clock::now() >= deadline;
  }
  let_go();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    came_.notify_one();
  }
  thread_ = {};  // joins
}

PromptBlock PromptCache::file_of(Tokens tokens, std::int64_t index, PromptKey key) const {
  return {pool_->shape(), root_, key, tokens.first(static_cast<std::size_t>((index + 1) * kBlockTokens))};
}

Expected<PromptCache::Staging> PromptCache::stage() const {
  const std::uint64_t bytes = round_up(static_cast<std::uint64_t>(pool_->shape().block_bytes()), device::kPageBytes);
  Staging staging;
  MR_ASSIGN_OR_RETURN(staging.reservation, budget_.reserve("prompt cache", bytes));
  MR_ASSIGN_OR_RETURN(staging.memory, device::HostBuffer::reserve(bytes, device::Pages::normal));
  return staging;
}

bool PromptCache::load(SequenceState& state, Tokens tokens, std::int64_t index, PromptKey key, Staging& staging) {
  if (!store_->refresh(key, use_of(PromptStore::Time::clock::now(), index))) return false;
  const std::int64_t first = index * kBlockTokens;
  if (!pool_->on_host() && staging.memory.data() == nullptr) {
    Expected<Staging> made = stage();
    if (!made.ok()) return false;
    staging = std::move(*made);
  }
  state.truncate(first);
  if (!state.reserve(first + kBlockTokens).ok()) return false;
  std::byte* const block = state.block(index);
  Status status = store_->load(file_of(tokens, index, key), pool_->on_host() ? block : staging.memory.data());
  if (status.ok() && !pool_->on_host()) status = pool_->write(block, staging.memory.data());
  if (status.ok())
    state.set_length(first + kBlockTokens);
  else
    state.truncate(first);
  return status.ok();
}

bool PromptCache::extend(SequenceState& state, Tokens tokens, std::int64_t limit, Clock::time_point until) {
  const std::int64_t before = state.length();
  const std::int64_t first = before / kBlockTokens, end = std::min(limit, std::ssize(tokens)) / kBlockTokens;
  Staging staging;
  PromptKey key = root_;
  bool more = false;
  for (std::int64_t i = 0; i < end && !more; ++i) {
    key = next_key(key, block_of(tokens, i));
    if (i >= first && !load(state, tokens, i, key, staging)) break;
    more = i >= first && i + 1 < end && Clock::now() >= until;
  }
  tokens_ += static_cast<std::uint64_t>(std::max<std::int64_t>(0, state.length() - before));
  return more;
}

void PromptCache::keep(const SequenceState& state, Tokens tokens, double seconds, std::int64_t at_once) {
  const std::int64_t blocks = std::min(state.length(), std::ssize(tokens)) / kBlockTokens;
  const auto is_quick = [&](std::int64_t count) {
    const std::int64_t times = (count * kBlockTokens + at_once - 1) / at_once;
    return count == 0 || static_cast<double>(times) * seconds < least_seconds_;
  };
  if (is_quick(blocks)) return;
  {
    std::lock_guard lock(mutex_);
    if (off_) return;
  }
  const PromptStore::Time now = PromptStore::Time::clock::now();
  std::vector<Item> items;
  std::uint64_t bytes = 0;
  PromptKey key = root_;
  for (std::int64_t i = 0; i < blocks; ++i) {
    key = next_key(key, block_of(tokens, i));
    if (store_->refresh(key, use_of(now, i))) continue;
    items.push_back({nullptr, i, key, state.block(i), use_of(now, i), 0, use_of(now, blocks)});
    bytes += round_up(file_of(tokens, i, key).file_bytes(), device::kPageBytes);
  }
  if (is_quick(std::ssize(items))) return;
  items.front().prompt_bytes = bytes;
  const auto copy = std::make_shared<const std::vector<Token>>(tokens.begin(), tokens.begin() + blocks * kBlockTokens);
  for (Item& item : items) {
    item.tokens = copy;
    pool_->retain(item.block);
  }
  {
    std::lock_guard lock(mutex_);
    std::move(items.begin(), items.end(), std::back_inserter(waiting_));
    came_.notify_one();
  }
  pump();
}

void PromptCache::release(const std::vector<std::byte*>& blocks) {
  for (std::byte* const block : blocks) pool_->release(block);
}

void PromptCache::pump() {
  std::vector<std::byte*> written;
  std::byte* next = nullptr;
  {
    std::lock_guard lock(mutex_);
    written.swap(written_);
    if (!pool_->on_host() && !staged_ && !waiting_.empty()) next = waiting_.front().block;
    if (waiting_.empty()) staging_ = {};
  }
  release(written);
  if (next == nullptr) return;
  // The writer leaves the first one alone until it is staged.
  Status status;
  if (staging_.memory.data() == nullptr) {
    Expected<Staging> made = stage();
    status = made.status();
    if (made.ok()) staging_ = std::move(*made);
  }
  if (status.ok()) status = pool_->read(next, staging_.memory.data());
  if (!status.ok()) {
    log::debug("prompt cache: a prompt is not written: {}", status.message());
    let_go();
    return;
  }
  std::lock_guard lock(mutex_);
  staged_ = true;
  came_.notify_one();
}

bool PromptCache::busy() const {
  std::lock_guard lock(mutex_);
  return !waiting_.empty() || !written_.empty();
}

bool PromptCache::let_go() {
  std::vector<std::byte*> blocks;
  {
    std::unique_lock lock(mutex_);
    // The writer keeps the one it works on: a block's write at most.
    while (waiting_.size() > (writing_ ? 1 : 0)) {
      blocks.push_back(waiting_.back().block);
      waiting_.pop_back();
    }
    went_.wait(lock, [this] { return !writing_; });
    blocks.insert(blocks.end(), written_.begin(), written_.end());
    written_.clear();
    staged_ = false;
  }
  release(blocks);
  return !blocks.empty();
}

/// A full disk or a folder that is gone: what waits is dropped, and nothing more is asked for.
void PromptCache::give_up(const Status& why) {
  log::warn("prompt cache: nothing more is written: {}", why.message());
  off_ = true;
  for (const Item& item : waiting_) written_.push_back(item.block);
  waiting_.clear();
}

void PromptCache::work() {
  try {
    const auto counted = store_->make_room(0, PromptStore::Time::clock::now());
    if (!counted.ok()) log::debug("prompt cache: {}", counted.status().message());
  } catch (const std::exception& unexpected) {  // looked through later, then
    log::debug("prompt cache: {}", unexpected.what());
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return stop_ || (!waiting_.empty() && (pool_->on_host() || staged_)); });
    if (stop_) return;
    const Item item = waiting_.front();
    const std::byte* const payload = pool_->on_host() ? item.block : staging_.memory.data();
    writing_ = true;
    lock.unlock();
    Status status;
    try {
      status = write(item, payload);
    } catch (const std::exception& unexpected) {
      status = error(Code::internal, "{}", unexpected.what());
    }
    lock.lock();
    writing_ = staged_ = false;
    written_.push_back(item.block);
    waiting_.pop_front();
    if (!status.ok()) give_up(status);
    went_.notify_all();
  }
}

Status PromptCache::write(const Item& item, const std::byte* payload) {
  if (item.prompt_bytes > 0) {
    MR_ASSIGN_OR_RETURN(room_, store_->make_room(item.prompt_bytes, item.spared));
  }
  const PromptBlock file = file_of(*item.tokens, item.index, item.key);
  const std::uint64_t bytes = round_up(file.file_bytes(), device::kPageBytes);
  // Without an earlier block a later one is of no use.
  if (bytes > room_) room_ = 0;
  if (bytes > room_ || store_->refresh(item.key, item.used)) return {};
  room_ -= bytes;
  return store_->save(file, payload, item.used);
}

PromptCache::Counters PromptCache::counters() const { return {store_->counters(), tokens_}; }

}  // namespace millrace::kv
