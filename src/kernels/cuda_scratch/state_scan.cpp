#include "kernels/cuda_scratch/state_scan.h"

#include "base/divide.h"

namespace megatron::kernels::cuda {
namespace {

Tensor floats(Stream& stream, const Shape& shape, const char* label) {
  return Tensor::empty(stream.scratch(), shape, DType::f32, label);
}

Tensor token_scratch(const ScanBlocks& blocks, Stream& stream) {
  return floats(stream, {blocks.sequences, blocks.chunks, blocks.heads, kScanChunk, 4},
                "scan tokens");
}

StateScanScratch forward_scratch(const ScanBlocks& blocks, Stream& stream) {
  return {.tokens = token_scratch(blocks, stream),
          .states = floats(
              stream,
              {blocks.sequences, blocks.inner_states(), blocks.heads, blocks.width, blocks.states},
              "scan states")};
}

}  // namespace

ScanBlocks::ScanBlocks(const Tensor& x, const Tensor& b, int64_t chunks_)
    : sequences(x.size(0)),
      heads(x.size(2)),
      groups(b.size(2)),
      width(x.size(3)),
      states(b.size(3)),
      chunks(chunks_),
      parts(ceil_div(heads / groups, kScanHeads)),
      width_tiles(ceil_div(width, kScanChunk)),
      state_tiles(ceil_div(states, kScanChunk)) {}

ScanBlocks::ScanBlocks(const StateScanArgs& args)
    : ScanBlocks(args.x, args.b, ceil_div(args.x.size(1), kScanChunk)) {}
ScanBlocks::ScanBlocks(const StateScanBackwardArgs& args)
    : ScanBlocks(args.x, args.b, ceil_div(args.x.size(1), kScanChunk)) {}
ScanBlocks::ScanBlocks(const StateCarryArgs& args)
    : ScanBlocks(args.x, args.b, ceil_div(args.x.size(1), kScanChunk)) {}
ScanBlocks::ScanBlocks(const StateScanContinuedArgs& args)
    : ScanBlocks(args.x, args.b,
                 args.x.size(1) == 0 ? 0 : ceil_div(args.x.size(1) - 1, kScanChunk) + 1) {}

StateScanScratch state_scan_scratch(const StateScanArgs& args, Stream& stream) {
  return forward_scratch(ScanBlocks(args), stream);
}

StateScanScratch state_carry_scratch(const StateCarryArgs& args, Stream& stream) {
  return {.tokens = token_scratch(ScanBlocks(args), stream), .states = {}};
}

StateScanBackwardScratch state_scan_backward_scratch(const StateScanBackwardArgs& args,
                                                     Stream& stream) {
  const ScanBlocks blocks(args);
  StateScanBackwardScratch scratch{.forward = forward_scratch(blocks, stream)};
  scratch.dstates = floats(stream, scratch.forward.states.shape(), "gradients of scan states");
  const int64_t sequences = blocks.sequences, chunks = blocks.chunks, heads = blocks.heads;
  scratch.inherited = floats(stream, {sequences, chunks, heads, kScanChunk}, "scan inherited");
  scratch.decayed = floats(stream, {sequences, chunks, heads}, "scan decayed");
  const auto tiles = [&](int64_t count, const char* label) {
    return floats(stream,
                  {blocks.parts, sequences, chunks, blocks.groups, count, kScanChunk * kScanChunk},
                  label);
  };
  scratch.products = tiles(1, "gradients of scan products");
  scratch.db = tiles(blocks.state_tiles, "partial db");
  scratch.dc = tiles(blocks.state_tiles, "partial dc");
  const auto sums = [&](const Accumulate& to, const char* label) {
    return to.out.defined() ? floats(stream, {sequences * chunks, heads}, label) : Tensor();
  };
  scratch.da_log = sums(args.da_log, "partial da_log");
  scratch.ddt_bias = sums(args.ddt_bias, "partial ddt_bias");
  scratch.dd = sums(args.dd, "partial dd");
  return scratch;
}

StateScanContinuedScratch state_scan_continued_scratch(const StateScanContinuedArgs& args,
                                                       Stream& stream) {
  const ScanBlocks blocks(args);
  return {.texts = Tensor::empty(stream.scratch(), {blocks.sequences, 4}, DType::i32, "scan texts"),
          .forward = forward_scratch(blocks, stream)};
}

}  // namespace megatron::kernels::cuda
