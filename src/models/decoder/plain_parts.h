// Parts of an independent implementation of any decoder, by plain loops in fp64 over the tensors in
// their layout on disk, against which the composition is checked (plain_losses in
// definition_parts.h). It shares no code with the composition, its ops or kernels except the map of
// tensors.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/value.h"
#include "models/families/tensor_map.h"
#include "models/model.h"

namespace megatron::models {

using PlainRow = std::vector<double>;
using PlainRows = std::vector<PlainRow>;  // one per token

class PlainParts {
 public:
  // All are borrowed.
  PlainParts(const DecoderValue& value, const FamilyTensors& map, const PlainTensors& weights)
      : value_(value), map_(map), weights_(weights) {}

  const DecoderValue& model() const { return value_; }
  // The output of the embedding.
  const PlainRows& embedding() const { return embedding_; }
  // linear() of this name also gives b a x: what is added to consecutive rows, in the order of the
  // calls. Matrices <name>.0.weight (a) and <name>.1.weight (b).
  struct Addition {
    std::string name;
    int64_t rows = 0, rank = 0;
  };
  void add(const std::string& linear, Addition addition) {
    additions_[linear].push_back(std::move(addition));
  }
  // Assembles a parameter of this program from the tensors on disk. Its dims are [rows], [rows,
  // columns] or [experts, rows, columns].
  PlainRow tensor(const std::string& name, const Shape& shape) const;
  // The norm whose parameters are <name>.weight and, if it has one, <name>.bias.
  PlainRows normed(const PlainRows& x, const std::string& name, const nn::NormConfig& norm) const;
  // One row; weight and bias may be empty.
  static PlainRow normed(const PlainRow& x, const PlainRow& weight, const PlainRow& bias,
                         const nn::NormConfig& norm);
  PlainRows linear(const PlainRows& x, const std::string& name, int64_t out, bool has_bias) const;

  // Factor of cos and sin of the model's rotary table; 1 without a name.
  double amplitude(const std::string& rotary) const;
  // Rotates the heads of every token, `head_size` elements each, by the model's rotary table.
  // amplitude: factor of the result. No name: does nothing.
  void rotate(PlainRows& x, const std::string& rotary, int64_t head_size, double amplitude) const;
  // sum over s of softmax(scores)[s] * values[s]; sink: e^score of a score without a value.
  static PlainRow weighted(const PlainRow& scores, std::span<const PlainRow> values, double sink);

 protected:
  PlainRows embedding_;

 private:
  std::map<std::string, std::vector<Addition>> additions_;
  const DecoderValue& value_;
  const FamilyTensors& map_;
  const PlainTensors& weights_;
};

}  // namespace megatron::models
