#include "settings/parallel_sizes.h"

#include "base/error.h"

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
        "a ring, overlapped with compute; the default), all_gather (all keys and values at once) "
        "or a2a (all tokens of some heads); one for all layers, or one per layer");
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
        "pipeline-parallel size: stages, one rank each, that the layers are split over")
      .within(1, most);
}

std::vector<parallel::ContextExchange> ParallelSizes::context_exchanges() const {
  using parallel::ContextExchange;
  std::vector<ContextExchange> exchanges;
  for (const std::string& given : context_exchange) {
    MG_CHECK(given != "a2a+p2p",
             "--cp-comm-type a2a+p2p (heads within a node, a ring between nodes) is not supported "
             "yet; use p2p, all_gather or a2a");
    bool known = false;
    for (const ContextExchange exchange :
         {ContextExchange::p2p, ContextExchange::all_gather, ContextExchange::a2a})
      if (parallel::name(exchange) == given) {
        exchanges.push_back(exchange);
        known = true;
      }
    MG_CHECK(known, "--cp-comm-type is '{}'; it is one of p2p, all_gather, a2a", given);
  }
  return exchanges;
}

}  // namespace megatron::settings
