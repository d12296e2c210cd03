// Low-rank adapters (LoRA) of a served model, of which each request chooses one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/stage.h"

namespace megatron::inference {

// The tensors of one adapter, which many threads may read. Its model's other parameters have no
// memory.
class Adapter {
 public:
  // Builds the model, which has an adapter (models::Model::adapter), and allocates the adapter's
  // parameters; they are filled by the caller. Throws Error naming what a model that is shared by
  // several adapters cannot have: parameters that are trained besides the adapters' own, and
  // adapters of the embedding or the output layer.
  Adapter(const models::Model& model, const Device& device, DType type);

  uint64_t number() const { return number_; }  // from 1, different for each adapter
  const models::Stage& stage() const { return *stage_; }
  std::vector<parallel::ParameterSpec*> tensors() const;  // its own
  Runtime& runtime() { return runtime_; }
  int64_t bytes() const;
  // What it adds to a matrix; null: nothing. matrix: the name of the parameter.
  const ops::LowRank* find(std::string_view matrix) const;

 private:
  const uint64_t number_;
  Runtime runtime_;
  std::unique_ptr<models::Stage> stage_;
  std::map<std::string, const ops::LowRank*, std::less<>> of_matrix_;
};

// The adapters of a pass, by rows.
class RowAdapters final : public ProductAdditions {
 public:
  // The next `count` rows have this adapter; null: none.
  void append(const Adapter* adapter, int64_t count);
  bool any() const { return !ranges_.empty(); }

  void add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const override;
  void for_each_range(const Weight& w, const OfRows& f) const override;

 private:
  struct Range {
    const Adapter* adapter = nullptr;
    int64_t first = 0, count = 0;
  };
  std::vector<Range> ranges_;  // with an adapter
  int64_t rows_ = 0;
};

}  // namespace megatron::inference
