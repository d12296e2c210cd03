// Examples by number: one data set of sentences, or a blend of several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/blend_index.h"
#include "data/blend_list.h"

namespace megatron::data {

// Const members are thread-safe.
template <class Example>
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;
  virtual int64_t size() const = 0;  // at least the number of requested samples
  // Example k, which depends on nothing but the data, the configuration and k. Throws Error outside
  // [0, size()).
  virtual void read(int64_t k, Example& example) const = 0;
  // True if the examples come in the same order as if `samples` had been requested.
  virtual bool keeps_order(int64_t /*samples*/) const { return true; }
  // True if size() follows from the number of requested samples.
  virtual bool sized_by_request() const { return false; }
};

// A blend by weight, in Megatron-LM's order.
template <class Set, class Example>
class ExampleBlend final : public ExampleSource<Example> {
 public:
  // Each part needs share_of_blend(samples, weight, surplus) samples at least, and is made by that
  // request, or extends it; weights sum to 1. Throws Error naming the part that has too few.
  ExampleBlend(std::vector<std::shared_ptr<const Set>> parts, std::vector<std::string> names,
               std::span<const double> weights, int64_t samples, double surplus)
      : parts_(std::move(parts)),
        weights_(weights.begin(), weights.end()),
        surplus_(surplus),
        index_(blend_by_weight(weights, total(weights, samples))) {
    MG_ASSERT(parts_.size() == weights.size() && names.size() == parts_.size());
    for (size_t d = 0; d < parts_.size(); ++d)
      MG_CHECK(index_.counts[d] <= parts_[d]->size(),
               "the blend takes {} samples of {}, which has only {}: raise "
               "--mid-level-dataset-surplus",
               index_.counts[d], names[d], parts_[d]->size());
  }

  int64_t size() const override { return static_cast<int64_t>(index_.set.size()); }
  void read(int64_t k, Example& example) const override {
    MG_CHECK(k >= 0 && k < size(), "sample {} does not exist; the blend has {} samples", k, size());
    const auto i = static_cast<size_t>(k);
    parts_[static_cast<size_t>(index_.set[i])]->read(index_.sample[i], example);
  }

  bool sized_by_request() const override { return true; }
  bool keeps_order(int64_t samples) const override {
    for (size_t d = 0; d < parts_.size(); ++d)
      if (!parts_[d]->keeps_order(share_of_blend(samples, weights_[d], surplus_))) return false;
    return true;
  }

  const std::vector<std::shared_ptr<const Set>>& parts() const { return parts_; }
  const BlendIndex& index() const { return index_; }

 private:
  static int64_t total(std::span<const double> weights, int64_t samples) {
    int64_t size = 0;
    for (const double weight : weights) size += share_of_blend(samples, weight, 0);
    return size;
  }

  std::vector<std::shared_ptr<const Set>> parts_;
  std::vector<double> weights_;
  double surplus_;
  BlendIndex index_;
};

// Builds the data set of a list with one prefix and no weights, or the blend of a weighted list.
// open(prefix, samples, extended) opens a part with at least `samples` samples that serves
// `extended` if that is more. surplus: extra samples that are built for each part, relative to its
// share. Throws Error for several prefixes without weights: each needs a number of samples.
template <class Example, class Open>
std::shared_ptr<const ExampleSource<Example>> build_examples(const BlendList& list,
                                                             std::optional<int64_t> samples,
                                                             int64_t extended, double surplus,
                                                             const Open& open) {
  using Part = decltype(open(list.prefixes[0], samples, extended));
  if (list.prefixes.size() == 1 && !list.weighted())
    return open(list.prefixes[0], samples, extended);
  MG_CHECK(list.weighted() && samples,
           "{} data sets of sentences are given without {}: each needs a number of samples; give "
           "pairs of weight and prefix, and drop --full-validation",
           list.prefixes.size(), list.weighted() ? "a number of samples" : "weights");
  const std::vector<double> weights = normalized(list.weights);
  std::vector<Part> parts;
  for (size_t d = 0; d < list.prefixes.size(); ++d) {
    MG_CHECK(weights[d] > 0, "the weight {} of {} is too small compared with the others",
             list.weights[d], list.prefixes[d]);
    const auto share = [&](int64_t of) { return share_of_blend(of, weights[d], surplus); };
    parts.push_back(open(list.prefixes[d], share(*samples), extended > 0 ? share(extended) : 0));
  }
  using Set = std::remove_const_t<typename Part::element_type>;
  return std::make_shared<const ExampleBlend<Set, Example>>(
      std::move(parts), list.prefixes, weights, std::max(*samples, extended), surplus);
}

}  // namespace megatron::data
