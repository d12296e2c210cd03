// Figures of a step besides its loss, by name: auxiliary losses and counts, of all layers together and of each.
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

// What the log has of a layer's tally.
struct TallyFigure {
  std::string name;
  // NaN: nothing was counted.
  std::function<double(int64_t layer, std::span<const double> tally)> of;
};

struct MetricDefinition {
  // Of everything that is reported in a step, by all ranks, layers and micro-batches: mean is
  // sum(weights * values) / sum(weights), count sum(values). tally: `width` numbers a layer, which modules write
  // themselves (Tape::tally) and which are added up over ranks; the log has its figures, and not its name.
  enum class Kind { mean, count, tally };
  std::string name;  // as the log has it: "z_loss"
  Kind kind = Kind::mean;
  std::vector<int64_t> layers = {};  // those that report it, ascending; empty: it is no layer's
  bool least_stands_out = false;     // of the layers, the one with the least; else with the most
  int64_t width = 0;
  std::vector<TallyFigure> figures = {};
  // Of a tally: throws Error where a layer's lets the step fail, before it changes anything.
  std::function<void(int64_t layer, std::span<const double> tally)> check = nullptr;
};

struct MetricReport {
  Tensor values;   // f32 or f64 [n]
  Tensor weights;  // of a mean: f32 or f64 [n]; those of the batch give the mean of its tokens
  // Whether each tensor-parallel rank reports other elements (those of its tokens, experts). Else
  // all of them report the same ones, which count once.
  bool divided = false;
  int64_t layer = -1;  // of the definition's, where it has some
};

struct MetricValue {
  struct Layer {
    int64_t layer = 0;
    double value = 0;
  };
  std::string name;
  // Of all layers; of a tally, the mean of those that have a number. NaN: nothing was reported.
  double value = 0;
  std::vector<Layer> layers = {};
  bool least_stands_out = false;

  // The layer of the most (the least) value, the first of equal ones; null where there are fewer than two, or none has
  // a number.
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

// Collects what a rank's tapes report in a step.
class Metrics {
 public:
  // first_copy: whether reports that are not divided count on this rank, as on one of those that
  // make the same.
  Metrics(std::vector<MetricDefinition> definitions, bool first_copy);

  bool empty() const { return definitions_.empty(); }
  // Numbers that they need, and memory for them: f64 [size()].
  int64_t size() const { return size_; }
  void use(const Tensor& sums);
  void begin_step(Stream& stream);
  void add(std::string_view name, const MetricReport& report, const Tape& tape);
  // f64 [width] of a tally, zeros when a step begins.
  Tensor tally(std::string_view name, int64_t layer) const;

  // f64: of each layer of a definition the sum of values and that of weights, or its tally; to be added over ranks.
  const Tensor& sums() const { return sums_; }
  // Of these sums, as the host has them. Throws what a definition's check does.
  std::vector<MetricValue> values(std::span<const double> sums) const;

 private:
  struct Place {
    const MetricDefinition& definition;
    int64_t begin;  // in sums_
  };
  Place place_of(std::string_view name, int64_t layer) const;

  std::vector<MetricDefinition> definitions_;
  std::vector<int64_t> begins_;  // in sums_, of each definition
  int64_t size_ = 0;
  bool first_copy_;
  Tensor sums_;
};

}  // namespace megatron
