#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "text/constraint/json_rules.h"

namespace millrace::text {
namespace {

constexpr int kMostDigits = 18;  // before the point: what any reader holds
constexpr std::uint32_t kMostFraction = 17;
constexpr double kBeyond = 1e18;

Fragment digits(GrammarBuilder& b, std::uint32_t least, std::uint32_t most) {
  return b.repeat(least, most, [&] { return b.byte_range('0', '9'); });
}

/// Digits with one among them that is not 0.
Fragment digits_not_zero(GrammarBuilder& b) {
  const Fragment zeros = b.repeat(0, kMostFraction - 1, [&] { return b.literal("0"); });
  return b.sequence(zeros, b.sequence(b.byte_range('1', '9'), digits(b, 0, kMostFraction)));
}

Fragment zeros(GrammarBuilder& b, std::uint32_t least) {
  return b.repeat(least, kMostFraction, [&] { return b.literal("0"); });
}

/// A range of numbers without sign, times 10^places: [low, high].
struct Magnitudes {
  std::uint64_t low = 0, high = 0;
  bool low_open = false, high_open = false;
};

/// Where the digits written so far stand: equal to the low bound's, to the high one's, to both, or between.
struct Tight {
  bool low, high;
};

class RangeBuilder {
 public:
  RangeBuilder(GrammarBuilder& builder, int places, bool integer) : b_(builder), places_(places), integer_(integer) {}

  /// Every number of the range, lengths one by one. An empty range adds nothing.
  void add(const std::string& sign, Magnitudes range, std::vector<Fragment>& options) {
    if (range.low > range.high) return;
    std::uint64_t least = 0, power = 1;  // the numbers of this length are [least, power * 10)
    for (int length = 1; length <= kMostDigits; ++length, power *= 10) {
      if (length > places_ + 1) least = power;
      if (length < places_ + 1) continue;
      Magnitudes part = range;
      if (least > range.low) {
        part.low = least;
        part.low_open = false;
      }
      if (power * 10 - 1 < range.high) {
        part.high = power * 10 - 1;
        part.high_open = false;
      }
      if (part.low > part.high) continue;
      // The last number of a length is no bound: what follows its point is free.
      high_is_bound_ = part.high == range.high;
      options.push_back(b_.sequence(b_.literal(sign), of_length(length, part)));
    }
  }

 private:
  Fragment of_length(int length, const Magnitudes& range) {
    low_ = padded(range.low, length);
    high_ = padded(range.high, length);
    std::array<StateId, 4> states{};  // by Tight
    for (StateId& state : states) state = b_.new_state();
    const StateId begin = states[3];
    for (int i = 0; i < length; ++i) {
      std::array<StateId, 4> next{};
      for (StateId& state : next) state = b_.new_state();
      for (int tight = 0; tight < 4; ++tight) {
        StateId from = states[static_cast<std::size_t>(tight)];
        if (places_ > 0 && i == length - places_) {
          const StateId after = b_.new_state();
          b_.bytes(from, '.', '.', after);
          from = after;
        }
        add_digits(from, {(tight & 1) != 0, (tight & 2) != 0}, static_cast<std::size_t>(i), next);
      }
      states = next;
    }
    const StateId end = b_.new_state();
    for (int tight = 0; tight < 4; ++tight)
      add_end(states[static_cast<std::size_t>(tight)], {(tight & 1) != 0, (tight & 2) != 0}, range, end);
    return {begin, end};
  }

  void add_digits(StateId from, Tight tight, std::size_t i, const std::array<StateId, 4>& next) {
    const char low = tight.low ? low_[i] : '0', high = tight.high ? high_[i] : '9';
    for (char digit = low; digit <= high; ++digit) {
      const int now = (tight.low && digit == low_[i] ? 1 : 0) | (tight.high && digit == high_[i] ? 2 : 0);
      b_.bytes(from, static_cast<std::uint8_t>(digit), static_cast<std::uint8_t>(digit),
               next[static_cast<std::size_t>(now)]);
    }
  }

  /// What may follow the digits: nothing, more of the fraction, or a fraction.
  void add_end(StateId from, Tight tight, const Magnitudes& range, StateId end) {
    const auto finish = [&](Fragment tail) {
      b_.nothing(from, tail.begin);
      b_.nothing(tail.end, end);
    };
    const bool at_high = tight.high && high_is_bound_;
    const bool at_low = tight.low;
    const bool exact_fits = !(at_high && range.high_open) && !(at_low && range.low_open);
    if (exact_fits) b_.nothing(from, end);
    if (integer_) return;
    const Fragment point = places_ == 0 ? b_.literal(".") : b_.empty();
    const std::uint32_t least = places_ == 0 ? 1 : 0;
    if (at_high) {
      if (exact_fits) finish(b_.sequence(point, zeros(b_, least)));
    } else if (at_low && range.low_open) {
      finish(b_.sequence(point, digits_not_zero(b_)));
    } else {
      finish(b_.sequence(point, digits(b_, least, kMostFraction)));
    }
  }

  static std::string padded(std::uint64_t value, int length) {
    const std::string text = std::to_string(value);
    return std::string(static_cast<std::size_t>(length) - std::min(text.size(), static_cast<std::size_t>(length)),
                       '0') +
           text;
  }

  GrammarBuilder& b_;
  const int places_;
  const bool integer_;
  std::string low_, high_;
  bool high_is_bound_ = true;
};

/// Digits behind the point that a bound needs; -1: more than 6.
int places_of(double value) {
  double scale = 1;
  for (int places = 0; places <= 6; ++places, scale *= 10) {
    const double scaled = std::abs(value) * scale;
    if (std::abs(scaled - std::round(scaled)) <= scaled * 1e-15) return places;
  }
  return -1;
}

}  // namespace

Fragment json_number(GrammarBuilder& b, bool integer) {
  const Fragment whole = b.either({b.literal("0"), b.sequence(b.byte_range('1', '9'), digits(b, 0, kMostDigits - 1))});
  const Fragment plain = b.sequence(b.optional(b.literal("-")), whole);
  if (integer) return plain;
  const Fragment fraction = b.optional(b.sequence(b.literal("."), digits(b, 1, kMostFraction)));
  const Fragment e = b.either({b.literal("e"), b.literal("E")});
  const Fragment sign = b.optional(b.either({b.literal("+"), b.literal("-")}));
  const Fragment exponent = b.optional(b.sequence(e, b.sequence(sign, digits(b, 1, 2))));
  return b.sequence(plain, b.sequence(fraction, exponent));
}

Expected<Fragment> bounded_number(GrammarBuilder& b, const NumberBounds& bounds, bool integer) {
  double low = std::isnan(bounds.low) ? -kBeyond : bounds.low, high = std::isnan(bounds.high) ? kBeyond : bounds.high;
  bool low_open = bounds.low_open, high_open = bounds.high_open;
  if (integer) {  // open bounds become closed ones
    low = low_open && low == std::floor(low) ? low + 1 : std::ceil(low);
    high = high_open && high == std::ceil(high) ? high - 1 : std::floor(high);
    low_open = high_open = false;
  }
  if (low > kBeyond || high < -kBeyond)
    return error(Code::unsupported, "the schema asks for numbers beyond 1e18, which this program does not write");
  const int places = integer ? 0 : std::max(places_of(low), places_of(high));
  if (!integer && (places_of(low) < 0 || places_of(high) < 0))
    return error(Code::unsupported, "a bound on a number has more than 6 digits behind the point; round it");
  const double scale = std::pow(10.0, places);
  const double most = 999'999'999'999'999'872.0;  // the largest double below 10^18
  const auto scaled = [&](double value) {
    return static_cast<std::uint64_t>(std::llround(std::min(std::abs(value) * scale, most)));
  };
  RangeBuilder range(b, places, integer);
  std::vector<Fragment> options;
  if (high >= 0) {
    const bool from_bound = low >= 0;
    range.add("", {from_bound ? scaled(low) : 0, scaled(high), from_bound && low_open, high_open}, options);
  }
  if (low < 0) {
    const bool from_bound = high < 0;
    range.add("-",
              {from_bound ? scaled(high) : 0, scaled(low), from_bound ? high_open : high == 0 && high_open, low_open},
              options);
  }
  if (low > high || options.empty())
    return error(Code::invalid_argument, "no number lies between the schema's minimum and maximum");
  return b.either(options);
}

}  // namespace millrace::text
