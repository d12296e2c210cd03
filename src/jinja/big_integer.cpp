#include "jinja/big_integer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace megatron::jinja {
namespace {

using Limbs = std::vector<uint32_t>;
constexpr size_t kMaxLimbs = 447;  // 10^4300 has 14285 bits
constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";

[[noreturn]] void too_long() {
  fail("an integer has more than {} digits, which is the limit", BigInteger::kMaxDigits);
}

void trim(Limbs& limbs) {
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
}

int compare_limbs(const Limbs& a, const Limbs& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  for (size_t i = a.size(); i-- > 0;)
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

Limbs sum(const Limbs& a, const Limbs& b) {
  Limbs result(std::max(a.size(), b.size()) + 1);
  uint64_t carry = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    carry += (i < a.size() ? a[i] : 0ull) + (i < b.size() ? b[i] : 0ull);
    result[i] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  return result;
}

// a - b; a is not less.
Limbs difference(Limbs a, const Limbs& b) {
  int64_t borrow = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    borrow += static_cast<int64_t>(a[i]) - (i < b.size() ? b[i] : 0);
    a[i] = static_cast<uint32_t>(borrow);
    borrow >>= 32;
  }
  return a;
}

// Divides in place; returns the remainder.
uint32_t divide_by_limb(Limbs& limbs, uint32_t by) {
  uint64_t rest = 0;
  for (size_t i = limbs.size(); i-- > 0;) {
    rest = rest << 32 | limbs[i];
    limbs[i] = static_cast<uint32_t>(rest / by);
    rest %= by;
  }
  trim(limbs);
  return static_cast<uint32_t>(rest);
}

Limbs shifted_left(const Limbs& limbs, size_t bits) {
  Limbs result(bits / 32, 0);
  uint64_t carry = 0;
  for (const uint32_t limb : limbs) {
    carry |= static_cast<uint64_t>(limb) << (bits % 32);
    result.push_back(static_cast<uint32_t>(carry));
    carry >>= 32;
  }
  result.push_back(static_cast<uint32_t>(carry));
  return result;
}

// Knuth's algorithm D. Returns the quotient; `a` becomes the remainder. b has at least two limbs,
// and a is not less than b.
Limbs long_division(Limbs& a, const Limbs& b) {
  const auto shift = static_cast<size_t>(std::countl_zero(b.back()));
  Limbs divisor = shifted_left(b, shift);
  divisor.pop_back();
  a = shifted_left(a, shift);
  const size_t n = divisor.size();
  Limbs quotient(a.size() - n);
  for (size_t j = quotient.size(); j-- > 0;) {
    const uint64_t top = static_cast<uint64_t>(a[j + n]) << 32 | a[j + n - 1];
    uint64_t digit = top / divisor[n - 1], rest = top % divisor[n - 1];
    while (digit >> 32 != 0 || digit * divisor[n - 2] > (rest << 32 | a[j + n - 2])) {
      --digit;
      rest += divisor[n - 1];
      if (rest >> 32 != 0) break;
    }
    int64_t borrow = 0;
    uint64_t carry = 0;
    for (size_t i = 0; i <= n; ++i) {
      carry += i < n ? digit * divisor[i] : 0;
      borrow += static_cast<int64_t>(a[j + i]) - static_cast<uint32_t>(carry);
      a[j + i] = static_cast<uint32_t>(borrow);
      borrow >>= 32;
      carry >>= 32;
    }
    if (borrow < 0) {  // the digit was too large by one
      --digit;
      uint64_t back = 0;
      for (size_t i = 0; i <= n; ++i) {
        back += static_cast<uint64_t>(a[j + i]) + (i < n ? divisor[i] : 0);
        a[j + i] = static_cast<uint32_t>(back);
        back >>= 32;
      }
    }
    quotient[j] = static_cast<uint32_t>(digit);
  }
  for (size_t i = 0; shift > 0 && i < a.size(); ++i)
    a[i] = a[i] >> shift | (i + 1 < a.size() ? a[i + 1] << (32 - shift) : 0);
  return quotient;
}

}  // namespace

BigInteger::BigInteger(bool negative, Limbs limbs) : limbs_(std::move(limbs)) {
  trim(limbs_);
  negative_ = negative && !limbs_.empty();
  if (limbs_.size() > kMaxLimbs) too_long();
}

BigInteger::BigInteger(int64_t value) : negative_(value < 0) {
  uint64_t rest =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  for (; rest != 0; rest >>= 32) limbs_.push_back(static_cast<uint32_t>(rest));
}

BigInteger BigInteger::parse(std::string_view digits, int base) {
  Limbs limbs;
  for (const char digit : digits) {
    uint64_t carry =
        kDigits.find(static_cast<char>(digit >= 'A' && digit <= 'Z' ? digit + 32 : digit));
    for (uint32_t& limb : limbs) {
      carry += static_cast<uint64_t>(limb) * static_cast<uint64_t>(base);
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
    if (limbs.size() > kMaxLimbs) too_long();
  }
  return BigInteger(false, std::move(limbs));
}

BigInteger BigInteger::truncated(double value) {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  if (exponent <= 53) return BigInteger(static_cast<int64_t>(value));
  const BigInteger mantissa(static_cast<int64_t>(std::ldexp(fraction, 53)));
  const BigInteger result = mantissa.shifted(exponent - 53);
  return value < 0 ? -result : result;
}

int64_t BigInteger::bits() const {
  if (limbs_.empty()) return 0;
  return static_cast<int64_t>(limbs_.size()) * 32 - std::countl_zero(limbs_.back());
}

std::optional<int64_t> BigInteger::small() const {
  if (limbs_.size() > 2) return std::nullopt;
  uint64_t value = 0;
  for (size_t i = limbs_.size(); i-- > 0;) value = value << 32 | limbs_[i];
  const uint64_t most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value > most + (negative_ ? 1 : 0)) return std::nullopt;
  return static_cast<int64_t>(negative_ ? uint64_t{0} - value : value);
}

double BigInteger::nearest() const {
  const int64_t drop = std::max<int64_t>(bits() - 64, 0);
  uint64_t top = 0;  // the highest 64 bits; the lowest of them is also set if any dropped bit is
  for (int64_t i = bits() - 1; i >= drop; --i)
    top = top << 1 | (limbs_[static_cast<size_t>(i / 32)] >> (i % 32) & 1u);
  for (int64_t i = 0; i < drop && (top & 1) == 0; ++i)
    top |= limbs_[static_cast<size_t>(i / 32)] >> (i % 32) & 1u;
  const double value = std::ldexp(static_cast<double>(top), static_cast<int>(drop));
  MG_CHECK(!std::isinf(value), "int too large to convert to float");
  return negative_ ? -value : value;
}

std::string BigInteger::text(int base) const {
  const bool decimal = base == 10;
  const size_t group = decimal ? 9 : 1;  // digits per division
  Limbs rest = limbs_;
  std::string out;
  while (!rest.empty()) {
    uint32_t part = divide_by_limb(rest, decimal ? 1'000'000'000u : static_cast<uint32_t>(base));
    for (size_t i = 0; i < group; ++i, part /= static_cast<uint32_t>(base))
      out += kDigits[part % static_cast<uint32_t>(base)];
  }
  while (out.size() > 1 && out.back() == '0') out.pop_back();
  if (decimal && out.size() > kMaxDigits) too_long();
  if (out.empty()) out = "0";
  if (negative_) out += '-';
  std::reverse(out.begin(), out.end());
  return out;
}

int BigInteger::compare(const BigInteger& other) const {
  if (negative_ != other.negative_) return negative_ ? -1 : 1;
  const int order = compare_limbs(limbs_, other.limbs_);
  return negative_ ? -order : order;
}

BigInteger BigInteger::operator-() const { return BigInteger(!negative_, limbs_); }

BigInteger BigInteger::operator+(const BigInteger& other) const {
  if (negative_ == other.negative_) return BigInteger(negative_, sum(limbs_, other.limbs_));
  if (compare_limbs(limbs_, other.limbs_) >= 0)
    return BigInteger(negative_, difference(limbs_, other.limbs_));
  return BigInteger(other.negative_, difference(other.limbs_, limbs_));
}

BigInteger BigInteger::operator*(const BigInteger& other) const {
  if (size() + other.size() > kMaxLimbs + 1) too_long();
  Limbs result(size() + other.size());
  for (size_t i = 0; i < size(); ++i) {
    uint64_t carry = 0;
    for (size_t k = 0; k < other.size(); ++k) {
      carry += static_cast<uint64_t>(limbs_[i]) * other.limbs_[k] + result[i + k];
      result[i + k] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    result[i + other.size()] = static_cast<uint32_t>(carry);
  }
  return BigInteger(negative_ != other.negative_, std::move(result));
}

std::pair<BigInteger, BigInteger> BigInteger::divided(const BigInteger& by) const {
  Limbs rest = limbs_, quotient;
  if (by.size() == 1) {
    quotient = std::move(rest);
    rest = {divide_by_limb(quotient, by.limbs_[0])};
  } else if (compare_limbs(rest, by.limbs_) >= 0) {
    quotient = long_division(rest, by.limbs_);
  }
  BigInteger whole(negative_ != by.negative_, std::move(quotient));
  BigInteger remainder(negative_, std::move(rest));
  if (!remainder.is_zero() && negative_ != by.negative_) {
    whole = whole - 1;
    remainder = remainder + by;
  }
  return {std::move(whole), std::move(remainder)};
}

BigInteger BigInteger::to_power(uint64_t exponent) const {
  const auto lowest = static_cast<uint64_t>(std::max<int64_t>(bits() - 1, 0));
  if (lowest > 0 && exponent > kMaxLimbs * 32 / lowest) too_long();
  BigInteger result(1), square = *this;
  while (true) {
    if ((exponent & 1) != 0) result = result * square;
    exponent >>= 1;
    if (exponent == 0) return result;
    square = square * square;
  }
}

BigInteger BigInteger::shifted(int64_t bits) const {
  return BigInteger(negative_, shifted_left(limbs_, static_cast<size_t>(bits)));
}

double BigInteger::ratio(const BigInteger& by) const {
  // Scales the dividend so that the quotient has at least 65 bits; a remainder then only sets the
  // last bit.
  const int64_t scale = 66 - (bits() - by.bits());
  const BigInteger above = scale > 0 ? shifted(scale) : *this;
  const BigInteger below = scale < 0 ? by.shifted(-scale) : by;
  BigInteger a(false, above.limbs_), b(false, below.limbs_);
  auto [quotient, rest] = a.divided(b);
  if (!rest.is_zero() && (quotient.limbs_[0] & 1) == 0) quotient = quotient + 1;
  const double value = std::ldexp(quotient.nearest(), static_cast<int>(-scale));
  MG_CHECK(!std::isinf(value), "integer division result too large for a float");
  return negative_ != by.negative_ ? -value : value;
}

}  // namespace megatron::jinja
