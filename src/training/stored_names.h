// Maps the tensors of a model to their names in a directory, and lists the directory's other
// tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_directory.h"
#include "training/whole_model.h"

namespace megatron::training {

// Published files differ from the family's own names in three ways that are understood here. The
// base model's prefix ("model.") may be absent or different: a base model saved alone, a model that
// is part of a larger one ("language_model.model."), or a doubled prefix. Wrappers of a module may
// have left components in the names ("module.", "_orig_mod."). A tied matrix may be stored under
// the head's name alone.
class StoredNames {
 public:
  // Throws Error if the two copies of a tied matrix differ, or if a base model lacks a head that is
  // not tied.
  StoredNames(const WholeModel& whole, const checkpoint::ModelDirectory& directory);

  // Returns the name in the directory of a tensor of the model, or `tensor` itself if the directory
  // has no name for it.
  const std::string& of(const std::string& tensor) const;
  // The prefix of the directory's names, in place of the base model's prefix.
  const std::string& prefix() const { return prefix_; }

  // A tensor of the directory that no computation needs.
  struct LeftOut {
    std::string name;
    std::string reason;           // a predicate: "is not needed"
    std::string layer = {};       // multi-token-prediction layer that it belongs to
    std::string absent_key = {};  // key whose absence from config.json makes it unused
  };
  const std::vector<LeftOut>& left_out() const { return left_out_; }

 private:
  std::string prefix_;
  std::map<std::string, std::string, std::less<>>
      stored_;  // stored name by model name, where they differ
  std::vector<LeftOut> left_out_;
};

}  // namespace megatron::training
