// Covering arrays with constraints: a small set of rows in which every feasible pair (or triple) of
// values occurs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::selftest {

struct Factor {
  std::string name;
  std::vector<std::string> values;  // simplest value first
};

// Index of each factor's value; kOpen: not chosen.
using Row = std::vector<int>;
inline constexpr int kOpen = -1;

// Returns the reason why no row with these values is possible, whatever the open values become;
// empty: no objection is known. It must be exact for rows without open values; for others it may be
// empty, which only costs time.
using Refusal = std::function<std::string(const Row&)>;

struct ExcludedPair {
  int first = 0, first_value = 0, second = 0, second_value = 0;  // factors, first < second
  std::string reason;
};

struct Covering {
  std::vector<Row> rows;               // rows that are not refused
  std::vector<ExcludedPair> excluded;  // pairs of values that cannot occur in a row
  int64_t possible = 0;                // number of rows that are not refused
  int64_t tuples = 0;                  // sets of `strength` values that occur in these
};

// Returns rows that cover every tuple of `strength` (1 to 3) values of different factors that
// occurs in some row that is not refused. Greedy: each row covers as many new tuples as possible;
// in the end, redundant rows are removed. The same arguments give the same rows. Throws
// InternalError beyond 4 million possible rows.
Covering cover(const std::vector<Factor>& factors, const Refusal& refusal, int strength,
               uint64_t seed = 1);

// Describes the chosen values: "tp 2, sequence on".
std::string describe(const std::vector<Factor>& factors, const Row& row);
// "pp 1 with schedule zb-v: the reason".
std::string describe(const std::vector<Factor>& factors, const ExcludedPair& pair);

}  // namespace megatron::selftest
