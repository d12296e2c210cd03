#include "report/curve.h"

#include <cmath>

#include "base/error.h"

namespace megatron::report {
namespace {}  // namespace

Curve::Curve(size_t columns, std::vector<size_t> watched, size_t limit)
    : columns_(columns), watched_(std::move(watched)), limit_(limit), last_finite_(columns, kNone) {
  for (const size_t c : watched_) MG_ASSERT(c < columns);
  MG_ASSERT(limit_ > 0);
}

void Curve::add(std::span<const double> row) {
  MG_ASSERT(row.size() == columns_);
  Row added{seen_++, {row.begin(), row.end()}};
  if (first_.number < 0) first_ = added;
  last_ = added;
  for (size_t c = 0; c < columns_; ++c)
    if (std::isfinite(row[c])) last_finite_[c] = row[c];
  if (buckets_.empty() || buckets_.back().rows == width_) {
    buckets_.emplace_back();
    buckets_.back().sums.assign(columns_, 0);
    buckets_.back().counts.assign(columns_, 0);
  }
  Bucket& bucket = buckets_.back();
  const size_t before = bucket.kept.size();
  take(bucket, std::move(added));
  kept_ += bucket.kept.size() - before;
  while (kept_ > limit_ && buckets_.size() > 1) merge_neighbours();
}

void Curve::take(Bucket& bucket, Row row) const {
  ++bucket.rows;
  for (size_t c = 0; c < columns_; ++c) {
    if (!std::isfinite(row.values[c])) continue;
    bucket.sums[c] += row.values[c];
    bucket.counts[c] += 1;
  }
  bucket.kept.push_back(std::move(row));
  if (bucket.rows > 1) thin(bucket);
}

void Curve::thin(Bucket& bucket) const {
  std::vector<Row>& rows = bucket.kept;
  std::vector<char> stays(rows.size(), 0);
  for (const size_t c : watched_) {
    size_t lowest = rows.size(), highest = rows.size(), missing = rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      const double value = rows[i].values[c];
      if (!std::isfinite(value)) {
        if (missing == rows.size()) missing = i;
        continue;
      }
      if (lowest == rows.size() || value < rows[lowest].values[c]) lowest = i;
      if (highest == rows.size() || value > rows[highest].values[c]) highest = i;
    }
    for (const size_t i : {lowest, highest, missing})
      if (i < rows.size()) stays[i] = 1;
  }
  size_t end = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (stays[i] == 0) continue;
    if (end != i) rows[end] = std::move(rows[i]);
    ++end;
  }
  rows.resize(end);
}

void Curve::merge_neighbours() {
  width_ *= 2;
  size_t end = 0;
  for (size_t i = 0; i < buckets_.size(); i += 2) {
    Bucket merged = std::move(buckets_[i]);
    if (i + 1 < buckets_.size()) {
      Bucket& next = buckets_[i + 1];
      merged.rows += next.rows;
      for (size_t c = 0; c < columns_; ++c) {
        merged.sums[c] += next.sums[c];
        merged.counts[c] += next.counts[c];
      }
      std::move(next.kept.begin(), next.kept.end(), std::back_inserter(merged.kept));
      thin(merged);
    }
    buckets_[end++] = std::move(merged);
  }
  buckets_.resize(end);
  kept_ = 0;
  for (const Bucket& bucket : buckets_) kept_ += bucket.kept.size();
}

std::vector<const Curve::Row*> Curve::rows() const {
  std::vector<const Row*> all;
  all.reserve(kept_ + 2);
  for (const Bucket& bucket : buckets_)
    for (const Row& row : bucket.kept) all.push_back(&row);
  if (seen_ == 0) return all;
  if (all.empty() || all.front()->number != first_.number) all.insert(all.begin(), &first_);
  if (all.back()->number != last_.number) all.push_back(&last_);
  return all;
}

std::vector<double> Curve::column(size_t index) const {
  MG_ASSERT(index < columns_);
  std::vector<double> values;
  for (const Row* row : rows()) values.push_back(row->values[index]);
  return values;
}

std::vector<double> Curve::means(size_t index) const {
  MG_ASSERT(index < columns_);
  std::vector<double> values;
  for (const Bucket& bucket : buckets_) {
    const double count = bucket.counts[index];
    values.push_back(count > 0 ? bucket.sums[index] / count : kNone);
  }
  return values;
}

double Curve::last(size_t index) const { return seen_ > 0 ? last_.values[index] : kNone; }

double Curve::last_finite(size_t index) const { return last_finite_[index]; }

}  // namespace megatron::report
