// Integers beyond 64 bits. A result of more than about 4300 decimal digits, the most that Python
// prints, throws Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::jinja {

class BigInteger {
 public:
  static constexpr size_t kMaxDigits = 4300;

  BigInteger(int64_t value);
  // digits: only digits of `base`, which is from 2 to 36.
  static BigInteger parse(std::string_view digits, int base = 10);
  static BigInteger truncated(double value);  // must be finite

  bool is_negative() const { return negative_; }
  bool is_zero() const { return limbs_.empty(); }
  size_t size() const { return limbs_.size(); }  // size in words of 32 bits
  int64_t bits() const;                          // number of bits of the absolute value
  std::optional<int64_t> small() const;          // the value if it fits in 64 bits
  double nearest() const;                        // throws Error beyond the range of double
  std::string text(int base = 10) const;

  int compare(const BigInteger& other) const;  // -1, 0, 1
  BigInteger operator-() const;
  BigInteger operator+(const BigInteger& other) const;
  BigInteger operator-(const BigInteger& other) const { return *this + -other; }
  BigInteger operator*(const BigInteger& other) const;
  // Quotient and remainder, the quotient rounded down. by must not be zero.
  std::pair<BigInteger, BigInteger> divided(const BigInteger& by) const;
  BigInteger to_power(uint64_t exponent) const;
  // The double nearest to this / by. by must not be zero.
  double ratio(const BigInteger& by) const;

 private:
  using Limbs = std::vector<uint32_t>;  // least significant first, the last is not 0
  BigInteger(bool negative, Limbs limbs);
  BigInteger shifted(int64_t bits) const;

  bool negative_ = false;
  Limbs limbs_;
};

}  // namespace megatron::jinja
