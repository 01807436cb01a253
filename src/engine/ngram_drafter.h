// Guesses from the request itself: where the last tokens stood before, what came behind them there comes again. For
// each run of two to four tokens a table has the place where it came last, so that a token costs a few look-ups however
// long the text is. A table's slot is taken by whoever comes last; a place that is found is compared with the tokens.
// Thread-safety: one thread.
#pragma once

#include <array>
#include <unordered_map>

#include "engine/drafter.h"
#include "residency/budget.h"

namespace millrace::engine {

class NgramDrafter final : public Drafter {
 public:
  /// `budget` outlives the drafter, and grants what it remembers: 12 bytes for each token of a request that may come,
  /// 768 KiB at most.
  explicit NgramDrafter(residency::Budget& budget) : budget_(budget) {}

  std::string_view name() const override { return "ngram"; }
  int levels() const override { return kLongest - kShortest + 1; }
  bool is_free() const override { return true; }
  bool takes_pictures() const override { return true; }
  /// Never fails: a request that there is no memory for gets no guesses.
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) override;
  void accepted(std::uint64_t, std::int64_t, std::int64_t) override {}
  void forget(std::uint64_t request) override { requests_.erase(request); }

 private:
  static constexpr int kShortest = 2, kLongest = 4;
  static constexpr std::size_t kMostSlots = 1 << 16;
  /// Of a run of so many tokens, by its hash: the place behind it, 0 for none.
  struct Known {
    residency::Reservation memory;
    std::array<std::vector<std::uint32_t>, kLongest - kShortest + 1> behind;
    std::size_t read = 1;  // runs that end before this place are in the tables
    bool refused = false;  // no memory was granted
  };

  Known* known(const DraftAsk& ask);
  static void propose(Known& known, DraftAsk& ask);

  residency::Budget& budget_;
  std::unordered_map<std::uint64_t, Known> requests_;
};

}  // namespace millrace::engine
