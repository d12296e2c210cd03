// Figures of a step besides its loss, by name: auxiliary losses and counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace megatron {

class Runtime;
class Tape;

struct MetricDefinition {
  // Of everything that is reported in a step, by all ranks, layers and micro-batches: mean is
  // sum(weights * values) / sum(weights), count sum(values).
  enum class Kind { mean, count };
  std::string name;  // as the log has it: "z_loss"
  Kind kind = Kind::mean;
};

struct MetricReport {
  Tensor values;   // f32 or f64 [n]
  Tensor weights;  // of a mean: f32 or f64 [n]; those of the batch give the mean of its tokens
  // Whether each tensor-parallel rank reports other elements (those of its tokens, experts). Else
  // all of them report the same ones, which count once.
  bool divided = false;
};

struct MetricValue {
  std::string name;
  double value = 0;  // NaN: a mean of which nothing was reported
};

// Collects what a rank's tapes report in a step.
class Metrics {
 public:
  // first_copy: whether reports that are not divided count on this rank, as on one of those that
  // make the same. Takes memory of the runtime where there are definitions.
  Metrics(std::vector<MetricDefinition> definitions, Runtime& runtime, bool first_copy);

  bool empty() const { return definitions_.empty(); }
  void begin_step(Runtime& runtime);
  void add(std::string_view name, const MetricReport& report, const Tape& tape);

  // f64 [n, 2]: of each definition the sum of values and that of weights, to be added over ranks.
  const Tensor& sums() const { return sums_; }
  std::vector<MetricValue> values() const;  // of these sums; their device's work is done

 private:
  std::vector<MetricDefinition> definitions_;
  bool first_copy_;
  Tensor sums_;
};

}  // namespace megatron
