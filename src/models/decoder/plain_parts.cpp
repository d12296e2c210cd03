#include "models/decoder/plain_parts.h"

#include <cmath>
#include <utility>

namespace megatron::models {
namespace {

// Calls f(indices in the tensor, indices in our parameter).
template <class F>
void for_each_element(const parallel::CanonicalTensor& part, const F& f) {
  std::vector<int64_t> theirs(static_cast<size_t>(part.global.rank())), ours(theirs);
  const auto walk = [&](auto&& self, size_t axis) -> void {
    if (axis == theirs.size()) return f(theirs, ours);
    for (const parallel::Slice& slice : part.slices(static_cast<int>(axis))) {
      for (int64_t i = 0; i < slice.size; ++i) {
        theirs[axis] = slice.global_begin + i;
        ours[axis] = slice.local_begin + i;
        self(self, axis + 1);
      }
    }
  };
  walk(walk, 0);
}

}  // namespace

PlainRow PlainParts::tensor(const std::string& name, const Shape& shape) const {
  PlainRow result(static_cast<size_t>(shape.elements()));
  for (const parallel::CanonicalTensor& part : placement_of(map_, value_, name, shape).tensors) {
    const PlainRow& stored = weights_.at(part.name);
    for_each_element(part, [&](std::span<const int64_t> theirs, std::span<const int64_t> ours) {
      std::vector<int64_t> at(theirs.begin(), theirs.end());
      std::vector<int64_t> dims;
      for (int d = 0; d < part.global.rank(); ++d) dims.push_back(part.global[d]);
      if (part.transposed) {
        std::swap(at.end()[-1], at.end()[-2]);
        std::swap(dims.end()[-1], dims.end()[-2]);
      }
      int64_t from = 0, to = 0;
      for (size_t d = 0; d < at.size(); ++d) {
        from = from * dims[d] + at[d];
        to = to * shape[static_cast<int>(d)] + ours[d];
      }
      result[static_cast<size_t>(to)] = stored[static_cast<size_t>(from)];
    });
  }
  return result;
}

PlainRow PlainParts::normed(const PlainRow& x, const PlainRow& weight, const PlainRow& bias,
                            const nn::NormConfig& norm) {
  double mean = 0, square = 0;
  const auto n = static_cast<double>(x.size());
  if (norm.kind == nn::Normalization::layer_norm)
    for (const double value : x) mean += value / n;
  for (const double value : x) square += (value - mean) * (value - mean) / n;
  PlainRow y;
  for (size_t h = 0; h < x.size(); ++h) {
    const double factor = weight.empty() ? 1 : norm.weight_offset() + weight[h];
    y.push_back((x[h] - mean) / std::sqrt(square + norm.epsilon) * factor +
                (bias.empty() ? 0 : bias[h]));
  }
  return y;
}

PlainRows PlainParts::normed(const PlainRows& x, const std::string& name,
                             const nn::NormConfig& norm) const {
  const auto width = static_cast<int64_t>(x.at(0).size());
  const PlainRow weight = tensor(name + ".weight", {width});
  const PlainRow bias = norm.has_bias() ? tensor(name + ".bias", {width}) : PlainRow();
  PlainRows y;
  for (const PlainRow& row : x) y.push_back(normed(row, weight, bias, norm));
  return y;
}

PlainRows PlainParts::linear(const PlainRows& x, const std::string& name, int64_t out,
                             bool has_bias) const {
  const auto in = static_cast<int64_t>(x.at(0).size());
  const PlainRow weight = tensor(name + ".weight", {out, in});
  const PlainRow bias =
      has_bias ? tensor(name + ".bias", {out}) : PlainRow(static_cast<size_t>(out));
  PlainRows y;
  for (const PlainRow& row : x) {
    PlainRow result = bias;
    for (size_t o = 0; o < result.size(); ++o)
      for (size_t i = 0; i < row.size(); ++i) result[o] += row[i] * weight[o * row.size() + i];
    y.push_back(std::move(result));
  }
  const auto found = additions_.find(name);
  if (found == additions_.end()) return y;
  size_t begin = 0;
  for (const Addition& addition : found->second) {
    const PlainRows added = linear(linear(x, addition.name + ".0", addition.rank, false),
                                   addition.name + ".1", addition.rows, false);
    for (size_t t = 0; t < y.size(); ++t)
      for (size_t o = 0; o < added[t].size(); ++o) y[t][begin + o] += added[t][o];
    begin += static_cast<size_t>(addition.rows);
  }
  return y;
}

double PlainParts::amplitude(const std::string& rotary) const {
  return rotary.empty() ? 1 : value_.rotary.at(rotary).amplitude(value_.max_position_embeddings);
}

void PlainParts::rotate(PlainRows& x, const std::string& rotary, int64_t head_size,
                        double amplitude) const {
  if (rotary.empty()) return;
  const nn::RotaryConfig& r = value_.rotary.at(rotary);
  const PlainRow frequencies = r.frequencies(head_size, static_cast<int64_t>(x.size()));
  const size_t half = frequencies.size();
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t head = 0; head < x[t].size(); head += static_cast<size_t>(head_size)) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * frequencies[i];
        double &first = x[t][head + (r.interleaved ? 2 * i : i)],
               &second = x[t][head + (r.interleaved ? 2 * i + 1 : i + half)];
        const double turned = first * std::cos(angle) - second * std::sin(angle);
        second = amplitude * (first * std::sin(angle) + second * std::cos(angle));
        first = amplitude * turned;
      }
    }
  }
}

PlainRow PlainParts::weighted(const PlainRow& scores, std::span<const PlainRow> values,
                              double sink) {
  double sum = sink;
  PlainRow result(values[0].size());
  for (size_t s = 0; s < scores.size(); ++s) {
    const double p = std::exp(scores[s]);
    sum += p;
    for (size_t d = 0; d < result.size(); ++d) result[d] += p * values[s][d];
  }
  for (double& element : result) element /= sum;
  return result;
}

}  // namespace megatron::models
