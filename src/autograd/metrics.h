// Metrics of a step besides its loss, by name: auxiliary losses and counts, for all layers together
// and for each.
#pragma once

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace megatron {

class Stream;
class Tape;

// A figure in the log computed from a layer's tally.
struct TallyFigure {
  std::string name;
  // NaN: nothing was counted.
  std::function<double(int64_t layer, std::span<const double> tally)> of;
};

struct MetricDefinition {
  // How values reported in a step are combined over ranks, layers and micro-batches: mean is
  // sum(weights * values) / sum(weights), count is sum(values). tally: `width` numbers per layer
  // that modules write themselves (Tape::tally) and that are summed over ranks; the log shows its
  // figures instead of its name.
  enum class Kind { mean, count, tally };
  std::string name;  // the log's key: "z_loss"
  Kind kind = Kind::mean;
  std::vector<int64_t> layers = {};  // layers that report it, ascending; empty: not per layer
  // True if the log highlights the layer with the smallest value instead of the largest.
  bool least_stands_out = false;
  int64_t width = 0;
  std::vector<TallyFigure> figures = {};
  // Only for a tally: throws Error if a layer's numbers make the step fail, before the step changes
  // anything.
  std::function<void(int64_t layer, std::span<const double> tally)> check = nullptr;
};

struct MetricReport {
  Tensor values;  // f32 or f64 [n]
  // Weights of a mean: f32 or f64 [n]; those of a batch give the mean over its tokens.
  Tensor weights;
  // True if each tensor-parallel rank reports other elements (those of its tokens or experts);
  // false if all report the same ones, which then count once.
  bool divided = false;
  int64_t layer = -1;  // one of the definition's layers, if it has any
};

struct MetricValue {
  struct Layer {
    int64_t layer = 0;
    double value = 0;
  };
  std::string name;
  // Value over all layers; for a tally, the mean over the layers that have a value. NaN: nothing
  // was reported.
  double value = 0;
  std::vector<Layer> layers = {};
  bool least_stands_out = false;

  // Layer with the largest (or smallest) value, the first of equal ones; null if fewer than two
  // layers have values, or if none has a number.
  const Layer* outstanding() const {
    const Layer* found = nullptr;
    for (const Layer& layer : layers) {
      if (std::isnan(layer.value)) continue;
      const bool more = found == nullptr || (least_stands_out ? layer.value < found->value
                                                              : layer.value > found->value);
      if (more) found = &layer;
    }
    return layers.size() < 2 ? nullptr : found;
  }
};

// Collects the metrics that a rank's tapes report in a step.
class Metrics {
 public:
  // first_copy: true if undivided reports count on this rank; exactly one of the ranks that make
  // the same report sets it.
  Metrics(std::vector<MetricDefinition> definitions, bool first_copy);

  bool empty() const { return definitions_.empty(); }
  // Number of f64 values that the metrics need, and the memory for them: f64 [size()].
  int64_t size() const { return size_; }
  void use(const Tensor& sums);
  void begin_step(Stream& stream);
  void add(std::string_view name, const MetricReport& report, const Tape& tape);
  // f64 [width] of a tally, zero at the beginning of a step.
  Tensor tally(std::string_view name, int64_t layer) const;

  // f64: for each layer of a definition the sum of values and the sum of weights, or its tally; to
  // be summed over ranks.
  const Tensor& sums() const { return sums_; }
  // Converts sums, already copied to the host, to values. Throws what a definition's check throws.
  std::vector<MetricValue> values(std::span<const double> sums) const;

 private:
  struct Place {
    const MetricDefinition& definition;
    int64_t begin;  // index in sums_
  };
  Place place_of(std::string_view name, int64_t layer) const;

  std::vector<MetricDefinition> definitions_;
  std::vector<int64_t> begins_;  // index in sums_ of each definition
  int64_t size_ = 0;
  bool first_copy_;
  Tensor sums_;
};

}  // namespace megatron
