#include "kernels/cuda/kernels.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/state_scan/gradients.h"
#include "kernels/cuda/state_scan/slots.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
void compute_states(const ScanCall<T>& call, int64_t sequences, Stream& stream) {
  prepare_tokens(call, sequences, stream);
  chunk_states(call, sequences, stream);
  pass_states(call, sequences, stream);
}

template <class T>
ScanSlotsOnDevice<T> slots_of(const StateScanContinuedArgs& args) {
  return {.state = address_of<float>(args.slots.state),
          .x = address_of<T>(args.slots.x),
          .b = address_of<T>(args.slots.b),
          .steps = address_of<float>(args.slots.steps),
          .positions = address_of<int32_t>(args.positions),
          .block_table = address_of<int32_t>(args.block_table),
          .blocks = static_cast<int>(args.block_table.size(1)),
          .block_size = static_cast<int>(args.block_size)};
}

template <class T>
void differentiate(const StateScanBackwardArgs& args, Stream& stream) {
  const ScanBlocks blocks(args);
  const StateScanBackwardScratch scratch = state_scan_backward_scratch(args, stream);
  auto* const dstates = address_of<float>(scratch.dstates);
  ScanGradients<T> work{.call = scan_call<T>(args, args.dout, blocks, scratch.forward),
                        .dx = head_tensor<T>(args.dx),
                        .db = head_tensor<T>(args.db),
                        .dc = head_tensor<T>(args.dc),
                        .ddt = StepTensor<T>(args.ddt),
                        .dstates = dstates,
                        .dfinal = address_of<float>(args.dfinal),
                        .inherited = address_of<float>(scratch.inherited),
                        .decayed = address_of<float>(scratch.decayed),
                        .products = address_of<float>(scratch.products),
                        .db_parts = address_of<float>(scratch.db),
                        .dc_parts = address_of<float>(scratch.dc),
                        .da_log = address_of<float>(scratch.da_log),
                        .ddt_bias = address_of<float>(scratch.ddt_bias),
                        .dd = address_of<float>(scratch.dd),
                        .sequences = blocks.sequences};
  work.call.whole_states = work.call.whole_states && are_aligned({work.dfinal});
  compute_states(work.call, blocks.sequences, stream);
  chunk_state_gradients(work.call, blocks.sequences, dstates, stream);
  pass_state_gradients(work.call, blocks.sequences, dstates, work.dfinal, stream);
  state_terms(work, stream);
  head_gradients(work, stream);
  group_gradients(work, stream);
  const auto add = [&](const Tensor& partials, const Accumulate& to) {
    if (to.out.defined()) add_partial_rows(partials, to, stream);
  };
  add(scratch.da_log, args.da_log);
  add(scratch.ddt_bias, args.ddt_bias);
  add(scratch.dd, args.dd);
}

}  // namespace

// Products of bf16 and f16 run on tensor cores, whose operands (the weights of a chunk's inputs,
// and states) are rounded to the type of x; those of f32 are fused multiply-adds.
void state_scan(const StateScanArgs& args, Stream& stream) {
  const ScanBlocks blocks(args);
  const StateScanScratch scratch = state_scan_scratch(args, stream);
  for_storage_type("state_scan", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const ScanCall<T> call = scan_call<T>(args, args.out, blocks, scratch);
    compute_states(call, blocks.sequences, stream);
    chunk_outputs(call, blocks.sequences, stream);
  });
}

void state_scan_backward(const StateScanBackwardArgs& args, Stream& stream) {
  for_storage_type("state_scan_backward", args.x.dtype(),
                   [&](auto type) { differentiate<decltype(type)>(args, stream); });
}

void state_carry(const StateCarryArgs& args, Stream& stream) {
  const ScanBlocks blocks(args);
  const StateScanScratch scratch = state_carry_scratch(args, stream);
  for_storage_type("state_carry", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    ScanCall<T> call = scan_call<T>(args, args.x, blocks, scratch);
    call.start = -1;
    prepare_tokens(call, blocks.sequences, stream);
    carry_state(call, blocks.sequences, args.gradient, address_of<float>(args.state),
                address_of<float>(args.decay), stream);
  });
}

void state_scan_continued(const StateScanContinuedArgs& args, Stream& stream) {
  const ScanBlocks blocks(args);
  const StateScanContinuedScratch scratch = state_scan_continued_scratch(args, stream);
  for_storage_type("state_scan_continued", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    auto* const texts = static_cast<ScanText*>(scratch.texts.address());
    ScanCall<T> call = scan_call<T>(args, args.out, blocks, scratch.forward);
    call.slots = slots_of<T>(args);
    call.texts = texts;
    call.whole_states = call.whole_states && are_aligned({call.slots.state});
    call.x.whole = call.x.whole && are_aligned({call.slots.x});
    call.b.whole = call.b.whole && are_aligned({call.slots.b});
    find_texts(call, blocks.sequences, texts, stream);
    compute_states(call, blocks.sequences, stream);
    chunk_outputs(call, blocks.sequences, stream);
    store_states(call, blocks.sequences, stream);
    store_tokens(call, blocks.sequences, stream);
  });
}

}  // namespace megatron::kernels::cuda
