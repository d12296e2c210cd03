#include "selftest/state_space_faults.h"

#include <string_view>
#include <utility>

#include "parallel/context_attention.h"
#include "selftest/changed_kernel.h"
#include "selftest/layout_matrix.h"
#include "selftest/passing_group.h"

namespace megatron::selftest {
namespace {

constexpr std::string_view kInputsBeforeRuns = "context, inputs before runs";

// The state is not reset at the first token of a document.
void joined_documents(const kernels::StateScanArgs& args, Stream& stream) {
  kernels::StateScanArgs joined = args;
  joined.starts = {};
  kernels::table(stream).state_scan(joined, stream);
}

void exchanged_order(const kernels::GatedNormArgs& args, Stream& stream) {
  using enum kernels::GateOrder;
  kernels::GatedNormArgs exchanged = args;
  if (args.order == gate_first) exchanged.order = norm_first;
  if (args.order == norm_first) exchanged.order = gate_first;
  kernels::table(stream).gated_norm(exchanged, stream);
}

// Every head has the rate of the head before it.
void rate_of_neighbour(const kernels::StateScanArgs& args, Stream& stream) {
  kernels::StateScanArgs moved = args;
  const Tensor& rates = args.numbers.a_log;
  const int64_t heads = rates.size(0);
  moved.numbers.a_log = Tensor::empty(stream.scratch(), rates.shape(), rates.dtype(), "rates");
  for (int64_t h = 0; h < heads; ++h)
    kernels::table(stream).copy({.x = rates.slice(0, (h + heads - 1) % heads, 1),
                                 .out = moved.numbers.a_log.slice(0, h, 1)},
                                stream);
  kernels::table(stream).state_scan(moved, stream);
}

// The convolution reads zeros, as at the beginning of a sequence, in place of the inputs that
// another rank has.
class UnreadInputs final : public PassingGroup<UnreadInputs> {
 public:
  using PassingGroup::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    comm::Work work = group_.make(call, stream);
    if (call.name != kInputsBeforeRuns) return work;
    work.wait(stream);
    kernels::table(stream).fill({.out = call.out, .value = 0}, stream);
    return {};
  }
};

Environment with_unread_inputs() {
  Environment environment;
  environment.wrap = [](comm::Group& group) { return std::make_unique<UnreadInputs>(group); };
  return environment;
}

// True if the next convolution of this rank's thread reads inputs of other ranks before its runs;
// true if it has the first run of each sequence.
thread_local bool has_inputs_before_runs = false, begins_sequences = false;

class NotedInputs final : public PassingGroup<NotedInputs> {
 public:
  using PassingGroup::PassingGroup;
  comm::Work make(comm::GroupCall call, Stream& stream) override {
    if (call.name == kInputsBeforeRuns) {
      has_inputs_before_runs = true;
      begins_sequences = rank() == 0;
    }
    return group_.make(std::move(call), stream);
  }
};

// The convolution reads on past the beginnings of documents, and where a sequence begins it reads
// the inputs that were received for the second run, in place of zeros.
void past_beginnings(const kernels::CausalConvArgs& args, Stream& stream) {
  kernels::CausalConvArgs past = args;
  if (std::exchange(has_inputs_before_runs, false)) {
    past.starts = {};
    past.x = Tensor::empty(stream.scratch(), args.x.shape(), args.x.dtype(), "inputs");
    kernels::table(stream).copy({.x = args.x, .out = past.x}, stream);
    for (int64_t run = 0; begins_sequences && run < past.x.size(0); run += 2)
      kernels::table(stream).copy({.x = args.x.select(0, run + 1).slice(0, 0, parallel::kRunHalo),
                                   .out = past.x.select(0, run).slice(0, 0, parallel::kRunHalo)},
                                  stream);
  }
  kernels::table(stream).causal_conv(past, stream);
}

Environment with_inputs_past_beginnings() {
  Environment environment = with_kernel<&kernels::Table::causal_conv, past_beginnings>();
  environment.wrap = [](comm::Group& group) { return std::make_unique<NotedInputs>(group); };
  return environment;
}

bool hands_states_on(const MatrixRow& row) {
  return row.is_hybrid() && row.layout.cp > 1 &&
         row.layout.exchange != parallel::ContextExchange::a2a;
}

}  // namespace

std::vector<Fault> faults_of_state_spaces() {
  return {{"state-across-documents",
           "the state of a state space is not reset at the first token of a document",
           true,
           {},
           with_kernel<&kernels::Table::state_scan, joined_documents>},
          {"convolution-without-neighbour",
           "the convolution of a state space reads zeros in place of the inputs before a run of "
           "tokens, which another context-parallel rank has",
           false, hands_states_on, with_unread_inputs},
          {"convolution-past-beginnings",
           "where context-parallel ranks divide a sequence, the convolution of a state space reads "
           "the inputs before the first tokens of documents and of the sequence, too",
           false, hands_states_on, with_inputs_past_beginnings},
          {"gate-behind-norm",
           "a state space is gated after its norm instead of before it, and vice versa",
           true,
           {},
           with_kernel<&kernels::Table::gated_norm, exchanged_order>},
          {"decay-of-neighbour",
           "every head of a state space decays at the rate of the head before it",
           true,
           {},
           with_kernel<&kernels::Table::state_scan, rate_of_neighbour>}};
}

}  // namespace megatron::selftest
