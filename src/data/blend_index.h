// In which order the samples of a blend come from its data sets: index for index that of
// Megatron-LM.
//
// Sample i comes from the data set d with the greatest w_d max(i, 1) - count_d (in doubles; of
// equals the first), where count_d samples of it came before; it is that set's sample count_d.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron::data {

struct BlendIndex {
  std::vector<int16_t> set;     // of each sample
  std::vector<int64_t> sample;  // and its number there
  std::vector<int64_t> counts;  // samples of each set
};

// Divided by their sum, which is added up in the order in which NumPy adds.
std::vector<double> normalized(std::span<const double> weights);

// ceil(ceil(size * weight) * (1 + surplus)): samples of a set with that normalised weight.
int64_t share_of_blend(int64_t size, double weight, double surplus);

// `size` samples by normalised weights. Throws Error when they would not fit the memory.
BlendIndex blend_by_weight(std::span<const double> weights, int64_t size);
// Each sample of sets of these sizes once, by the same rule among the sets that are not used up;
// weights are sizes / their sum.
BlendIndex blend_everything(std::span<const int64_t> sizes);

}  // namespace megatron::data
