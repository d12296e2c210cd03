// Order in which a blend takes samples from its data sets: the same indices as Megatron-LM's.
//
// Sample i comes from the data set d with the greatest w_d max(i, 1) - count_d (in doubles; the
// first of equal ones), where count_d is the number of earlier samples from d; it is sample count_d
// of that set.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron::data {

struct BlendIndex {
  std::vector<int16_t> set;     // data set of each sample
  std::vector<int64_t> sample;  // index of each sample in its set
  std::vector<int64_t> counts;  // samples of each set
};

// Weights divided by their sum, which is computed in NumPy's order of additions.
std::vector<double> normalized(std::span<const double> weights);

// ceil(ceil(size * weight) * (1 + surplus)): number of samples of a set with that normalised
// weight.
int64_t share_of_blend(int64_t size, double weight, double surplus);

// `size` samples by normalised weights. Throws Error if they would not fit in memory.
BlendIndex blend_by_weight(std::span<const double> weights, int64_t size);
// Each sample of sets of these sizes once, by the same rule among the sets that are not exhausted;
// weights are sizes / their sum.
BlendIndex blend_everything(std::span<const int64_t> sizes);

}  // namespace megatron::data
