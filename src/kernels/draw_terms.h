// Constants from which back-ends compute normal numbers (Box and Muller 1958) in f64, with every
// addition and product rounded. With uniform u and v in [0, 1) from draws 2 i and 2 i + 1:
//   1 - u = m 2^e with m in [sqrt(1/2), sqrt(2));  s = (m - 1) / (m + 1),  t = 2 s,  z = s s
//   log(1 - u) = e kLn2High + (t + (t z L(z) + e kLn2Low))
//   v = q/4 + r with q = floor(4 v + 1/2);  a = kTwoPi r,  y = a a
//   sin a = a + a (y S(y)),  cos a = (1 - y/2) + y (y C(y)), rotated by q quarter turns
//   draws = sqrt(-2 log(1 - u)) times cos and sin of 2 pi v
// L, S and C are polynomials with the coefficients below, evaluated by Horner's rule, highest power
// first. They are truncated series (artanh and Taylor) whose first omitted terms are below 2^-57 of
// the sums.
#pragma once

#include <array>
#include <cstdint>

namespace megatron::kernels {

inline constexpr int64_t kRootHalfBits = 0x3fe6a09e667f3bcd;  // bits of sqrt(1/2)
// log(2) = kLn2High + kLn2Low. Products of kLn2High and an exponent of up to 10 bits are exact.
inline constexpr double kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;
inline constexpr double kTwoPi = 0x1.921fb54442d18p+2;

inline constexpr std::array kLogTerms = {
    0.047619047619047616, 0.05263157894736842, 0.058823529411764705,
    0.06666666666666667,  0.07692307692307693, 0.09090909090909091,
    0.1111111111111111,   0.14285714285714285, 0.2,
    0.3333333333333333};
inline constexpr std::array kSinTerms = {
    2.8114572543455206e-15, -7.647163731819816e-13, 1.6059043836821613e-10, -2.505210838544172e-08,
    2.7557319223985893e-06, -0.0001984126984126984, 0.008333333333333333,   -0.16666666666666666};
inline constexpr std::array kCosTerms = {
    4.779477332387385e-14, -1.1470745597729725e-11, 2.08767569878681e-09, -2.755731922398589e-07,
    2.48015873015873e-05,  -0.001388888888888889,   0.041666666666666664};

}  // namespace megatron::kernels
