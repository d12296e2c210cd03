// Division of the scans of states into blocks on CUDA, and their scratch memory, which is requested
// by the kernels, and by meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/state_scan.h"

namespace megatron::kernels::cuda {

// Heads of a group that one thread block processes, one after another.
inline constexpr int64_t kScanHeads = 8;

// Sequences are divided into chunks of kScanChunk tokens, and the heads of a group into parts.
// Matrices are divided into tiles of kScanChunk x kScanChunk elements.
struct ScanBlocks {
  explicit ScanBlocks(const StateScanArgs& args);
  explicit ScanBlocks(const StateScanBackwardArgs& args);
  explicit ScanBlocks(const StateCarryArgs& args);
  // A piece of a text may begin at any token of a chunk.
  explicit ScanBlocks(const StateScanContinuedArgs& args);

  int64_t sequences, heads, groups;
  int64_t width, states;  // P and N
  int64_t chunks;         // of a sequence, at most
  int64_t parts;          // of a group's heads
  int64_t width_tiles, state_tiles;

  int64_t inner_states() const { return chunks > 0 ? chunks - 1 : 0; }  // between chunks

 private:
  ScanBlocks(const Tensor& x, const Tensor& b, int64_t chunks);
};

// tokens: numbers of every token and head, [B,chunks,H,kScanChunk,4]; states: after each chunk but
// the last, [B,chunks - 1,H,P,N]. All f32.
struct StateScanScratch {
  Tensor tokens, states;
};
StateScanScratch state_scan_scratch(const StateScanArgs& args, Stream& stream);
StateScanScratch state_carry_scratch(const StateCarryArgs& args, Stream& stream);  // only tokens

struct StateScanBackwardScratch {
  StateScanScratch forward;
  Tensor dstates;    // gradients of `states`
  Tensor inherited;  // [B,chunks,H,kScanChunk]: dout times what out has from the state before the
                     // chunk
  Tensor decayed;    // [B,chunks,H]: that state times its gradient from the state after the chunk
  Tensor products;   // tiles [parts,B,chunks,G]: gradients of c b^T
  Tensor db, dc;     // tiles [parts,B,chunks,G,state_tiles]: what comes from states
  Tensor da_log, ddt_bias, dd;  // [B chunks,H]: sums over the tokens of a chunk
};
StateScanBackwardScratch state_scan_backward_scratch(const StateScanBackwardArgs& args,
                                                     Stream& stream);

struct StateScanContinuedScratch {
  Tensor texts;  // i32 [B,4]
  StateScanScratch forward;
};
StateScanContinuedScratch state_scan_continued_scratch(const StateScanContinuedArgs& args,
                                                       Stream& stream);

}  // namespace megatron::kernels::cuda
