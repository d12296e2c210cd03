// Backward pass of a scan, in the notation of call.h. With dS the gradient of the state after a
// chunk, l its last token, S the state before it and dy that of y,
//   dM_ij = dy_i x_j,   dG_ij = L_ij D_j dM_ij (of c_i b_j),
//   dx_j = sum over i of M_ij dy_i + L_lj D_j dS b_j + d dy_j,
//   dc_i = sum over heads of E_i S^T dy_i + sum over j of dG_ij b_j,
//   db_j = sum over heads of L_lj D_j dS^T x_j + sum over i of dG_ij c_i.
// The gradient of the logarithm of token t's decay is the sum of M_ij dM_ij over j < t <= i, of
// E_i c_i S^T dy_i over i >= t, and of L_lj D_j x_j dS b_j over j < t, and E_l times S dS; D_t has,
// besides -A times this, the sums of its own factors.
#pragma once

#include "kernels/cuda/state_scan/chunk_state.h"
#include "kernels/cuda/state_scan/groups.h"

namespace megatron::kernels::cuda {

template <class T>
struct ScanGradients {
  ScanCall<T> call;
  HeadTensor<T> dx, db, dc;
  StepTensor<T> ddt;
  // Parts of StateScanBackwardScratch.
  const float* dstates;
  const float* dfinal;  // StateScanBackwardArgs; may be null
  float *inherited, *decayed, *products, *db_parts, *dc_parts;
  float *da_log, *ddt_bias, *dd;  // null: not computed
  int64_t sequences;

  // Gradient of the state after a chunk; null: 0.
  __device__ const float* dstate_after(int64_t sequence, int chunk, int head) const {
    if (chunk + 1 >= call.chunks)
      return dfinal == nullptr ? nullptr
                               : dfinal + (sequence * call.heads + head) * call.state_size();
    return dstates + call.state_index(sequence, chunk, head);
  }
  // Index in tiles [parts,B,chunks,G].
  __device__ int64_t tile_index(int64_t sequence, int chunk, int part, int group) const {
    return ((part * sequences + sequence) * call.chunks + chunk) * call.groups + group;
  }
};

// The steps of backward after the states and their gradients: `inherited`, `decayed`, db_parts and
// dc_parts; then dx, ddt, `products` and sums of numbers; then db and dc.
template <class T>
void state_terms(const ScanGradients<T>& work, Stream& stream);
template <class T>
void head_gradients(const ScanGradients<T>& work, Stream& stream);
template <class T>
void group_gradients(const ScanGradients<T>& work, Stream& stream);

}  // namespace megatron::kernels::cuda
