// Covering arrays with constraints: few rows in which every pair (or triple) of values occurs that
// can occur at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::selftest {

struct Factor {
  std::string name;
  std::vector<std::string> values;  // the simplest first
};

// The place of each factor's value; kOpen: not chosen.
using Row = std::vector<int>;
inline constexpr int kOpen = -1;

// Why no row with these values can be, whatever the open ones become; empty: nothing is known
// against it. Decides rows without open values; about others it may be empty, which costs time.
using Refusal = std::function<std::string(const Row&)>;

struct ExcludedPair {
  int first = 0, first_value = 0, second = 0, second_value = 0;  // factors, first < second
  std::string reason;
};

struct Covering {
  std::vector<Row> rows;               // none of them is refused
  std::vector<ExcludedPair> excluded;  // pairs of values that no row can have
  int64_t possible = 0;                // rows that are not refused
  int64_t tuples = 0;                  // sets of `strength` values that occur in some of those
};

// Rows in which every tuple of `strength` (1 to 3) values of different factors occurs that occurs
// in some row that is not refused. Greedy: each row is one of those that cover most tuples not yet
// covered, at last rows that the others make needless are left out. The same arguments give the
// same rows. Throws InternalError beyond 4 million possible rows.
Covering cover(const std::vector<Factor>& factors, const Refusal& refusal, int strength,
               uint64_t seed = 1);

// "tp 2, sequence on": values that are chosen.
std::string describe(const std::vector<Factor>& factors, const Row& row);
// "pp 1 with schedule zb-v: the reason".
std::string describe(const std::vector<Factor>& factors, const ExcludedPair& pair);

}  // namespace megatron::selftest
