// The weights of a base model with a LoRA adapter merged into them, computed from the files of
// both.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/model_directory.h"
#include "models/adapters/expert_layout.h"
#include "models/adapters/lora_config.h"
#include "models/model.h"
#include "training/stored_names.h"
#include "training/whole_model.h"

namespace megatron::training {

class MergedAdapter {
 public:
  // directory: an adapter's; must outlive this. Reads names and shapes only. Throws Error naming a
  // target without its tensors, tensors that belong to no target, wrong shapes, parts of a new head
  // that are absent, and what cannot be merged: an adapter of an embedding that is also the output
  // layer.
  explicit MergedAdapter(const checkpoint::ModelDirectory& directory);

  // A tensor of the base that the adapter changes, or a new one, of a head that the base lacks.
  struct Change {
    std::string name, stored;  // its name in the model, and in base()
    bool is_new = false;       // base() has no such tensor: `stored` is the name, too
    std::string replacement;   // tensor of the adapter that replaces it; "": none
    // Added to it: a bias, or the product of two matrices, each "" if there is none.
    std::string a, b, bias;
    std::string magnitude;  // DoRA's: norms of the outputs' weights; "": none
    double scale = 0;
    // The adapter's tensor with rows that replace some of the tensor's, and their numbers; "":
    // none.
    std::string rows;
    std::vector<int64_t> row_numbers;
    bool transposed = false;  // stored as [in, out]
    // If a and b are of all experts: the experts whose weights the tensor holds (one or all), where
    // their parts of a and b are, and the first row of b that belongs to it.
    struct Experts {
      int64_t first = 0, count = 1;
      models::ExpertLayout layout = {};
      int64_t row = 0;
    };
    std::optional<Experts> experts = {};
  };
  const std::vector<Change>& changes() const { return changes_; }
  const checkpoint::ModelDirectory& base() const { return base_; }
  const checkpoint::ModelDirectory& adapter() const { return adapter_; }
  // The base's, with the head that the adapter brings, if it does.
  const models::Model& model() const { return model_; }
  // True if the base has another head, or none, so that its config.json does not fit the merged
  // model.
  bool brings_head() const { return whole_.new_head; }
  // "4 matrices with adapters, 2 tensors replaced"
  std::string text() const;

  // The tensors of the merged directory with the names that they get there: those of base(), or,
  // if the adapter brings a head, those that the model needs. stored: in base(); "": in none. A
  // tensor of a type that cannot be written has no type.
  struct Written {
    std::string name, stored;
    Shape shape;
    std::optional<DType> type;
  };
  std::vector<Written> tensors() const;
  // Shape and type of the merged tensor.
  const checkpoint::TensorInfo& info(const Change& change) const {
    return *(change.is_new ? adapter_.find(change.replacement) : base_.find(change.stored));
  }

  // The merged tensor in the base's type and layout. Computed in fp32, or fp64 for a tensor in
  // fp64, and rounded once; in memory are the result and, of each thread, about a million elements.
  std::vector<std::byte> merged(const Change& change, ThreadPool& pool) const;

 private:
  MergedAdapter(const checkpoint::ModelDirectory& directory, const models::Stage& base_stage);
  void find_changes(const models::Stage& base_stage);
  bool is_of_new_head(const std::string& tensor) const;
  void check_new_head() const;
  void add_change(const parallel::ParameterSpec& spec, const parallel::CanonicalTensor& tensor,
                  const std::string& stored);
  void add_matrices(Change& change, const std::string& module, double scale, int64_t rank,
                    const Shape& shape);
  void add_token_rows(Change& change, const std::string& module, models::ModuleKind kind,
                      const Shape& shape);
  void add_experts(Change& change, const parallel::CanonicalTensor& tensor);
  // The adapter's name of a tensor, which counts as used; "" if it has none.
  std::string take(const std::string& name);
  void check_shape(const std::string& name, const Shape& shape, const std::string& of) const;
  void check_all_used() const;

  const checkpoint::ModelDirectory& adapter_;
  checkpoint::ModelDirectory base_;
  models::LoraConfig config_;
  models::Model model_;
  WholeModel whole_;
  StoredNames names_;  // of the model's tensors in base_
  std::vector<Change> changes_;
  std::set<std::string> used_;  // names of the adapter's tensors
};

// Fills this rank's part of the base model with the merged weights.
void load_merged(const MergedAdapter& merged, const std::vector<checkpoint::HeldTensor>& held,
                 const WholeModel& whole, ThreadPool& pool);

// Writes the directory of the merged model: the base's configuration, shards and other files, and
// the tokenizer of the adapter if it has one. Atomic: a directory `path` exists only when it is
// complete. Memory for one tensor. Throws Error if `path` exists. progress: called with the bytes
// of weights written so far, of total_bytes.
void save_merged(const MergedAdapter& merged, const std::string& path, ThreadPool& pool,
                 const std::function<void(int64_t bytes, int64_t total_bytes)>& progress = {});

}  // namespace megatron::training
