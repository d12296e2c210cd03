#include "tokenizers/pre_tokenizers/spans.h"

#include "base/error.h"

namespace megatron::tokenizers {

Behavior parse_behavior(const std::string& name) {
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail(
      "behavior '{}' is unknown; supported are Removed, Isolated, MergedWithPrevious, "
      "MergedWithNext and Contiguous",
      name);
}

}  // namespace megatron::tokenizers
