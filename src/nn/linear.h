#pragma once

#include "nn/replicated_linear.h"
#include "parallel/linear.h"

namespace megatron::nn {

// y = x w^T + b with the outputs divided among the tensor-parallel ranks. Parameters <name>.weight
// [out,in], <name>.bias [out]; out is the sum of `blocks`, matrices that are divided separately ([q
// | k | v]). In a shared module it has the additions that Builder::SharedModule names.
class ColumnLinear {
 public:
  ColumnLinear(Builder& builder, const std::string& name, int64_t in, std::vector<int64_t> blocks,
               bool bias, parallel::Init init);
  Var operator()(Tape& tape, const Var& x) const;
  // Applies the layer and its gelu (ops::linear_gelu); only if it is not adapted.
  ops::Gelu gelu(Tape& tape, const Var& x, bool keeps_v) const {
    return parallel::column_linear_gelu(tape, x, weight_, bias_, tensor_, keeps_v);
  }
  const Weight& weight() const { return weight_; }
  const Weight& bias() const { return bias_; }  // may be none
  bool adapted() const { return adapter_ || !additions_.empty(); }

 private:
  struct Addition;
  void add_additions(Builder& builder, const Builder::SharedModule::Additions& additions,
                     int64_t in, std::vector<int64_t> blocks, parallel::Init init);

  parallel::TensorParallel tensor_;
  Weight weight_, bias_;
  ops::LowRank adapter_;
  std::vector<std::shared_ptr<const Addition>> additions_;  // of consecutive outputs
};

// The same with the inputs divided: its input is the output of a ColumnLinear on the same rank.
class RowLinear {
 public:
  RowLinear(Builder& builder, const std::string& name, int64_t in, int64_t out, bool bias,
            parallel::Init init);
  Var operator()(Tape& tape, const Var& x) const {
    return parallel::row_linear(tape, x, weight_, bias_, tensor_, adapter_);
  }
  // Only without an adapter.
  Var operator()(Tape& tape, const ops::Gelu& g) const {
    return parallel::row_linear(tape, g, weight_, bias_, tensor_);
  }
  const Weight& weight() const { return weight_; }
  const Weight& bias() const { return bias_; }  // may be none
  bool adapted() const { return static_cast<bool>(adapter_); }

 private:
  parallel::TensorParallel tensor_;
  Weight weight_, bias_;
  ops::LowRank adapter_;
};

}  // namespace megatron::nn
