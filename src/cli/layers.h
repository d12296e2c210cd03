// Fields that several files and the command line set, one over the other.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"
#include "base/function_ref.h"

namespace megatron::cli {

// Sets fields from a file or the command line, over what came before it.
class Layers {
 public:
  explicit Layers(Fields& fields) : fields_(fields) {}

  // set: assigns what this one gives. Earlier flags that do not go with it give way
  // (Fields::replace()).
  void add(FunctionRef<void()> set);

  // A line for each that gave way: "run.yaml:3: train-samples 800 gives way to --train-iters".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  // before: of each field, whether an earlier one gave it.
  void give_way(const std::string& name, const Field& to, std::vector<bool>& before);

  Fields& fields_;
  std::vector<std::string> notes_;
};

}  // namespace megatron::cli
