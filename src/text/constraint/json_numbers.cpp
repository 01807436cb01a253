#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "text/constraint/json_rules.h"

namespace millrace::text {
namespace {

constexpr int kMostDigits = 18;  // before the point: what any reader holds
constexpr std::uint32_t kMostFraction = 17;
constexpr double kBeyond = 1e18;
constexpr double kMostExact = 9'007'199'254'740'992;  // beyond it a double holds not every integer
// In one spelling: 15 digits, which no two doubles share.
constexpr double kMostOnce = 1e9;
constexpr int kMostOnceFraction = 6;
constexpr int kMostBoundPlaces = 15;
constexpr std::uint64_t kMostScaled = 999'999'999'999'999'872;  // the largest double below 10^18
constexpr std::uint64_t kMostLeft = 90'000;                     // what may be left by division: a state each

Fragment digits(GrammarBuilder& b, std::uint32_t least, std::uint32_t most) {
  return b.repeat(least, most, [&] { return b.byte_range('0', '9'); });
}

/// Digits with one among them that is not 0.
Fragment digits_not_zero(GrammarBuilder& b) {
  const Fragment zeros = b.repeat(0, kMostFraction - 1, [&] { return b.literal("0"); });
  return b.sequence(zeros, b.sequence(b.byte_range('1', '9'), digits(b, 0, kMostFraction)));
}

/// Digits, the last of which is not 0.
Fragment digits_to_last(GrammarBuilder& b, std::uint32_t most) {
  return b.sequence(digits(b, 0, most - 1), b.byte_range('1', '9'));
}

/// A range of numbers without sign, times 10^places: [low, high].
struct Magnitudes {
  std::uint64_t low = 0, high = 0;
  bool low_open = false, high_open = false;
};

/// Numbers of a range, digit by digit: where the digits written so far stand (equal to the low bound's, to the high
/// one's, to both, or between), how many are to come, and what is left of them by division. What is between is the same
/// for numbers of every length.
class RangeBuilder {
 public:
  /// `multiple`: numbers are multiples of it, times 10^places; 0: of nothing.
  RangeBuilder(GrammarBuilder& builder, int places, std::uint64_t multiple, Numbers which, JsonSpelling spelling)
      : b_(builder),
        places_(places),
        multiple_(multiple),
        which_(which),
        once_(spelling == JsonSpelling::one),
        end_(builder.new_state()) {
    if (once_) {
      free_tail_ = zeros_tail_ = b_.new_state();  // ends nowhere
      if (places < kMostOnceFraction)
        free_tail_ = tail(
            [&](std::uint32_t) { return digits_to_last(b_, static_cast<std::uint32_t>(kMostOnceFraction - places)); });
      not_zero_tail_ = free_tail_;
      return;
    }
    free_tail_ = tail([&](std::uint32_t least) { return digits(b_, least, kMostFraction); });
    zeros_tail_ =
        tail([&](std::uint32_t least) { return b_.repeat(least, kMostFraction, [&] { return b_.literal("0"); }); });
    not_zero_tail_ = tail([&](std::uint32_t) { return digits_not_zero(b_); });
  }

  /// Every number of the range, lengths one by one. An empty range adds nothing.
  void add(StateId begin, Magnitudes range) {
    if (range.low > range.high) return;
    std::uint64_t least = 0, power = 1;  // the numbers of this length are [least, power * 10)
    for (int length = 1; length <= kMostDigits && !b_.full(); ++length, power *= 10) {
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
      b_.nothing(begin, of_length(length, part));
    }
  }
  StateId end() const { return end_; }

 private:
  struct At {
    int missing;  // digits to come, those behind the point too
    bool low, high;
    std::uint64_t left;
    bool zero = false;  // the last digit is a 0 behind the point, and the number has but one spelling: without it
    auto operator<=>(const At&) const = default;  // NOLINT(modernize-use-nullptr): its own literal 0
  };

  StateId of_length(int length, const Magnitudes& range) {
    range_ = range;
    low_ = padded(range.low, length);
    high_ = padded(range.high, length);
    tight_.clear();
    const StateId begin = state_of({length, true, true, 0});
    while (!open_.empty() && !b_.full()) {
      const auto [at, state] = open_.back();
      open_.pop_back();
      add_from(at, state, length);
    }
    return begin;
  }

  /// What is left of the digits so far says no more about the whole than this: their multiples of 10^missing are alike.
  std::uint64_t left_of(std::uint64_t left, int missing) const {
    if (multiple_ == 0) return 0;
    std::uint64_t divisor = multiple_;
    for (int i = 0; i < missing; ++i) divisor /= std::gcd(divisor, std::uint64_t{10});
    return left % divisor;
  }

  StateId state_of(At at) {
    at.left = left_of(at.left, at.missing);
    auto& known = at.low || at.high ? tight_ : free_;
    const auto [place, fresh] = known.try_emplace(at, 0);
    if (fresh) {
      place->second = b_.new_state();
      open_.emplace_back(at, place->second);
    }
    return place->second;
  }

  void add_from(const At& at, StateId state, int length) {
    const auto i = static_cast<std::size_t>(length - at.missing);
    if (at.missing <= places_ && at.missing > 0 && fits_as_it_is(at, i)) b_.nothing(state, end_);
    if (at.missing == 0) {
      add_end(at, state);
      return;
    }
    if (at.missing == places_) {  // the point comes first
      const StateId after = b_.new_state();
      b_.bytes(state, '.', '.', after);
      state = after;
    }
    const char low = at.low ? low_[i] : '0', high = at.high ? high_[i] : '9';
    for (char digit = low; digit <= high; ++digit) {
      const std::uint64_t left = multiple_ == 0 ? 0 : (at.left * 10 + static_cast<std::uint64_t>(digit - '0'));
      const bool zero = once_ && digit == '0' && at.missing <= places_;
      const StateId to =
          state_of({at.missing - 1, at.low && digit == low_[i], at.high && digit == high_[i], left, zero});
      b_.bytes(state, static_cast<std::uint8_t>(digit), static_cast<std::uint8_t>(digit), to);
    }
  }

  /// Whether the number may end before digits of its fraction that are missing, as if they were zeros.
  bool fits_as_it_is(const At& at, std::size_t i) const {
    const bool low_rest = low_.find_first_not_of('0', i) != std::string::npos;
    const bool high_rest = high_.find_first_not_of('0', i) != std::string::npos;
    if (which_ == Numbers::fractions && at.missing == places_) return false;
    if (at.low && (low_rest || range_.low_open)) return false;
    if (at.high && high_is_bound_ && !high_rest && range_.high_open) return false;
    return at.left == 0 && !at.zero;
  }

  /// What may follow the digits: nothing, more of the fraction, or a fraction.
  void add_end(const At& at, StateId state) {
    const bool at_high = at.high && high_is_bound_;
    const bool exact_fits = !(at_high && range_.high_open) && !(at.low && range_.low_open) && at.left == 0;
    const bool whole = which_ == Numbers::fractions && places_ == 0;
    if (exact_fits && !at.zero && !whole) b_.nothing(state, end_);
    if (which_ == Numbers::integers) return;
    if (at_high || multiple_ != 0) {
      if (exact_fits) b_.nothing(state, zeros_tail_);
    } else {
      b_.nothing(state, at.low && range_.low_open ? not_zero_tail_ : free_tail_);
    }
  }

  template <typename Digits>
  StateId tail(Digits make) {
    const Fragment fraction = places_ == 0 ? b_.sequence(b_.literal("."), make(1)) : make(0);
    b_.nothing(fraction.end, end_);
    return fraction.begin;
  }

  static std::string padded(std::uint64_t value, int length) {
    const std::string text = std::to_string(value);
    return std::string(static_cast<std::size_t>(length) - std::min(text.size(), static_cast<std::size_t>(length)),
                       '0') +
           text;
  }

  GrammarBuilder& b_;
  const int places_;
  const std::uint64_t multiple_;
  const Numbers which_;
  const bool once_;
  const StateId end_;
  StateId free_tail_ = 0, zeros_tail_ = 0, not_zero_tail_ = 0;
  std::map<At, StateId> free_, tight_;        // tight_: of this length
  std::vector<std::pair<At, StateId>> open_;  // without edges yet
  Magnitudes range_;
  std::string low_, high_;
  bool high_is_bound_ = true;
};

/// Digits behind the point that a bound needs, `most` at most; -1: more, or more digits than a double tells apart.
int places_of(double value, int most) {
  double scale = 1;
  for (int places = 0; places <= most && std::abs(value) * scale < 1e15; ++places, scale *= 10)
    if (std::round(std::abs(value) * scale) / scale == std::abs(value)) return places;
  return std::abs(value) >= 1e15 && value == std::floor(value) ? 0 : -1;
}

/// A bound of more digits gives way to the next number inside that has six behind its point, or fewer.
void round_inwards(double& bound, bool& open, bool upwards, int most) {
  if (places_of(bound, most) >= 0) return;
  const double exact = bound;
  double scale = 1e6;
  while (scale > 1 && std::abs(bound) * scale >= 1e15) scale /= 10;
  double whole = upwards ? std::ceil(bound * scale) : std::floor(bound * scale);
  const bool outside = upwards ? whole / scale < exact : whole / scale > exact;  // the product was rounded
  if (outside) whole += upwards ? 1 : -1;
  bound = whole / scale;
  open = open && bound == exact;
}

/// What numbers with so many digits behind their point are multiples of, in units of the last: a number of
/// k / 10^p is a multiple of k / gcd(k, 10^p) where it is whole. Beyond 10^18: none but 0.
std::uint64_t multiple_in(const Decimal& of, int places) {
  std::uint64_t multiple = of.digits;
  for (int left = of.places - places; left > 0 && multiple > 1; --left)
    multiple /= std::gcd(multiple, std::uint64_t{10});
  for (int more = places - of.places; more > 0; --more) {
    if (multiple > kMostScaled) return kMostScaled + 1;
    multiple *= 10;
  }
  return multiple;
}

/// 1250 with 3 places: 1.25.
std::string with_point(std::uint64_t scaled, int places) {
  std::string text = std::to_string(scaled);
  const auto behind = static_cast<std::size_t>(places);
  if (text.size() <= behind) text.insert(0, behind + 1 - text.size(), '0');
  text.insert(text.size() - behind, 1, '.');
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::uint64_t power_of_ten(int exponent) {
  std::uint64_t power = 1;
  for (; exponent > 0; --exponent) power *= 10;
  return power;
}

/// A bound without its sign, in units of 10^-places; beyond kMostScaled: one more than that. A product of doubles would
/// round, and may lie on the other side. REQUIRES: it needs no more places.
std::uint64_t in_units(double bound, int places, int most) {
  if (std::abs(bound) > static_cast<double>(kMostScaled)) return kMostScaled + 1;
  int held = std::max(places_of(bound, most), 0);
  auto units = static_cast<std::uint64_t>(std::llround(std::abs(bound) * static_cast<double>(power_of_ten(held))));
  for (; held < places; ++held) {
    if (units > kMostScaled / 10) return kMostScaled + 1;
    units *= 10;
  }
  return units;
}

/// How many digits may stand behind the point of numbers up to this one.
int room_behind_point(double farthest) {
  int places = kMostOnceFraction;
  while (places < kMostBoundPlaces && farthest * static_cast<double>(power_of_ten(places + 1)) < kBeyond) ++places;
  return places;
}

/// The least multiples of a range.
Fragment first_multiples(GrammarBuilder& b, const Magnitudes& range, std::uint64_t multiple, int places,
                         Numbers which) {
  constexpr int most = 2000;
  std::vector<std::string> texts;
  std::uint64_t at = range.low / multiple * multiple;
  if (at < range.low || (at == range.low && range.low_open)) at += multiple;
  for (int i = 0; i < most && (at < range.high || (at == range.high && !range.high_open)); ++i, at += multiple) {
    const bool whole = at % power_of_ten(places) == 0;
    const double times = static_cast<double>(at) / static_cast<double>(multiple);
    if (at > kMostExact && times != std::floor(times)) continue;  // for who reads it as a double
    if (which != Numbers::fractions || !whole) texts.push_back(with_point(at, places));
  }
  return b.one_of(std::move(texts));
}

}  // namespace

Fragment json_number(GrammarBuilder& b, Numbers which, JsonSpelling spelling) {
  const bool integer = which == Numbers::integers;
  if (spelling == JsonSpelling::one || which == Numbers::fractions) {
    const auto whole = [&](std::uint32_t most) { return b.sequence(b.byte_range('1', '9'), digits(b, 0, most - 1)); };
    const auto with_fraction = [&](Fragment before, std::uint32_t most) {
      return b.sequence(before, b.sequence(b.literal("."), digits_to_last(b, most)));
    };
    std::vector<Fragment> signed_ones;
    if (which != Numbers::fractions) signed_ones.push_back(whole(integer ? kMostDigits : 15));
    if (!integer) {
      signed_ones.push_back(with_fraction(whole(9), kMostOnceFraction));
      signed_ones.push_back(with_fraction(b.literal("0"), 15));
    }
    const Fragment not_zero = b.sequence(b.optional(b.literal("-")), b.either(signed_ones));
    return which == Numbers::fractions ? not_zero : b.either({b.literal("0"), not_zero});
  }
  const Fragment whole = b.either({b.literal("0"), b.sequence(b.byte_range('1', '9'), digits(b, 0, kMostDigits - 1))});
  const Fragment plain = b.sequence(b.optional(b.literal("-")), whole);
  if (integer) return plain;
  const Fragment fraction = b.optional(b.sequence(b.literal("."), digits(b, 1, kMostFraction)));
  const Fragment e = b.either({b.literal("e"), b.literal("E")});
  const Fragment sign = b.optional(b.either({b.literal("+"), b.literal("-")}));
  const Fragment exponent = b.optional(b.sequence(e, b.sequence(sign, digits(b, 1, 2))));
  return b.sequence(plain, b.sequence(fraction, exponent));
}

Expected<Fragment> bounded_number(GrammarBuilder& b, const NumberBounds& bounds, Numbers which, JsonSpelling spelling) {
  if (which == Numbers::fractions) spelling = JsonSpelling::one;
  const bool once = spelling == JsonSpelling::one, integer = which == Numbers::integers;
  const bool multiples = bounds.multiple_of.digits > 0;
  // Multiples of an integer, exact for those who read them as doubles; what is a multiple of much is looked at one by
  // one.
  constexpr double much = 1e12;
  const bool exact = multiples && bounds.multiple_of.places <= 0 &&
                     static_cast<double>(bounds.multiple_of.digits) * std::pow(10.0, -bounds.multiple_of.places) < much;
  const bool whole_multiples = multiples && bounds.multiple_of.places <= 0;
  const double widest = once && !integer                ? kMostOnce
                        : exact                         ? kMostExact
                        : multiples && !whole_multiples ? 1e15
                                                        : kBeyond;
  double low = std::isnan(bounds.low) ? -widest : bounds.low, high = std::isnan(bounds.high) ? widest : bounds.high;
  if (exact && low <= kMostExact && high >= -kMostExact) {
    low = std::max(low, -kMostExact);
    high = std::min(high, kMostExact);
  }
  if (std::isnan(bounds.low) && high < low) low = -kBeyond;  // the other bound lies beyond
  if (std::isnan(bounds.high) && high < low) high = kBeyond;
  bool low_open = bounds.low_open, high_open = bounds.high_open;
  const bool bounded = !once && !std::isnan(bounds.low) && !std::isnan(bounds.high);
  const int most_places = bounded ? room_behind_point(std::max(std::abs(low), std::abs(high))) : kMostOnceFraction;
  if (integer) {  // open bounds become closed ones
    low = low_open && low == std::floor(low) ? low + 1 : std::ceil(low);
    high = high_open && high == std::ceil(high) ? high - 1 : std::floor(high);
    low_open = high_open = false;
  } else {
    round_inwards(low, low_open, true, most_places);
    round_inwards(high, high_open, false, most_places);
  }
  if (low > kBeyond || high < -kBeyond)
    return error(Code::unsupported, "the schema asks for numbers beyond 1e18, which this program does not write");
  if (once && !integer && (std::abs(low) > kMostOnce || std::abs(high) > kMostOnce))
    return error(Code::unsupported,
                 "numbers that have to differ, or to be no integers, are supported up to 1e9; leave that out");
  if (low > high) return error(Code::invalid_argument, "no number lies between the schema's minimum and maximum");
  int places = integer ? 0 : std::max(places_of(low, most_places), places_of(high, most_places));
  const double nearest = low > 0 ? low : high < 0 ? -high : 0, farthest = std::max(std::abs(low), std::abs(high));
  const auto units = [&](double value) { return in_units(value, places, most_places); };
  const auto fits = [&](double value) { return units(value) <= kMostScaled; };
  if (multiples && !integer) {
    // As many digits as the multiple has, if that leaves room for the numbers.
    constexpr int enough = 9;
    const int needed = places;
    places = std::max(places, std::min(bounds.multiple_of.places, once ? kMostOnceFraction : kMostBoundPlaces));
    while (places > needed && (!fits(nearest) || (places > enough && !fits(farthest)))) --places;
  }
  if (!fits(nearest)) return error(Code::unsupported, "the bounds of a number need more than 18 digits; use fewer");
  const std::uint64_t multiple = multiples ? multiple_in(bounds.multiple_of, places) : 0;
  const auto scaled = [&](double value) { return std::min(units(value), kMostScaled); };
  const bool listed = multiple > kMostLeft;
  RangeBuilder range(b, places, listed ? 0 : multiple, which, spelling);
  const auto add = [&](StateId from, const Magnitudes& part) {
    if (!listed) return range.add(from, part);
    const Fragment some = first_multiples(b, part, multiple, places, which);
    b.nothing(from, some.begin);
    b.nothing(some.end, range.end());
  };
  const StateId begin = b.new_state();
  if (high >= 0) {
    const bool from_bound = low >= 0;
    add(begin, {from_bound ? scaled(low) : 0, scaled(high), from_bound && low_open, high_open});
  }
  if (low < 0) {
    const bool from_bound = high < 0;
    const StateId minus = b.new_state();
    b.bytes(begin, '-', '-', minus);
    add(minus, {from_bound ? scaled(high) : 0, scaled(low), from_bound ? high_open : once || (high == 0 && high_open),
                low_open});
  }
  return Fragment{begin, range.end()};
}

Decimal decimal_of(std::string_view number) {
  Decimal result;
  int zeros = 0, exponent = 0;
  bool fraction = false;
  std::size_t i = 0;
  for (; i < number.size() && number[i] != 'e' && number[i] != 'E'; ++i) {
    if (number[i] == '.') fraction = true;
    if (number[i] < '0' || number[i] > '9') continue;
    if (fraction) ++result.places;
    if (number[i] == '0') {
      ++zeros;
      continue;
    }
    for (++zeros; zeros > 0; --zeros) result.digits *= 10;
    result.digits += static_cast<std::uint64_t>(number[i] - '0');
    zeros = 0;
  }
  if (i + 1 < number.size()) exponent = std::atoi(std::string(number.substr(i + 1)).c_str());
  result.places -= zeros + exponent;  // zeros at the end say nothing
  return result;
}

}  // namespace millrace::text
