// The sizes by which ranks divide a model: one row per size, shared by all commands that have it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "parallel/context_attention.h"

namespace megatron::settings {

struct ParallelSizes {
  static constexpr int64_t kMaxRanks = int64_t{1} << 20;

  int64_t tensor_parallel = 1, context_parallel = 1, pipeline_parallel = 1, expert_parallel = 1;
  std::vector<std::string> context_exchange;      // --cp-comm-type
  std::vector<std::string> hierarchical_context;  // --hierarchical-context-parallel-sizes
  std::optional<int64_t> expert_tensor_parallel;
  bool sequence_parallel = false;

  // Commands of an inference engine have neither sequence_parallel, context_parallel nor
  // expert_tensor_parallel.
  enum class Of { training, verify, engine };
  void size_fields(Fields& fields, Of command);
  // One for all layers, or one for each. Throws Error for an unknown name.
  std::vector<parallel::ContextExchange> context_exchanges() const;
  // The sizes of the two levels of a2a+p2p, or none. Throws Error if there are other numbers of
  // them, or one that is not a number above 1.
  std::vector<int> context_levels() const;
  // Number of ranks among which a layer's experts are divided.
  int64_t expert_ranks() const {
    return expert_parallel * expert_tensor_parallel.value_or(tensor_parallel);
  }
};

}  // namespace megatron::settings
