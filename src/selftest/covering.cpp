#include "selftest/covering.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace megatron::selftest {
namespace {

constexpr size_t kMaxRows = size_t{1} << 22;

// Rows whose values are all chosen, without memory of their own: there are a million.
class CompactRows {
 public:
  explicit CompactRows(size_t width) : width_(width) {}

  size_t size() const { return values_.size() / width_; }
  void add(const Row& row) {
    MG_ASSERT(size() < kMaxRows);
    for (const int value : row) values_.push_back(static_cast<int8_t>(value));
  }
  std::span<const int8_t> operator[](size_t i) const {
    return std::span(values_).subspan(i * width_, width_);
  }
  Row row(size_t i) const {
    const std::span<const int8_t> values = (*this)[i];
    return {values.begin(), values.end()};
  }

 private:
  size_t width_;
  std::vector<int8_t> values_;
};

// All rows that are not refused, in the order of their values.
class Possible {
 public:
  Possible(const std::vector<Factor>& factors, const Refusal& refusal)
      : factors_(factors), refusal_(refusal), row_(factors.size(), kOpen), rows_(factors.size()) {}

  CompactRows take() {
    choose(0);
    return std::move(rows_);
  }

  // Adds, for each reason, the number of the rows with these values against which it stands. What
  // is said against a part of a row counts for all rows with that part.
  void count_reasons(Row& row, std::map<std::string, int64_t>& count) const {
    const auto open = std::ranges::find(row, kOpen);
    if (std::string reason = refusal_(row); open == row.end() || !reason.empty()) {
      int64_t rows = 1;
      for (size_t f = 0; f < row.size(); ++f)
        if (row[f] == kOpen) rows *= std::ssize(factors_[f].values);
      count[std::move(reason)] += rows;
      return;
    }
    const auto values =
        static_cast<int>(factors_[static_cast<size_t>(open - row.begin())].values.size());
    for (*open = 0; *open < values; ++*open) count_reasons(row, count);
    *open = kOpen;
  }

 private:
  void choose(size_t at) {
    if (!refusal_(row_).empty()) return;
    if (at == factors_.size()) {
      rows_.add(row_);
      return;
    }
    for (size_t v = 0; v < factors_[at].values.size(); ++v) {
      row_[at] = static_cast<int>(v);
      choose(at + 1);
    }
    row_[at] = kOpen;
  }

  const std::vector<Factor>& factors_;
  const Refusal& refusal_;
  Row row_;
  CompactRows rows_;
};

// Numbers the tuples of values.
class Tuples {
 public:
  Tuples(const std::vector<Factor>& factors, int strength) {
    std::vector<size_t> chosen;
    add(factors, chosen, static_cast<size_t>(strength));
  }

  size_t count() const { return count_; }
  size_t of_row() const { return sets_.size(); }

  // Calls f with the number of each of the row's tuples.
  template <class Values, class F>
  void each(const Values& row, F&& f) const {
    for (const Set& set : sets_) {
      size_t number = set.begin;
      for (size_t i = 0; i < kMostFactors; ++i)
        number += set.strides[i] * static_cast<size_t>(row[set.factors[i]]);
      f(number);
    }
  }

 private:
  static constexpr size_t kMostFactors = 3;
  // Factors whose tuples of values are numbered from `begin` on; unused ones have stride 0.
  struct Set {
    std::array<size_t, kMostFactors> factors{}, strides{};
    size_t begin = 0;
  };

  void add(const std::vector<Factor>& factors, std::vector<size_t>& chosen, size_t strength) {
    if (chosen.size() < strength) {
      for (size_t f = chosen.empty() ? 0 : chosen.back() + 1; f < factors.size(); ++f) {
        chosen.push_back(f);
        add(factors, chosen, strength);
        chosen.pop_back();
      }
      return;
    }
    Set set{.begin = count_};
    size_t size = 1;
    for (size_t i = chosen.size(); i-- > 0;) {
      set.factors[i] = chosen[i];
      set.strides[i] = size;
      size *= factors[chosen[i]].values.size();
    }
    sets_.push_back(set);
    count_ += size;
  }

  std::vector<Set> sets_;
  size_t count_ = 0;
};

// A row's gain only decreases while rows are chosen, so that a known gain is a bound: a row whose
// recomputed gain is still the highest of the known ones is one of the best (Minoux 1978). Of these
// the one with the largest random number is taken.
class Greedy {
 public:
  // missing: for each tuple, 1 if one of the possible rows has it.
  Greedy(const CompactRows& possible, const Tuples& tuples, std::vector<char> missing,
         uint64_t seed)
      : possible_(possible),
        tuples_(tuples),
        missing_(std::move(missing)),
        left_(std::ranges::count(missing_, 1)),
        highest_(tuples.of_row()),
        by_gain_(highest_ + 1) {
    const RandomStream random(seed, "order of rows");
    for (size_t i = 0; i < possible.size(); ++i) by_gain_.back().emplace_back(random.bits(i), i);
    std::ranges::sort(by_gain_.back());
  }

  int64_t left() const { return left_; }

  // Returns the next row's index among the possible ones.
  size_t take() {
    for (;;) {
      std::vector<Candidate>& best = by_gain_[highest_];
      if (best.empty()) {
        MG_ASSERT(highest_ > 0);
        std::ranges::sort(by_gain_[--highest_]);
        continue;
      }
      const Candidate candidate = best.back();
      best.pop_back();
      size_t gain = 0;
      tuples_.each(possible_[candidate.second], [&](size_t tuple) { gain += missing_[tuple]; });
      if (gain < highest_) {
        by_gain_[gain].push_back(candidate);
        continue;
      }
      tuples_.each(possible_[candidate.second], [this](size_t tuple) {
        left_ -= missing_[tuple];
        missing_[tuple] = 0;
      });
      return candidate.second;
    }
  }

 private:
  using Candidate = std::pair<uint64_t, size_t>;  // random number, index of the row

  const CompactRows& possible_;
  const Tuples& tuples_;
  std::vector<char> missing_;
  int64_t left_;
  size_t highest_;  // known gain; its candidates are sorted
  std::vector<std::vector<Candidate>> by_gain_;
};

// Removes rows whose tuples are all covered by other rows, beginning with the last rows.
void drop_needless(std::vector<Row>& rows, const Tuples& tuples) {
  std::vector<int> times(tuples.count());
  for (const Row& row : rows) tuples.each(row, [&](size_t tuple) { ++times[tuple]; });
  for (size_t i = rows.size(); i-- > 0;) {
    bool needed = false;
    tuples.each(rows[i], [&](size_t tuple) { needed |= times[tuple] == 1; });
    if (needed) continue;
    tuples.each(rows[i], [&](size_t tuple) { --times[tuple]; });
    rows.erase(rows.begin() + static_cast<int64_t>(i));
  }
}

// Returns the objection to the pair alone, or to the pair with whatever value of one more factor,
// or else the most frequent objection to rows with it.
std::string reason_of(const std::vector<Factor>& factors, const Refusal& refusal, const Row& pair) {
  if (std::string reason = refusal(pair); !reason.empty()) return reason;
  for (size_t f = 0; f < factors.size(); ++f) {
    if (pair[f] != kOpen) continue;
    Row row = pair;
    std::string reason;
    for (size_t v = factors[f].values.size(); v-- > 0;) {
      row[f] = static_cast<int>(v);
      reason = refusal(row);
      if (reason.empty()) break;
    }
    if (!reason.empty()) return reason;  // of its first value
  }
  std::map<std::string, int64_t> count;
  Row row = pair;
  Possible(factors, refusal).count_reasons(row, count);
  const auto most = std::max_element(
      count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most->first;
}

// For each tuple, 1 if one of the rows has it.
std::vector<char> seen_tuples(const CompactRows& rows, const Tuples& tuples) {
  std::vector<char> seen(tuples.count());
  for (size_t i = 0; i < rows.size(); ++i)
    tuples.each(rows[i], [&](size_t tuple) { seen[tuple] = 1; });
  return seen;
}

// seen: of pairs.
std::vector<ExcludedPair> excluded_pairs(const std::vector<Factor>& factors, const Refusal& refusal,
                                         const std::vector<char>& seen) {
  std::vector<ExcludedPair> excluded;
  size_t number = 0;  // index in the order of Tuples
  for (size_t a = 0; a < factors.size(); ++a) {
    for (size_t b = a + 1; b < factors.size(); ++b) {
      for (size_t i = 0; i < factors[a].values.size(); ++i) {
        for (size_t j = 0; j < factors[b].values.size(); ++j) {
          if (seen[number++]) continue;
          Row pair(factors.size(), kOpen);
          pair[a] = static_cast<int>(i);
          pair[b] = static_cast<int>(j);
          excluded.push_back({static_cast<int>(a), pair[a], static_cast<int>(b), pair[b],
                              reason_of(factors, refusal, pair)});
        }
      }
    }
  }
  return excluded;
}

}  // namespace

Covering cover(const std::vector<Factor>& factors, const Refusal& refusal, int strength,
               uint64_t seed) {
  MG_ASSERT(strength >= 1 && strength <= 3 && static_cast<int>(factors.size()) >= strength);
  for (const Factor& factor : factors) MG_ASSERT(!factor.values.empty());
  const CompactRows possible = Possible(factors, refusal).take();
  const Tuples tuples(factors, strength), pairs(factors, 2);
  const std::vector<char> seen_pairs = seen_tuples(possible, pairs);

  Covering covering;
  covering.possible = static_cast<int64_t>(possible.size());
  covering.excluded = excluded_pairs(factors, refusal, seen_pairs);
  Greedy greedy(possible, tuples, strength == 2 ? seen_pairs : seen_tuples(possible, tuples), seed);
  covering.tuples = greedy.left();
  while (greedy.left() > 0) covering.rows.push_back(possible.row(greedy.take()));
  drop_needless(covering.rows, tuples);
  return covering;
}

std::string describe(const std::vector<Factor>& factors, const Row& row) {
  std::string text;
  for (size_t f = 0; f < factors.size(); ++f) {
    if (row[f] == kOpen) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", factors[f].name,
                        factors[f].values[static_cast<size_t>(row[f])]);
  }
  return text;
}

std::string describe(const std::vector<Factor>& factors, const ExcludedPair& pair) {
  const Factor &first = factors[static_cast<size_t>(pair.first)],
               &second = factors[static_cast<size_t>(pair.second)];
  return fmt::format("{} {} with {} {}: {}", first.name,
                     first.values[static_cast<size_t>(pair.first_value)], second.name,
                     second.values[static_cast<size_t>(pair.second_value)], pair.reason);
}

}  // namespace megatron::selftest
