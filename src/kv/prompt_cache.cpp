#include "kv/prompt_cache.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/carry_on.h"
#include "base/log.h"
#include "kv/footprint.h"

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
  const PromptKey root = root_key(identity, pool->layout());
  std::unique_ptr<PromptCache> cache(new PromptCache(options, root, std::move(pool), budget));
  cache->store_ = std::move(store);
  MR_ASSIGN_OR_RETURN(cache->thread_, os::Thread::start("prompt-cache", [self = cache.get()] { self->work(); }));
  return cache;
}

PromptCache::PromptCache(const Options& options, PromptKey root, std::shared_ptr<BlockPool> pool,
                         residency::Budget& budget)
    : least_seconds_(options.least_seconds), root_(root), pool_(std::move(pool)), budget_(budget) {}

PromptCache::~PromptCache() {
  const Clock::time_point deadline = Clock::now() + kPatience;
  const auto ended = [this]() MR_REQUIRES(mutex_) { return waiting_.empty(); };
  for (bool done = false; !done;) {
    pump();
    MutexLock lock(mutex_);
    done = went_.wait_until(mutex_, std::min(deadline, Clock::now() + std::chrono::milliseconds(5)), ended) ||
           Clock::now() >= deadline;
  }
  let_go();
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    came_.notify_one();
  }
  thread_ = {};  // joins
}

PromptBlock PromptCache::file_of(Tokens tokens, std::int64_t index, PromptKey key, std::size_t group) const {
  return {pool_->layout().groups()[group], group, root_, key,
          tokens.first(static_cast<std::size_t>((index + 1) * kBlockTokens))};
}

/// For a block of any group.
Expected<PromptCache::Staging> PromptCache::stage() const {
  std::int64_t most = 0;
  for (const Group& group : pool_->layout().groups()) most = std::max(most, group.block_bytes());
  const std::uint64_t bytes = round_up(static_cast<std::uint64_t>(most), device::kPageBytes);
  Staging staging;
  MR_ASSIGN_OR_RETURN(staging.reservation, budget_.reserve("prompt cache", bytes));
  MR_ASSIGN_OR_RETURN(staging.memory, device::HostBuffer::reserve(bytes, device::Pages::normal));
  return staging;
}

/// How many blocks from the first of the prompt on may be loaded: as many as all groups that keep all have, and the
/// others as far back as a token there sees. keys: of the blocks. Blocks before `first` are the state's.
std::int64_t PromptCache::usable(const SequenceState& state, std::span<const PromptKey> keys, std::int64_t first) {
  const std::vector<Group>& groups = pool_->layout().groups();
  const auto all = std::ssize(keys);
  const bool all_kept = std::all_of(groups.begin(), groups.end(), [](const Group& group) { return group.keeps_all(); });
  if (all_kept) return all;  // seen block by block
  const PromptStore::Time now = PromptStore::Time::clock::now();
  const auto has = [&](std::size_t group, std::int64_t i) {
    return store_->refresh(file_key(keys[static_cast<std::size_t>(i)], group), use_of(now, i));
  };
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g].ends && first == 0 && all > 0 && !has(g, 0)) return first;  // all tokens see that block
  std::vector<std::int64_t> run(groups.size());                               // blocks in a row up to the present one
  std::int64_t best = first;
  for (std::size_t g = 0; g < groups.size(); ++g)
    while (run[g] < first && state.block(g, first - 1 - run[g]) != nullptr) ++run[g];
  for (std::int64_t i = first; i < all; ++i) {
    bool goes_on = true;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      run[g] = has(g, i) ? run[g] + 1 : 0;
      if (run[g] == 0 && groups[g].keeps_all()) return best;
      goes_on = goes_on && i + 1 - run[g] <= groups[g].first_seen((i + 1) * kBlockTokens) / kBlockTokens;
    }
    if (goes_on) best = i + 1;
  }
  return best;
}

Status PromptCache::load_block(const PromptBlock& file, std::byte* block, Staging& staging) {
  if (pool_->on_host()) return store_->load(file, block);
  if (staging.memory.data() == nullptr) {
    MR_ASSIGN_OR_RETURN(staging, stage());
  }
  MR_RETURN_IF_ERROR(store_->load(file, staging.memory.data()));
  return pool_->write(file.group, block, staging.memory.data());
}

std::vector<PromptKey> PromptCache::keys_of(Tokens tokens, std::int64_t blocks) const {
  std::vector<PromptKey> keys;
  for (std::int64_t i = 0; i < blocks; ++i) keys.push_back(next_key(i == 0 ? root_ : keys.back(), block_of(tokens, i)));
  return keys;
}

/// Block `index` of the groups that are `needed`, each with one user, the caller; null of the others.
Expected<std::vector<std::byte*>> PromptCache::load_groups(Tokens tokens, std::int64_t index, PromptKey key,
                                                           const std::vector<bool>& needed, Staging& staging) {
  std::vector<std::byte*> blocks(needed.size());
  Status status;
  for (std::size_t g = 0; g < needed.size() && status.ok(); ++g) {
    if (!needed[g]) continue;
    const Expected<std::byte*> block = pool_->allocate(g);
    status = block.status();
    if (!block.ok()) break;
    blocks[g] = *block;
    status = load_block(file_of(tokens, index, file_key(key, g), g), *block, staging);
  }
  if (status.ok()) return blocks;
  for (std::size_t g = 0; g < needed.size(); ++g)
    if (blocks[g] != nullptr) pool_->release(g, blocks[g]);
  return status;
}

/// Block `index` of those before `end`, of each group that a token there sees it with.
bool PromptCache::load(SequenceState& state, Tokens tokens, std::int64_t index, PromptKey key, std::int64_t end,
                       Staging& staging) {
  const std::vector<Group>& groups = pool_->layout().groups();
  std::vector<bool> needed;
  for (const Group& group : groups)
    needed.push_back(index >= group.first_seen(end * kBlockTokens) / kBlockTokens || (group.ends && index == 0));
  const PromptStore::Time used = use_of(PromptStore::Time::clock::now(), index);
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (needed[g] && !store_->refresh(file_key(key, g), used)) return false;
  const std::int64_t first = index * kBlockTokens;
  if (state.blocks() > index) {
    if (!state.goes_on(first)) return false;
    state.rewind(first);
  }
  const Expected<std::vector<std::byte*>> blocks = load_groups(tokens, index, key, needed, staging);
  if (!blocks.ok()) return false;
  state.share(*blocks, 0);
  for (std::size_t g = 0; g < groups.size(); ++g)
    if ((*blocks)[g] != nullptr) pool_->release(g, (*blocks)[g]);
  return true;
}

std::vector<std::vector<std::byte*>> PromptCache::load(Tokens tokens, std::int64_t first, std::int64_t most,
                                                       Clock::time_point until) {
  const std::int64_t end = std::min(first + most, std::ssize(tokens) / kBlockTokens);
  const std::vector<PromptKey> keys = keys_of(tokens, end);
  const std::vector<bool> all(pool_->groups(), true);
  std::vector<std::vector<std::byte*>> loaded;
  Staging staging;
  for (std::int64_t i = first; i < end && (loaded.empty() || Clock::now() < until); ++i) {
    const PromptKey key = keys[static_cast<std::size_t>(i)];
    const PromptStore::Time used = use_of(PromptStore::Time::clock::now(), i);
    bool there = true;
    for (std::size_t g = 0; g < all.size(); ++g) there = there && store_->refresh(file_key(key, g), used);
    if (!there) break;
    Expected<std::vector<std::byte*>> blocks = load_groups(tokens, i, key, all, staging);
    if (!blocks.ok()) break;
    loaded.push_back(std::move(*blocks));
  }
  tokens_ += loaded.size() * static_cast<std::uint64_t>(kBlockTokens);
  return loaded;
}

/// Of blocks `first` to the last of `state`, which were loaded here, those that all others have, too. Returns whether
/// there may be more; `more`: here.
bool PromptCache::keep_only_what_others_have(SequenceState& state, Tokens tokens, std::int64_t first, double seconds,
                                             bool more) {
  const std::int64_t blocks = state.length() / kBlockTokens - first;
  if (others_ == nullptr || blocks <= 0) return more;
  const Expected<PromptsElsewhere::Loaded> others = others_->load(state, tokens, blocks, seconds);
  if (!others.ok()) log::debug("prompt cache: {}", others.status().message());
  if (others.ok() && others->blocks >= blocks) return more;
  state.rewind((first + (others.ok() ? others->blocks : 0)) * kBlockTokens);
  return others.ok() && others->more;
}

bool PromptCache::extend(SequenceState& state, Tokens tokens, std::int64_t limit, Clock::time_point until) {
  const std::int64_t before = state.length(), first = before / kBlockTokens;
  const std::int64_t whole = std::min(limit, std::ssize(tokens)) / kBlockTokens;
  const std::vector<PromptKey> keys = keys_of(tokens, whole);
  const std::int64_t end = first < whole ? usable(state, keys, first) : first;
  Staging staging;
  bool more = false;
  const Clock::time_point begin = Clock::now();
  for (std::int64_t i = first; i < end && !more; ++i) {
    if (!load(state, tokens, i, keys[static_cast<std::size_t>(i)], end, staging)) break;
    more = i + 1 < end && Clock::now() >= until;
  }
  const double seconds = until > begin ? std::chrono::duration<double>(until - begin).count() : 0;
  more = keep_only_what_others_have(state, tokens, first, seconds, more);
  if (!more) state.rewind(state.length());  // a way that ended early may lack what a window sees
  tokens_ += static_cast<std::uint64_t>(std::max<std::int64_t>(0, state.length() - before));
  return more;
}

void PromptCache::keep(const SequenceState& state, Tokens tokens, double seconds, std::int64_t at_once,
                       PrefixCache* tree) {
  const std::int64_t blocks = std::min(state.length(), std::ssize(tokens)) / kBlockTokens;
  const auto is_quick = [&](std::int64_t count) {
    const std::int64_t times = (count * kBlockTokens + at_once - 1) / at_once;
    return count == 0 || static_cast<double>(times) * seconds < least_seconds_;
  };
  if (is_quick(blocks)) return;
  if (others_ != nullptr) {
    const Status asked = others_->keep(state, tokens.first(static_cast<std::size_t>(blocks * kBlockTokens)));
    if (!asked.ok()) log::debug("prompt cache: {}", asked.message());
  }
  {
    const MutexLock lock(mutex_);
    if (off_) return;
  }
  const PromptStore::Time now = PromptStore::Time::clock::now();
  std::vector<Item> items;
  std::uint64_t bytes = 0;
  const std::vector<Blocks> known = tree != nullptr ? tree->blocks_of(tokens) : std::vector<Blocks>();
  const auto block_at = [&](std::size_t group, std::int64_t i) {
    std::byte* const own = state.block(group, i);
    return own != nullptr || i >= std::ssize(known) ? own : known[static_cast<std::size_t>(i)][group];
  };
  // Of states the last ones: each is as large as many blocks of keys, and what is written is held meanwhile.
  std::vector<std::int64_t> from(pool_->groups());
  for (std::size_t g = 0; g < from.size(); ++g) {
    if (!pool_->layout().groups()[g].is_state()) continue;
    from[g] = blocks;
    for (std::int64_t held = 0; from[g] > 0 && held < kMostCheckpoints;)
      held += block_at(g, --from[g]) != nullptr ? 1 : 0;
  }
  std::int64_t lacking = 0;  // blocks of which a group has no file
  PromptKey key = root_;
  for (std::int64_t i = 0; i < blocks; ++i) {
    key = next_key(key, block_of(tokens, i));
    const std::size_t before = items.size();
    for (std::size_t g = 0; g < pool_->groups(); ++g) {
      const PromptKey file = file_key(key, g);
      const bool is_wanted = i >= from[g] && (i == 0 || !pool_->layout().groups()[g].ends);
      std::byte* const block = is_wanted ? block_at(g, i) : nullptr;
      if (block == nullptr || store_->refresh(file, use_of(now, i))) continue;
      items.push_back({nullptr, i, file, g, block, use_of(now, i), 0, use_of(now, blocks)});
      bytes += round_up(file_of(tokens, i, file, g).file_bytes(), device::kPageBytes);
    }
    lacking += items.size() > before ? 1 : 0;
  }
  if (is_quick(lacking)) return;
  items.front().prompt_bytes = bytes;
  const auto copy = std::make_shared<const std::vector<Token>>(tokens.begin(), tokens.begin() + blocks * kBlockTokens);
  for (Item& item : items) {
    item.tokens = copy;
    pool_->retain(item.group, item.block);
  }
  {
    const MutexLock lock(mutex_);
    std::move(items.begin(), items.end(), std::back_inserter(waiting_));
    came_.notify_one();
  }
  pump();
}

void PromptCache::release(const std::vector<Held>& blocks) {
  for (const Held& held : blocks) pool_->release(held.group, held.block);
}

void PromptCache::pump() {
  std::vector<Held> written;
  Held next;
  {
    const MutexLock lock(mutex_);
    written.swap(written_);
    if (!pool_->on_host() && !staged_ && !waiting_.empty()) next = {waiting_.front().group, waiting_.front().block};
    if (waiting_.empty()) staging_ = {};
  }
  release(written);
  if (next.block == nullptr) return;
  // The writer leaves the first one alone until it is staged.
  Status status;
  if (staging_.memory.data() == nullptr) {
    Expected<Staging> made = stage();
    status = made.status();
    if (made.ok()) staging_ = std::move(*made);
  }
  if (status.ok()) status = pool_->read(next.group, next.block, staging_.memory.data());
  if (!status.ok()) {
    log::debug("prompt cache: a prompt is not written: {}", status.message());
    let_go();
    return;
  }
  const MutexLock lock(mutex_);
  staged_ = true;
  came_.notify_one();
}

bool PromptCache::busy() const {
  const MutexLock lock(mutex_);
  return !waiting_.empty() || !written_.empty();
}

bool PromptCache::let_go() {
  std::vector<Held> blocks;
  {
    MutexLock lock(mutex_);
    // The writer keeps the one it works on: a block's write at most.
    while (waiting_.size() > (writing_ ? 1 : 0)) {
      blocks.push_back({waiting_.back().group, waiting_.back().block});
      waiting_.pop_back();
    }
    went_.wait(mutex_, [this]() MR_REQUIRES(mutex_) { return !writing_; });
    blocks.insert(blocks.end(), written_.begin(), written_.end());
    written_.clear();
    staged_ = false;
  }
  release(blocks);
  return !blocks.empty();
}

/// A full disk or a folder that is gone: what waits is dropped, and nothing more is asked for.
void PromptCache::give_up(const Status& why) {
  carry_on("prompt cache", [&] { log::warn("prompt cache: nothing more is written: {}", why.message()); });
  off_ = true;
  for (const Item& item : waiting_) written_.push_back({item.group, item.block});
  waiting_.clear();
}

void PromptCache::work() {
  try {
    const auto counted = store_->make_room(0, PromptStore::Time::clock::now());
    if (!counted.ok()) log::debug("prompt cache: {}", counted.status().message());
  } catch (const std::exception& unexpected) {  // looked through later, then
    log::debug("prompt cache: {}", unexpected.what());
  }
  MutexLock lock(mutex_);
  for (;;) {
    came_.wait(mutex_,
               [this]() MR_REQUIRES(mutex_) { return stop_ || (!waiting_.empty() && (pool_->on_host() || staged_)); });
    if (stop_) return;
    const Item item = waiting_.front();
    const std::byte* const payload = pool_->on_host() ? item.block : staging_.memory.data();
    writing_ = true;
    lock.unlock();
    Status status;
    try {
      status = write(item, payload);
    } catch (const std::exception&) {
      status = Status(Code::unavailable, "out of memory");  // short: it takes none
    }
    lock.lock();
    writing_ = staged_ = false;
    while (
        !carry_on("prompt cache", [&]() MR_REQUIRES(mutex_) { written_.reserve(written_.size() + waiting_.size()); })) {
      const MutexUnlock unlocked(mutex_);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // others give memory back
    }
    written_.push_back({item.group, item.block});
    waiting_.pop_front();
    if (!status.ok()) give_up(status);
    went_.notify_all();
  }
}

Status PromptCache::write(const Item& item, const std::byte* payload) {
  if (item.prompt_bytes > 0) {
    MR_ASSIGN_OR_RETURN(room_, store_->make_room(item.prompt_bytes, item.spared));
  }
  const PromptBlock file = file_of(*item.tokens, item.index, item.key, item.group);
  const std::uint64_t bytes = round_up(file.file_bytes(), device::kPageBytes);
  // Without an earlier block a later one is of no use.
  if (bytes > room_) room_ = 0;
  if (bytes > room_ || store_->refresh(item.key, item.used)) return {};
  room_ -= bytes;
  return store_->save(file, payload, item.used);
}

PromptCache::Counters PromptCache::counters() const { return {store_->counters(), tokens_}; }

}  // namespace millrace::kv
