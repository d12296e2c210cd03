// Common parts of the kernels of scans: their argument, the tokens of a chunk, and which of them a
// call reads.
//
// In a chunk with steps D and decays e^(-D A), let s_i be the sum of the logarithms of the decays
// up to token i, E_i = e^(s_i), and S the state [P,N] before it. With L_ij = e^(s_i - s_j) for
// tokens j <= i of one document, else 0, and E_i = 0 if i's document begins in the chunk,
//   M_ij = L_ij D_j c_i b_j,   y_i = E_i S c_i + sum over j of M_ij x_j + d x_i,
// and the state after its last token l is E_l S + sum over j of L_lj D_j x_j b_j^T.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/state_scan/tiles.h"
#include "kernels/cuda_scratch/state_scan.h"

namespace megatron::kernels::cuda {

// A token of a chunk in one head. s is the sum of two f32s, of which the first alone would not give
// differences of adjacent tokens to f32's precision.
struct alignas(16) ScanToken {
  float high, low;  // s / ln 2
  float step;       // 0 beyond the last token
  int first;  // row at which the token's document begins; negative: before the chunk; kSide: beyond
              // the last token
};
// e^(s_to - s_from).
__device__ inline float decay_between(const ScanToken& from, const ScanToken& to) {
  return exp2f((to.high - from.high) + (to.low - from.low));
}
// E_i.
__device__ inline float decay_of_state(const ScanToken& token) {
  return token.first < 0 ? exp2f(token.high + token.low) : 0.0f;
}
// L_ij for token i and the token j of row `row`, which is not after i.
__device__ inline float decay_of_input(const ScanToken& i, const ScanToken& j, int row) {
  return row >= i.first ? decay_between(j, i) : 0.0f;
}
// L_ij for any two rows.
__device__ inline float decay_of_pair(const ScanToken* tokens, int i, int j) {
  return j <= i ? decay_of_input(tokens[i], tokens[j], j) : 0.0f;
}

// The tokens of a text that a call reads.
struct alignas(16) ScanText {
  int column;    // of the first in the call's tensors
  int position;  // its index in the text
  int count;
  int slot;  // with what is before it; -1 at the text's beginning

  __device__ int stored() const { return position % kSide; }  // tokens of the first chunk before it
  __device__ int end() const { return stored() + count; }     // counted from that chunk's first
  __device__ int chunks() const { return count > 0 ? (end() + kSide - 1) / kSide : 0; }
  __device__ int last_chunk() const { return chunks() - 1; }
  // A chunk of these: its rows from begin to end are tokens of the call, those before are stored.
  __device__ int begin_of(int chunk) const { return chunk == 0 ? stored() : 0; }
  __device__ int end_of(int chunk) const { return min(kSide, end() - chunk * kSide); }
  __device__ int last_of(int chunk) const { return end_of(chunk) - 1; }
  __device__ int column_of(int chunk) const {
    return column + (chunk == 0 ? 0 : chunk * kSide - stored());
  }
};

// dt [B,T,H] or its gradient.
template <class T>
struct StepTensor {
  explicit StepTensor(const Tensor& tensor)
      : data(static_cast<T*>(tensor.address())),
        sequence_stride(tensor.stride(0)),
        token_stride(tensor.stride(1)) {}
  __device__ T& at(int64_t sequence, int64_t token, int head) const {
    return data[sequence * sequence_stride + token * token_stride + head];
  }
  T* data;
  int64_t sequence_stride, token_stride;
};

struct ScanNumbers {
  explicit ScanNumbers(const StateScanNumbers& numbers)
      : a_log(address_of<float>(numbers.a_log)),
        dt_bias(address_of<float>(numbers.dt_bias)),
        d(address_of<float>(numbers.d)),
        min_step(static_cast<float>(numbers.min_step)),
        max_step(static_cast<float>(numbers.max_step)) {}
  const float *a_log, *dt_bias, *d;
  float min_step, max_step;
};
// ln(1 + e^x).
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

template <class T>
struct ScanSlotsOnDevice {
  float* state;
  T *x, *b;
  float* steps;
  const int32_t *positions, *block_table;
  int blocks, block_size;

  __device__ int slot(int64_t sequence, int position) const {
    return block_table[sequence * blocks + position / block_size];
  }
};

template <class T>
struct ScanCall {
  HeadTensor<T> x, b, c, y;  // y: out, or dout in backward
  StepTensor<T> dt;
  ScanNumbers numbers;
  const int32_t* starts;
  int start;             // of all tokens if starts is null
  const float* initial;  // states before sequences [B,H,P,N]; may be null
  ScanSlotsOnDevice<T> slots;
  const ScanText* texts;  // null: whole sequences
  ScanToken* tokens;      // scratch
  float* states;          // scratch
  int sequence_tokens, heads, groups, width, state_width;
  int chunks, inner_states, parts, width_tiles, state_tiles;
  bool whole_states;  // rows of states consist of whole chunks of T

  __device__ ScanText text(int64_t sequence) const {
    if (texts != nullptr) return texts[sequence];
    return {.column = 0, .position = 0, .count = sequence_tokens, .slot = -1};
  }
  __device__ int group_heads() const { return heads / groups; }
  __device__ int64_t state_size() const { return int64_t{width} * state_width; }
  // Index in what a chunk has for every head.
  __device__ int64_t head_index(int64_t sequence, int chunk, int head) const {
    return (sequence * chunks + chunk) * heads + head;
  }
  __device__ ScanToken* tokens_of(int64_t sequence, int chunk, int head) const {
    return tokens + head_index(sequence, chunk, head) * kSide;
  }
  // Offset of the state after a chunk in tensors like `states`.
  __device__ int64_t state_index(int64_t sequence, int chunk, int head) const {
    return ((sequence * inner_states + chunk) * heads + head) * state_size();
  }
  __device__ float* slot_state(int slot, int head) const {
    return slots.state + (int64_t{slot} * heads + head) * state_size();
  }
  // The state before a chunk; null before a text's first chunk.
  __device__ const float* state_before(const ScanText& text, int64_t sequence, int chunk,
                                       int head) const {
    if (chunk > 0) return states + state_index(sequence, chunk - 1, head);
    if (initial != nullptr) return initial + (sequence * heads + head) * state_size();
    return text.position < kSide ? nullptr : slot_state(text.slot, head);
  }
  // Rows of a state, or of its gradient, as a matrix.
  __device__ MatrixRows<const float> rows_of_state(const float* state) const {
    return {.data = state,
            .pitch = state_width,
            .begin = 0,
            .end = width,
            .width = state_width,
            .whole = whole_states};
  }
  // Rows of a chunk in a tensor [B,T,count,width], of one of `count` heads or groups. stored: the
  // slots' tensor, or null.
  __device__ MatrixRows<T> rows_of(const HeadTensor<T>& tensor, const T* stored,
                                   const ScanText& text, int64_t sequence, int chunk, int head,
                                   int count, int row_width) const {
    MatrixRows<T> rows{.data = tensor.data + sequence * tensor.sample_stride +
                               text.column_of(chunk) * tensor.position_stride +
                               head * tensor.head_stride,
                       .pitch = tensor.position_stride,
                       .begin = text.begin_of(chunk),
                       .end = text.end_of(chunk),
                       .width = row_width,
                       .whole = tensor.whole};
    if (rows.begin > 0 && stored != nullptr) {
      rows.earlier = stored + (int64_t{text.slot} * kSide * count + head) * row_width;
      rows.earlier_pitch = int64_t{count} * row_width;
    }
    return rows;
  }
  __device__ MatrixRows<T> x_rows(const ScanText& text, int64_t sequence, int chunk,
                                  int head) const {
    return rows_of(x, slots.x, text, sequence, chunk, head, heads, width);
  }
  __device__ MatrixRows<T> y_rows(const ScanText& text, int64_t sequence, int chunk,
                                  int head) const {
    return rows_of(y, nullptr, text, sequence, chunk, head, heads, width);
  }
  __device__ MatrixRows<T> b_rows(const ScanText& text, int64_t sequence, int chunk,
                                  int group) const {
    return rows_of(b, slots.b, text, sequence, chunk, group, groups, state_width);
  }
  __device__ MatrixRows<T> c_rows(const ScanText& text, int64_t sequence, int chunk,
                                  int group) const {
    return rows_of(c, nullptr, text, sequence, chunk, group, groups, state_width);
  }
};

// Without slots and texts. y: out or dout.
template <class T, class Args>
ScanCall<T> scan_call(const Args& args, const Tensor& y, const ScanBlocks& blocks,
                      const StateScanScratch& scratch) {
  ScanCall<T> call{.x = head_tensor<T>(args.x),
                   .b = head_tensor<T>(args.b),
                   .c = {},
                   .y = head_tensor<T>(y),
                   .dt = StepTensor<T>(args.dt),
                   .numbers = ScanNumbers(args.numbers),
                   .starts = nullptr,
                   .start = 0,
                   .initial = nullptr,
                   .slots = {},
                   .texts = nullptr,
                   .tokens = static_cast<ScanToken*>(scratch.tokens.address()),
                   .states = address_of<float>(scratch.states),
                   .sequence_tokens = static_cast<int>(args.x.size(1)),
                   .heads = static_cast<int>(blocks.heads),
                   .groups = static_cast<int>(blocks.groups),
                   .width = static_cast<int>(blocks.width),
                   .state_width = static_cast<int>(blocks.states),
                   .chunks = static_cast<int>(blocks.chunks),
                   .inner_states = static_cast<int>(blocks.inner_states()),
                   .parts = static_cast<int>(blocks.parts),
                   .width_tiles = static_cast<int>(blocks.width_tiles),
                   .state_tiles = static_cast<int>(blocks.state_tiles),
                   .whole_states = blocks.states % kChunk<T> == 0};
  if constexpr (requires { args.c; }) call.c = head_tensor<T>(args.c);
  if constexpr (requires { args.starts; }) call.starts = address_of<int32_t>(args.starts);
  if constexpr (requires { args.initial; }) {
    call.initial = address_of<float>(args.initial);
    call.start = call.initial == nullptr ? 0 : -1;
    call.whole_states = call.whole_states && are_aligned({call.initial});
  }
  return call;
}

// Launches `kernel` with `blocks` blocks of kScanThreads threads, and shared memory for Shared.
// Does nothing if blocks is 0.
template <class Shared, class... Parameters, class... Arguments>
void launch_scan(const char* name, void (*kernel)(Parameters...), int64_t blocks, Stream& stream,
                 const Arguments&... arguments) {
  if (blocks == 0) return;
  check_blocks(name, blocks);
  static_assert(sizeof(Shared) <= kSharedEverywhere);
  allow_dynamic_shared(kernel, sizeof(Shared));
  launch(name, kernel,
         Grid{.blocks = dim3(static_cast<unsigned>(blocks)),
              .threads = dim3(kScanThreads),
              .dynamic_shared = sizeof(Shared)},
         stream, arguments...);
}

// The steps of a scan, for float, Bf16 and F16. find_texts fills the texts of a call that continues
// them, prepare_tokens call.tokens, chunk_states and pass_states call.states, chunk_outputs y.
// Backward needs `dstates`, which are filled in the same way, from the last chunk on, by
// chunk_state_gradients and pass_state_gradients; dfinal: the gradients of the states after the
// last chunks [B,H,P,N], or null. carry_state writes StateCarryArgs::state and decay, which may be
// null.
template <class T>
void find_texts(const ScanCall<T>& call, int64_t sequences, ScanText* texts, Stream& stream);
template <class T>
void prepare_tokens(const ScanCall<T>& call, int64_t sequences, Stream& stream);
template <class T>
void chunk_states(const ScanCall<T>& call, int64_t sequences, Stream& stream);
template <class T>
void pass_states(const ScanCall<T>& call, int64_t sequences, Stream& stream);
template <class T>
void chunk_outputs(const ScanCall<T>& call, int64_t sequences, Stream& stream);
template <class T>
void chunk_state_gradients(const ScanCall<T>& call, int64_t sequences, float* dstates,
                           Stream& stream);
template <class T>
void pass_state_gradients(const ScanCall<T>& call, int64_t sequences, float* dstates,
                          const float* dfinal, Stream& stream);
template <class T>
void carry_state(const ScanCall<T>& call, int64_t sequences, bool gradient, float* state,
                 float* decay, Stream& stream);

}  // namespace megatron::kernels::cuda
