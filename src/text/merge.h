// The greedy merging that BPE and SentencePiece share: of all neighbours that may merge, the pair of lowest rank goes
// first, the leftmost of equals; until none may. Source: Sennrich et al. 2016 (arXiv:1508.07909).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace millrace::text {

/// A run of bytes of the text that has become one symbol.
struct Symbol {
  std::uint32_t begin = 0, bytes = 0;
  std::int32_t id = -1;  // its token, or -1
};

/// What two neighbours would become. No merge: rank is kNoMerge.
struct Merge {
  std::uint32_t rank;
  std::int32_t id;
};
inline constexpr std::uint32_t kNoMerge = std::numeric_limits<std::uint32_t>::max();

/// Merges `symbols` in place. Scratch memory is kept between calls; one object a thread.
class Merger {
 public:
  /// lookup(left, right) -> Merge. O(n^2) tiny steps for short runs, O(n log n) for long ones.
  template <typename Lookup>
  void run(std::vector<Symbol>& symbols, const Lookup& lookup) {
    if (symbols.size() < 2) return;
    ahead_.clear();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) ahead_.push_back(lookup(symbols[i], symbols[i + 1]));
    ahead_.push_back({kNoMerge, -1});
    if (symbols.size() <= kShort) {
      run_short(symbols, lookup);
    } else {
      run_long(symbols, lookup);
    }
  }

 private:
  static constexpr std::size_t kShort = 40;
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Entry {
    std::uint32_t rank, left;
    bool operator<(const Entry& other) const {  // std::push_heap keeps the largest on top: the lowest rank, leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  static void join(Symbol& left, const Symbol& right, std::int32_t id) {
    left.bytes += right.bytes;
    left.id = id;
  }

  template <typename Lookup>
  void run_short(std::vector<Symbol>& symbols, const Lookup& lookup) {
    std::size_t count = symbols.size();
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i) {
        if (ahead_[i].rank < ahead_[best].rank) best = i;
      }
      if (ahead_[best].rank == kNoMerge) break;
      join(symbols[best], symbols[best + 1], ahead_[best].id);
      std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
      std::copy(ahead_.begin() + best + 1, ahead_.begin() + count, ahead_.begin() + best);
      --count;
      if (best + 1 < count) ahead_[best] = lookup(symbols[best], symbols[best + 1]);
      if (best > 0) ahead_[best - 1] = lookup(symbols[best - 1], symbols[best]);
    }
    symbols.resize(count);
  }

  template <typename Lookup>
  void run_long(std::vector<Symbol>& symbols, const Lookup& lookup) {
    const auto count = static_cast<std::uint32_t>(symbols.size());
    previous_.resize(count);
    next_.resize(count);
    heap_.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      previous_[i] = i == 0 ? kNone : i - 1;
      next_[i] = i + 1 == count ? kNone : i + 1;
      if (ahead_[i].rank != kNoMerge) heap_.push_back({ahead_[i].rank, i});
    }
    std::make_heap(heap_.begin(), heap_.end());
    while (!heap_.empty()) {
      const Entry top = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      // Stale entries fall through: a symbol that was merged away, or whose neighbour is another by now, has another
      // rank ahead of it.
      if (ahead_[top.left].rank != top.rank) continue;
      merge_at(top.left, symbols, lookup);
    }
    std::size_t kept = 0;
    for (std::uint32_t i = 0; i != kNone; i = next_[i]) symbols[kept++] = symbols[i];
    symbols.resize(kept);
  }

  template <typename Lookup>
  void merge_at(std::uint32_t left, std::vector<Symbol>& symbols, const Lookup& lookup) {
    const std::uint32_t right = next_[left];
    join(symbols[left], symbols[right], ahead_[left].id);
    ahead_[right] = {kNoMerge, -1};
    next_[left] = next_[right];
    if (next_[left] != kNone) previous_[next_[left]] = left;
    look_ahead(left, symbols, lookup);
    if (previous_[left] != kNone) look_ahead(previous_[left], symbols, lookup);
  }

  template <typename Lookup>
  void look_ahead(std::uint32_t left, const std::vector<Symbol>& symbols, const Lookup& lookup) {
    const std::uint32_t right = next_[left];
    ahead_[left] = right == kNone ? Merge{kNoMerge, -1} : lookup(symbols[left], symbols[right]);
    if (ahead_[left].rank == kNoMerge) return;
    heap_.push_back({ahead_[left].rank, left});
    std::push_heap(heap_.begin(), heap_.end());
  }

  std::vector<Merge> ahead_;                    // [symbols], what symbol i and the one after it would become
  std::vector<std::uint32_t> previous_, next_;  // [symbols], the living ones as a list (long runs)
  std::vector<Entry> heap_;
};

}  // namespace millrace::text
