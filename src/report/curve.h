// A series of rows of numbers, of any length, kept within a bound: what is drawn of a long run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace megatron::report {

// A value that is not known.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Rows come in order and are kept whole. As long as there are at most `limit` of them, all are
// kept. Then neighbours are taken together in buckets of 2, 4, 8 ... rows, and of each bucket stay
// the rows where one of the watched columns is lowest or highest, and the first where one of them
// is not a finite number; the first and the last row of all stay always. So every peak and every
// dip is there, at its place. Memory: O(limit).
class Curve {
 public:
  Curve(size_t columns, std::vector<size_t> watched, size_t limit);

  void add(
      std::span<const double> row);  // NaN: no such number; throws on another number of columns

  int64_t seen() const { return seen_; }           // rows added
  bool thinned() const { return width_ > 1; }      // some are left out
  std::vector<double> column(size_t index) const;  // of the rows that are kept, in order
  std::vector<double> means(size_t index) const;   // of each bucket; NaN where it has no number
  double last(size_t index) const;                 // of the last row; NaN: there is no row
  double last_finite(size_t index) const;          // the last number there is, or NaN

 private:
  struct Row {
    int64_t number;
    std::vector<double> values;
  };
  struct Bucket {
    int64_t rows = 0;
    std::vector<Row> kept;
    std::vector<double> sums, counts;
  };

  void take(Bucket& bucket, Row row) const;
  void thin(Bucket& bucket) const;
  void merge_neighbours();
  std::vector<const Row*> rows() const;

  size_t columns_;
  std::vector<size_t> watched_;
  size_t limit_, kept_ = 0;
  int64_t width_ = 1, seen_ = 0;
  std::vector<Bucket> buckets_;
  Row first_{-1, {}}, last_{-1, {}};
  std::vector<double> last_finite_;
};

}  // namespace megatron::report
