#include "inference/constraint/number_range.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "inference/constraint/pattern.h"

namespace megatron::inference {
namespace {

constexpr int64_t kIntegerDigits = 18, kDigits = 15;
constexpr int64_t kWidestInteger = 20;  // digits of the largest integer of 64 bits without a sign

// Bounds of a magnitude; digit i counts from that of 10^(whole - 1).
struct Limit {
  std::string digits;  // `whole` digits before the point, then the fraction
  bool inclusive = true;

  bool endless_from(size_t i) const { return i >= digits.size(); }
  int at(size_t i) const { return i < digits.size() ? digits[i] - '0' : 0; }
  bool zero_from(size_t i) const {
    return i >= digits.size() || digits.find_first_not_of('0', i) == std::string::npos;
  }
};

// Returns nullopt if the value has more than `whole` digits before the point.
std::optional<Limit> limit_of(const Decimal& value, bool exclusive, int64_t whole) {
  const auto size = static_cast<int64_t>(value.digits.size()) - value.places;
  if (size > whole) return std::nullopt;
  return Limit{std::string(static_cast<size_t>(whole - size), '0') + value.digits, !exclusive};
}

// States after digits beyond which no bound matters, shared by numbers of different lengths. Key:
// remaining digits before the point, digits after it, and the number modulo the divisor.
using FreeStates = std::map<std::tuple<int64_t, size_t, int64_t>, int32_t>;

// Magnitudes of `whole` digits before the point, digit by digit.
class Magnitudes {
 public:
  Magnitudes(Network& network, int32_t to, FreeStates& free_states, size_t whole, size_t places,
             int64_t divisor, Limit low, std::optional<Limit> high)
      : network_(network),
        to_(to),
        free_states_(free_states),
        whole_(whole),
        places_(places),
        divisor_(divisor),
        low_(std::move(low)),
        high_(std::move(high)) {}

  void add(int32_t from) {
    states_[{0, true, high_.has_value(), 0}] = from;
    queue_.push_back({0, true, high_.has_value(), 0});
    while (!queue_.empty()) {
      const Place place = queue_.back();
      queue_.pop_back();
      expand(place, states_.at(place));
    }
  }

 private:
  // Digits read; whether they are the first ones of the limits; their number modulo the divisor.
  struct Place {
    size_t read;
    bool at_low, at_high;
    int64_t rest;
    auto operator<=>(const Place&) const = default;
  };

  void expand(const Place& place, int32_t state) {
    if (place.read >= whole_ && may_end(place)) network_.add_empty(state, to_);
    if (place.read == whole_ + places_) return;
    if (place.read == whole_) {
      const int32_t behind = network_.add_state();
      network_.add_bytes(state, behind, '.', '.');
      state = behind;
    }
    const int least = place.at_low ? low_.at(place.read) : 0;
    const int most = place.at_high ? high_->at(place.read) : 9;
    for (int digit = least; digit <= most; ++digit) {
      if (place.read == 0 && whole_ > 1 && digit == 0) continue;
      const Place next{place.read + 1, place.at_low && digit == least,
                       place.at_high && digit == most, (place.rest * 10 + digit) % divisor_};
      const auto byte = static_cast<uint8_t>('0' + digit);
      network_.add_bytes(state, state_of(next), byte, byte);
    }
  }

  bool may_end(const Place& place) const {
    if (place.rest != 0) return false;
    if (place.at_low && !(low_.zero_from(place.read) && low_.inclusive)) return false;
    return !place.at_high || high_->inclusive || !high_->zero_from(place.read);
  }

  int32_t state_of(const Place& place) {
    const auto [found, is_new] = states_.try_emplace(place, 0);
    if (!is_new) return found->second;
    if (!place.at_low && !place.at_high) {
      const auto left = static_cast<int64_t>(whole_) - static_cast<int64_t>(place.read);
      const auto [shared, first] = free_states_.try_emplace({left, places_, place.rest}, 0);
      if (!first) return found->second = shared->second;
      shared->second = network_.add_state();
      found->second = shared->second;
    } else {
      found->second = network_.add_state();
    }
    queue_.push_back(place);
    return found->second;
  }

  Network& network_;
  int32_t to_;
  FreeStates& free_states_;
  size_t whole_, places_;
  int64_t divisor_;
  Limit low_;
  std::optional<Limit> high_;
  std::map<Place, int32_t> states_;
  std::vector<Place> queue_;
};

// Adds magnitudes in [low, high]; high: nullopt if unbounded.
void add_magnitudes(Network& network, int32_t from, int32_t to, const NumberRange& range,
                    const NumberRange::Bound& low, const std::optional<NumberRange::Bound>& high) {
  FreeStates free_states;
  int64_t most_digits = range.integer ? kIntegerDigits : kDigits;
  for (const auto* bound : {&low.value, high ? &high->value : nullptr}) {
    if (bound == nullptr || !range.integer) continue;
    const auto whole_digits = static_cast<int64_t>(bound->digits.size()) - bound->places;
    if (whole_digits <= kWidestInteger) most_digits = std::max(most_digits, whole_digits);
  }
  for (int64_t whole = 1; whole <= most_digits; ++whole) {
    const auto least = limit_of(low.value, low.exclusive, whole);
    if (!least) continue;
    std::optional<Limit> most;
    if (high) most = limit_of(high->value, high->exclusive, whole);
    const int64_t places = range.integer ? 0 : std::min(range.most_places, kDigits - whole);
    const int32_t start = network.add_state();
    network.add_empty(from, start);
    Magnitudes(network, to, free_states, static_cast<size_t>(whole), static_cast<size_t>(places),
               range.divisor, *least, std::move(most))
        .add(start);
  }
}

}  // namespace

Decimal::Decimal(const Json& number) {
  std::string text = number.dump();
  if (text[0] == '-') negative = true, text.erase(0, 1);
  int64_t exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::stol(text.substr(e + 1));
    text.resize(e);
  }
  if (const size_t point = text.find('.'); point != std::string::npos) {
    places = static_cast<int64_t>(text.size() - point) - 1;
    text.erase(point, 1);
  }
  places -= exponent;
  if (places < 0) text.append(static_cast<size_t>(-places), '0'), places = 0;
  while (places > 0 && text.ends_with('0')) text.pop_back(), --places;
  text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
  if (static_cast<int64_t>(text.size()) <= places)
    text.insert(0, static_cast<size_t>(places) + 1 - text.size(), '0');
  digits = text;
  if (is_zero()) negative = false;
}

std::string Decimal::text() const {
  return fmt::format("{}{}e-{}", negative ? "-" : "", digits, places);
}

void add_number(Network& network, int32_t from, int32_t to, const NumberRange& range) {
  const auto magnitude = [](NumberRange::Bound bound) {
    bound.value.negative = false;
    return bound;
  };
  const auto &low = range.minimum, &high = range.maximum;
  const NumberRange::Bound zero{};
  const bool below_zero = !low || low->value.negative;
  const bool from_zero = !high || !high->value.negative;
  if (from_zero) add_magnitudes(network, from, to, range, low && !below_zero ? *low : zero, high);
  if (!below_zero) return;
  const int32_t behind = network.add_state();
  network.add_bytes(from, behind, '-', '-');
  const NumberRange::Bound above_zero{{}, true};
  const NumberRange::Bound least = high && high->value.negative ? magnitude(*high) : above_zero;
  std::optional<NumberRange::Bound> most;
  if (low) most = magnitude(*low);
  add_magnitudes(network, behind, to, range, least, most);
}

void add_any_number(Network& network, int32_t from, int32_t to) {
  add_pattern(network, from, to,
              "-?(?:0|[1-9][0-9]{0,17})(?:[.][0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?",
              Matching::whole, Spelling::utf8);
}

}  // namespace megatron::inference
