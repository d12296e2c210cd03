// A series of rows of numbers of any length, reduced to a bounded number of rows for the curves of
// a long run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace megatron::report {

// An unknown value.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Rows are added in order. Up to `limit` rows are all kept. Beyond that, neighbours are merged into
// buckets of 2, 4, 8 ... rows; each bucket keeps the rows where one of the watched columns is
// lowest or highest, and the first row where one of them is not a finite number. The first and the
// last row of all are always kept. So every peak and every dip is present, at its position. Memory:
// O(limit).
class Curve {
 public:
  Curve(size_t columns, std::vector<size_t> watched, size_t limit);

  void add(std::span<const double> row);  // NaN: missing; throws if the number of columns changes

  int64_t seen() const { return seen_; }           // rows added so far
  bool thinned() const { return width_ > 1; }      // whether rows were dropped
  std::vector<double> column(size_t index) const;  // of the rows kept, in order
  std::vector<double> means(size_t index) const;   // of each bucket; NaN if it has no number
  double last(size_t index) const;                 // of the last row; NaN if there is none
  double last_finite(size_t index) const;          // last number that is not NaN, or NaN

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
