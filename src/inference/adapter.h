// Adapters (LoRA) of a served model, of which each request chooses one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "inference/engine_groups.h"
#include "models/stage.h"

namespace megatron::inference {

// Bytes that a rank needs for the tensors of a model's adapter. groups: the ranks that divide the
// model; null: none.
int64_t adapter_bytes(const models::Model& model, DType type, const EngineGroups* groups = nullptr);

// Memory for a number of adapters, which is allocated once.
class AdapterMemory {
 public:
  // Throws Error naming the bytes if the device does not have them.
  AdapterMemory(const Device& device, int64_t adapters, int64_t bytes_of_one);
  int64_t bytes_of_one() const;
  int64_t adapters() const;
  // Memory of one adapter, in MemoryClass::parameters, until its last owner releases it; null if
  // all is in use. waits: until some is released. Thread-safe.
  std::shared_ptr<Runtime> take(bool waits = false);

 private:
  struct Places;
  std::shared_ptr<Places> places_;
};

// The tensors of one adapter that this rank has, which many threads may read.
class Adapter : public std::enable_shared_from_this<Adapter> {
 public:
  // Allocates the tensors, which are filled by the caller. model: has an adapter
  // (models::Model::adapter). number: from 1, different for each adapter, and the same on all
  // ranks.
  Adapter(const models::Model& model, std::shared_ptr<Runtime> memory, DType type, uint64_t number,
          const EngineGroups* groups = nullptr);
  static uint64_t next_number();

  uint64_t number() const { return number_; }
  std::vector<parallel::ParameterSpec*> tensors() const;
  Runtime& runtime() { return *runtime_; }
  int64_t bytes() const;

  // True if passes may have rows with this adapter among others: it only adds to products with
  // matrices of layers.
  bool shares_passes() const { return shares_passes_; }
  // What it adds to a matrix in such a pass; null: nothing. matrix: the name of the parameter.
  const ops::LowRank* find(std::string_view matrix) const;
  const ops::ExpertLowRank* find_of_experts(std::string_view matrices) const;
  // The model with the adapter, for passes that have no other rows: `base` with the adapter's
  // tensors in it. It borrows the tensors of both.
  std::unique_ptr<models::Stage> over(const models::Stage& base, Runtime& runtime,
                                      const parallel::ModelRanks& ranks) const;

 private:
  const uint64_t number_;
  const models::Model model_;
  const std::shared_ptr<Runtime> runtime_;
  Runtime shapes_only_;
  std::unique_ptr<models::Stage> stage_;  // only the adapter's tensors have memory
  const bool shares_passes_;
  std::map<std::string, const ops::LowRank*, std::less<>> of_matrix_;
  std::map<std::string, const ops::ExpertLowRank*, std::less<>> of_experts_;
};

// The adapters of a rank that follows another one's engines. Thread-safe.
class AdaptersByNumber {
 public:
  void add(std::shared_ptr<const Adapter> adapter);
  void remove(uint64_t number);
  std::shared_ptr<const Adapter> find(uint64_t number) const;  // null for 0

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Adapter>> adapters_;
};

// The adapters of a pass, by rows.
class RowAdapters final : public ProductAdditions {
 public:
  // The next `count` rows have this adapter; null: none. One that does not share passes is in the
  // model of its pass.
  void append(const Adapter* adapter, int64_t count);
  bool any() const { return !ranges_.empty(); }

  void add(Tape& tape, const Weight& w, const Tensor& x, const Tensor& y) const override;
  void for_each_range(const Weight& w, const OfRows& f) const override;
  void for_each_expert_range(const Weight& up, const Weight& down,
                             const OfExpertRows& f) const override;

 private:
  struct Range {
    const Adapter* adapter = nullptr;
    int64_t first = 0, count = 0;
  };
  std::vector<Range> ranges_;  // with an adapter
  int64_t rows_ = 0;
};

}  // namespace megatron::inference
