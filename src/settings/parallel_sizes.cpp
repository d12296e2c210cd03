#include "settings/parallel_sizes.h"

#include <algorithm>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::settings {

void ParallelSizes::size_fields(Fields& f, Of command) {
  const bool engine = command == Of::engine;
  const int64_t most = command == Of::training ? kMaxRanks : engine ? 1024 : 64;
  f.add("tensor-model-parallel-size", &tensor_parallel,
        "tensor-parallel size: ranks that the matrices of every layer are split over")
      .within(1, most);
  if (!engine)
    f.add_switch("sequence-parallel", &sequence_parallel, true,
                 "let tensor-parallel ranks also split the tokens (sequence dimension) outside the "
                 "matrix multiplications");
  if (!engine) {
    f.add("context-parallel-size", &context_parallel,
          "context-parallel size: ranks that the tokens of every sequence are split over")
        .within(1, most);
    f.add(
        "cp-comm-type", &context_exchange,
        "how context-parallel ranks exchange tokens in attention: p2p (keys and values pass around "
        "a ring, overlapped with compute; the default), all_gather (all keys and values at once), "
        "a2a (all tokens of some heads) or a2a+p2p (a2a among neighbouring ranks, a ring of these "
        "groups); in state spaces: p2p (the states before each rank's tokens pass from rank to "
        "rank), all_gather (what each rank adds to them, at once), a2a or a2a+p2p; one for all "
        "layers, or one per layer");
    f.add("hierarchical-context-parallel-sizes", &hierarchical_context,
          "A P: with --cp-comm-type a2a+p2p, groups of A neighbouring ranks exchange heads, and P "
          "such groups form a ring; A times P is --context-parallel-size");
  }
  f.add("expert-model-parallel-size", &expert_parallel,
        engine ? "expert-parallel size: number of groups that the tensor-parallel ranks form, each "
                 "of which holds whole experts instead of a slice of every expert; must divide "
                 "--tensor-model-parallel-size"
               : "expert-parallel size: data- and tensor-parallel ranks that the experts of every "
                 "layer are split over")
      .within(1, most);
  if (!engine)
    f.add("expert-tensor-parallel-size", &expert_tensor_parallel,
          "ranks that the matrices of every expert are split over; default "
          "--tensor-model-parallel-size")
        .within(1, most);
  f.add("pipeline-model-parallel-size", &pipeline_parallel,
        "pipeline-parallel size: number of stages, one rank each, over which the layers are split")
      .within(1, most);
}

std::vector<parallel::ContextExchange> ParallelSizes::context_exchanges() const {
  using parallel::ContextExchange;
  std::vector<ContextExchange> exchanges;
  for (const std::string& given : context_exchange) {
    const auto known = std::ranges::find(parallel::kContextExchanges, given,
                                         [](ContextExchange e) { return parallel::name(e); });
    MG_CHECK(known != parallel::kContextExchanges.end(),
             "--cp-comm-type is '{}'; it is one of p2p, all_gather, a2a, a2a+p2p", given);
    exchanges.push_back(*known);
  }
  return exchanges;
}

std::vector<int> ParallelSizes::context_levels() const {
  std::vector<int> sizes;
  for (const std::string& given : hierarchical_context) {
    const auto size = parse_number<int64_t>(given);
    MG_CHECK(
        size && *size > 1 && *size <= kMaxRanks,
        "--hierarchical-context-parallel-sizes has '{}'; a level has 2 ranks or more: with one "
        "level use --cp-comm-type a2a or p2p",
        given);
    sizes.push_back(static_cast<int>(*size));
  }
  MG_CHECK(sizes.empty() || sizes.size() == 2,
           "--hierarchical-context-parallel-sizes has {} sizes; give two: the ranks that exchange "
           "heads, and the groups of the ring",
           sizes.size());
  return sizes;
}

}  // namespace megatron::settings
