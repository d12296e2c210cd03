// Layered configuration: fields set by several files and the command line, each overriding the
// previous.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"
#include "base/function_ref.h"

namespace megatron::cli {

// Sets fields from a file or the command line, overriding earlier layers.
class Layers {
 public:
  explicit Layers(Fields& fields) : fields_(fields) {}

  // set: assigns the fields of this layer. Earlier flags that conflict with them are dropped
  // (Fields::replace()).
  void add(FunctionRef<void()> set);

  // One line per dropped flag: "run.yaml:3: train-samples 800 gives way to --train-iters".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  // before: for each field, whether an earlier layer set it.
  void give_way(const std::string& name, const Field& to, std::vector<bool>& before);

  Fields& fields_;
  std::vector<std::string> notes_;
};

}  // namespace megatron::cli
