#include "selftest/covering.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
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

// A set of values of all factors.
class ValueSet {
 public:
  static constexpr size_t kMost = 128;

  void add(size_t value) { words_[value / 64] |= uint64_t{1} << value % 64; }
  bool contains(size_t value) const { return (words_[value / 64] >> value % 64 & 1) != 0; }
  void add(const ValueSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  void remove(const ValueSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
  }
  int count() const {
    int sum = 0;
    for (const uint64_t word : words_) sum += std::popcount(word);
    return sum;
  }
  // Adds up bits in parallel, because without a flag for it compilers call a function for
  // std::popcount, which takes half of the time.
  int common(const ValueSet& other) const {
    uint64_t of_four = 0;  // bits that are set in every four
    for (size_t i = 0; i < words_.size(); ++i) {
      const uint64_t bits = words_[i] & other.words_[i];
      const uint64_t of_two = bits - (bits >> 1 & 0x5555555555555555);
      of_four += (of_two & 0x3333333333333333) + (of_two >> 2 & 0x3333333333333333);
    }
    const uint64_t of_eight = (of_four & 0x0f0f0f0f0f0f0f0f) + (of_four >> 4 & 0x0f0f0f0f0f0f0f0f);
    return static_cast<int>(of_eight * 0x0101010101010101 >> 56);
  }

 private:
  std::array<uint64_t, kMost / 64> words_{};
};

// A row as the numbers of its values, counted over all factors, and for each factor the set of the
// row's values of the factors before it. Beginnings that rows share are converted once.
class Numbered {
 public:
  explicit Numbered(const std::vector<Factor>& factors)
      : values_(factors.size()), before_(factors.size() + 1) {
    for (const Factor& factor : factors) {
      first_.push_back(count_);
      count_ += factor.values.size();
    }
    MG_ASSERT(count_ <= ValueSet::kMost);
  }

  size_t factors() const { return values_.size(); }
  size_t values() const { return count_; }  // of all factors
  size_t number(size_t factor, int value) const {
    return first_[factor] + static_cast<size_t>(value);
  }

  // from: the factors before this one have the same values as in the row that was set last.
  template <class Values>
  void set(const Values& row, size_t from) {
    for (size_t f = from; f < factors(); ++f) {
      values_[f] = number(f, row[f]);
      before_[f + 1] = before_[f];
      before_[f + 1].add(values_[f]);
    }
  }
  size_t value(size_t factor) const { return values_[factor]; }
  const ValueSet& before(size_t factor) const { return before_[factor]; }

 private:
  std::vector<size_t> first_, values_;
  std::vector<ValueSet> before_;
  size_t count_ = 0;
};

// A set of tuples of values of different factors. For each choice of all but the first value it has
// a set of first values, so that many tuples of a row are counted at once.
class TupleSet {
 public:
  TupleSet(const Numbered& numbered, int strength)
      : strength_(strength), values_(numbered.values()), firsts_(1) {
    for (int i = 1; i < strength; ++i) firsts_.resize(firsts_.size() * values_);
  }

  int64_t count() const {
    int64_t sum = 0;
    for (const ValueSet& set : firsts_) sum += set.count();
    return sum;
  }
  bool contains(size_t first, size_t second) const { return firsts_[second].contains(first); }

  // Number of tuples in the set that the row contains and whose last value is that of `factor`.
  int common(const Numbered& row, size_t factor) const {
    int sum = 0;
    each(*this, row, factor,
         [&](const ValueSet& set, const ValueSet& of_row) { sum += set.common(of_row); });
    return sum;
  }
  void add(const Numbered& row, size_t factor) {
    each(*this, row, factor, [](ValueSet& set, const ValueSet& of_row) { set.add(of_row); });
  }
  void remove(const Numbered& row, size_t factor) {
    each(*this, row, factor, [](ValueSet& set, const ValueSet& of_row) { set.remove(of_row); });
  }

 private:
  // For the tuples of a row that end with the value of `factor`: calls f for each choice of all but
  // the first value, with its set of first values and the row's possible first values.
  template <class Self, class F>
  static void each(Self& self, const Numbered& row, size_t factor, F&& f) {
    const size_t last = row.value(factor);
    if (self.strength_ == 1) {
      ValueSet alone;
      alone.add(last);
      f(self.firsts_[0], alone);
    } else if (self.strength_ == 2) {
      f(self.firsts_[last], row.before(factor));
    } else {
      for (size_t middle = 1; middle < factor; ++middle)
        f(self.firsts_[last * self.values_ + row.value(middle)], row.before(middle));
    }
  }

  int strength_;
  size_t values_;
  std::vector<ValueSet> firsts_;  // by last value, and by middle value
};

// Rows in the order of their values, with the number of values that each begins with as the one
// before does.
class SharedBeginnings {
 public:
  explicit SharedBeginnings(const CompactRows& rows) : shared_(rows.size()) {
    for (size_t i = 1; i < rows.size(); ++i) {
      const auto begun = std::ranges::mismatch(rows[i - 1], rows[i]).in1;
      shared_[i] = static_cast<uint8_t>(begun - rows[i - 1].begin());
    }
  }
  size_t operator[](size_t i) const { return shared_[i]; }

 private:
  std::vector<uint8_t> shared_;
};

// The tuples that some row has.
TupleSet tuples_of(const CompactRows& rows, const SharedBeginnings& shared, Numbered numbered,
                   int strength) {
  TupleSet tuples(numbered, strength);
  for (size_t i = 0; i < rows.size(); ++i) {
    numbered.set(rows[i], shared[i]);
    for (size_t f = shared[i]; f < numbered.factors(); ++f) tuples.add(numbered, f);
  }
  return tuples;
}

// A row's gain only decreases while rows are chosen, so that a known gain is a bound: only rows
// whose bound is not below the best gain found so far are counted again (Minoux 1978). Of the best
// rows the one with the largest random number is taken.
class Greedy {
 public:
  Greedy(const CompactRows& possible, const SharedBeginnings& shared, const Numbered& numbered,
         TupleSet missing, uint64_t seed)
      : possible_(possible),
        shared_(shared),
        row_(numbered),
        missing_(std::move(missing)),
        left_(missing_.count()),
        bounds_(possible.size(), std::numeric_limits<uint16_t>::max()),
        gains_(numbered.factors() + 1) {
    const RandomStream random(seed, "order of rows");
    order_.reserve(possible.size());
    for (size_t i = 0; i < possible.size(); ++i) order_.push_back(random.bits(i));
  }

  int64_t left() const { return left_; }

  // Returns the next row's index among the possible ones.
  size_t take() {
    size_t best = 0, known = 0;  // known: number of values that row_ and gains_ have of row i
    int most = 0;
    for (size_t i = 0; i < possible_.size(); ++i) {
      known = std::min(known, shared_[i]);
      if (bounds_[i] < most) continue;
      const int gain = count(i, known);
      known = row_.factors();
      bounds_[i] = static_cast<uint16_t>(gain);
      if (gain < most || (gain == most && order_[i] < order_[best])) continue;
      best = i;
      most = gain;
    }
    MG_ASSERT(most > 0);
    row_.set(possible_[best], 0);
    for (size_t f = 0; f < row_.factors(); ++f) missing_.remove(row_, f);
    left_ -= most;
    return best;
  }

 private:
  int count(size_t i, size_t known) {
    row_.set(possible_[i], known);
    for (size_t f = known; f < row_.factors(); ++f)
      gains_[f + 1] = gains_[f] + missing_.common(row_, f);
    return gains_.back();
  }

  const CompactRows& possible_;
  const SharedBeginnings& shared_;
  Numbered row_;
  TupleSet missing_;
  int64_t left_;
  std::vector<uint16_t> bounds_;  // of each row's gain
  std::vector<int> gains_;        // of the beginnings of row_
  std::vector<uint64_t> order_;   // random
};

// Removes rows whose tuples are all covered by other rows, beginning with the last rows.
void drop_needless(std::vector<Row>& rows, Numbered numbered, int strength) {
  for (size_t i = rows.size(); i-- > 0;) {
    TupleSet others(numbered, strength);
    const auto add = [&](const Row& row) {
      numbered.set(row, 0);
      for (size_t f = 0; f < numbered.factors(); ++f) others.add(numbered, f);
    };
    for (size_t j = 0; j < rows.size(); ++j)
      if (j != i) add(rows[j]);
    const int64_t covered = others.count();
    add(rows[i]);
    if (others.count() == covered) rows.erase(rows.begin() + static_cast<int64_t>(i));
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

// seen: of pairs.
std::vector<ExcludedPair> excluded_pairs(const std::vector<Factor>& factors, const Refusal& refusal,
                                         const Numbered& numbered, const TupleSet& seen) {
  std::vector<ExcludedPair> excluded;
  for (size_t a = 0; a < factors.size(); ++a) {
    for (size_t b = a + 1; b < factors.size(); ++b) {
      for (size_t i = 0; i < factors[a].values.size(); ++i) {
        for (size_t j = 0; j < factors[b].values.size(); ++j) {
          Row pair(factors.size(), kOpen);
          pair[a] = static_cast<int>(i);
          pair[b] = static_cast<int>(j);
          if (seen.contains(numbered.number(a, pair[a]), numbered.number(b, pair[b]))) continue;
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
  const Numbered numbered(factors);
  const SharedBeginnings shared(possible);

  Covering covering;
  covering.possible = static_cast<int64_t>(possible.size());
  covering.excluded =
      excluded_pairs(factors, refusal, numbered, tuples_of(possible, shared, numbered, 2));
  Greedy greedy(possible, shared, numbered, tuples_of(possible, shared, numbered, strength), seed);
  covering.tuples = greedy.left();
  while (greedy.left() > 0) covering.rows.push_back(possible.row(greedy.take()));
  drop_needless(covering.rows, numbered, strength);
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
