// Test harness for tensor-parallel ops: one body runs on one rank and on several, each with its
// slices, and the combined slices must equal the results of the single rank.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "base/philox.h"
#include "comm/async.h"
#include "dist/ranks.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

struct Setting {
  int ranks = 1;
  bool sequence = false;  // tokens are divided
  bool async = false;     // with a second group
  DeviceKind device = DeviceKind::reference;
  bool in_parts = true;  // backward computes its weight part separately
  bool bf16 = false;     // if false: fp64 on the reference device, fp32 on the cpu

  DType type() const {
    return bf16 ? DType::bf16 : device == DeviceKind::reference ? DType::f64 : DType::f32;
  }
  // Tolerance between sums that are rounded once and sums of per-rank rounded values.
  double tolerance() const {
    return bf16 ? 0x1p-6 : device == DeviceKind::reference ? 1e-12 : 5e-6;
  }
};
inline std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << name(s.device) << " ranks " << s.ranks << (s.sequence ? " tokens divided" : "")
             << (s.async ? " async" : "") << (s.in_parts ? " in two parts" : "")
             << (s.bf16 ? " bf16" : "");
}

inline std::vector<Setting> settings(std::vector<int> ranks = {2, 3, 4}) {
  std::vector<Setting> list;
  for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
    for (const int n : ranks) {
      for (const bool sequence : {false, true}) {
        for (const bool async : {false, true}) list.push_back({n, sequence, async, device, !async});
      }
    }
  }
  for (const bool sequence : {false, true})
    list.push_back(
        {.ranks = ranks.back(), .sequence = sequence, .device = DeviceKind::cpu, .bf16 = true});
  return list;
}

// How the ranks' results combine into the whole.
enum class How { same, rows, columns, sum };

struct Result {
  How how;
  Shape shape;
  std::vector<double> values;
};
using Results = std::map<std::string, Result>;

// Interface for a body: its slices of tensors whose elements depend only on their name and
// position.
class Bench {
 public:
  Bench(Runtime& runtime, const TensorParallel& tp, bool in_parts, DType of_type = DType::f64)
      : runtime(runtime), tp(tp), type(of_type), in_parts_(in_parts) {}

  Runtime& runtime;
  const TensorParallel& tp;
  DType type;
  Results results;

  DType sums() const { return kernels::accumulator(type); }
  Slice share(int64_t total) const { return share_of(total, tp.size(), tp.rank()); }

  Tensor drawn(const std::string& name, Shape shape) {
    std::vector<double> values;
    for (int64_t i = 0; i < shape.elements(); ++i)
      values.push_back(static_cast<float>(RandomStream(5, name).normal(static_cast<uint64_t>(i))));
    return testing::make(runtime, shape, type, values);
  }
  Tensor rows(const std::string& name, Shape shape, const Slice& slice) {
    return copied(drawn(name, shape).slice(0, slice.global_begin, slice.size));
  }
  Tensor columns(const std::string& name, Shape shape, const Slice& slice) {
    return copied(drawn(name, shape).slice(1, slice.global_begin, slice.size));
  }
  Tensor integers(const std::vector<int32_t>& values) {
    Tensor t = testing::make(runtime, {static_cast<int64_t>(values.size())}, DType::i32);
    copy_from(t, std::span<const int32_t>(values));
    return t;
  }
  // Rows of activations between the matrices.
  Tensor tokens(const std::string& name, Shape shape) {
    return rows(name, shape, tp.tokens(shape[0]));
  }
  How by_tokens() const { return tp.divides_tokens() ? How::rows : How::same; }

  // Gradients are accumulated on a buffer of ones.
  Weight weight(Parameter& p, const Tensor& value) {
    p.value = value;
    p.uses[0].grad = testing::make(runtime, value.shape(), sums());
    copy_from(p.uses[0].grad, std::vector<double>(static_cast<size_t>(value.elements()), 1.0));
    p.uses[0].started = true;
    return Weight(p);
  }

  void backward(Tape& tape) {
    if (!in_parts_) return tape.backward();
    tape.backward(::megatron::BackwardPart::input);
    tape.backward(::megatron::BackwardPart::weight);
  }
  void give(const std::string& name, const Tensor& t, How how) {
    results[name] = {how, t.shape(), to_doubles(t)};
  }
  void give_gradient(const std::string& name, const Parameter& p, How how) {
    EXPECT_EQ(p.uses[0].micro_batches, 1) << name;
    std::vector<double> values = to_doubles(p.uses[0].grad);
    for (double& v : values) v -= 1;
    results[name] = {how, p.value.shape(), values};
  }

 private:
  Tensor copied(const Tensor& t) { return testing::make(runtime, t.shape(), type, to_doubles(t)); }

  bool in_parts_;
};

using Body = std::function<void(Bench&)>;

inline std::vector<Results> results_of(const Setting& s, const Body& body) {
  std::vector<Results> results(static_cast<size_t>(s.ranks));
  testing::each_rank(s.ranks, s.device, [&](comm::Group& world, Runtime& runtime) {
    std::unique_ptr<comm::Group> second;
    if (s.async) second = comm::async(world.split(0, world.rank(), world.size()));
    const TensorParallel tp{&world, second.get(), s.sequence};
    Bench bench(runtime, tp, s.in_parts, s.type());
    body(bench);
    results[static_cast<size_t>(world.rank())] = bench.results;
  });
  return results;
}

inline std::vector<double> put_together(const std::vector<Results>& all, const std::string& name) {
  const Result& first = all[0].at(name);
  std::vector<double> whole;
  switch (first.how) {
    case How::same:
      for (const Results& r : all) EXPECT_EQ(r.at(name).values, first.values) << name;
      return first.values;
    case How::sum:
      whole = first.values;
      for (size_t rank = 1; rank < all.size(); ++rank) {
        for (size_t i = 0; i < whole.size(); ++i) whole[i] += all[rank].at(name).values[i];
      }
      return whole;
    case How::rows:
      for (const Results& r : all) {
        const auto& values = r.at(name).values;
        whole.insert(whole.end(), values.begin(), values.end());
      }
      return whole;
    case How::columns:
      for (int64_t row = 0; row < first.shape[0]; ++row) {
        for (const Results& r : all) {
          const Result& part = r.at(name);
          const auto begin = part.values.begin() + row * part.shape[1];
          whole.insert(whole.end(), begin, begin + part.shape[1]);
        }
      }
      return whole;
  }
  return whole;
}

// Largest difference relative to the largest element.
inline double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0, largest = 1e-3;
  for (size_t i = 0; i < a.size(); ++i) {
    const double distance = std::abs(a[i] - b[i]);
    if (!(distance <= worst)) worst = distance;
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / largest;
}

inline void expect_whole(const Setting& s, const Body& body) {
  const Setting one{.ranks = 1, .device = s.device, .in_parts = s.in_parts, .bf16 = s.bf16};
  const Results whole = results_of(one, body)[0];
  const std::vector<Results> parts = results_of(s, body);
  EXPECT_FALSE(whole.empty());
  for (const auto& [name, result] : whole) {
    EXPECT_LE(difference(put_together(parts, name), result.values), s.tolerance())
        << name << ", " << s;
  }
}

}  // namespace megatron::parallel
