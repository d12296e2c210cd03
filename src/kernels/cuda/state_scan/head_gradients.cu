// Gradients of x, steps and numbers, and those of the products c b^T summed over heads.
#include "kernels/cuda/state_scan/gradients.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct HeadGradientTiles {
  ScanTile<T> x, dy, left, right, weights;
  ScanToken tokens[kSide];
  // Sums over j, and over i, of M_ij dM_ij with j < i, the latter without D_j. Their differences
  // are summed over a chunk; for f32 they would lose what they have in common.
  using Sum = std::conditional_t<ScanSums<T>::kTensorCores, float, double>;
  Sum rows[kSide], columns[kScanWarps][kSide];
  float diagonal[kSide];  // L_ii c_i b_i dM_ii
  float dd[kSide];        // dM_ii
  float later[kSide];     // L_lj x_j dS b_j
};

// Sums of a head over a chunk's tokens.
struct NumberSums {
  double da_log, ddt_bias, dd;
};

// Writes ddt and adds up the sums. Each lane of the calling warp has two adjacent tokens.
template <class T>
__device__ NumberSums differentiate_steps(const ScanGradients<T>& work, const HeadsOfChunk& at,
                                          const ScanText& text, int head,
                                          const HeadGradientTiles<T>& tiles) {
  const ScanCall<T>& call = work.call;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t index = call.head_index(at.sequence, at.chunk, head);
  double column[2];
  double inherited[2], change[2];  // change: of the gradient from a token's decay to the next one's
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    column[e] = 0;
    for (int warp = 0; warp < kScanWarps; ++warp)
      column[e] += static_cast<double>(tiles.columns[warp][t]);
    inherited[e] = work.inherited[index * kSide + t];
    change[e] = static_cast<double>(tiles.tokens[t].step) *
                    (column[e] + static_cast<double>(tiles.later[t])) -
                static_cast<double>(tiles.rows[t]) - inherited[e];
  }
  double before = change[0] + change[1];
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const double other = __shfl_up_sync(kAllLanes, before, distance);
    if (lane >= distance) before += other;
  }
  before -= change[0] + change[1];
  const double first =
      warp_sum(inherited[0] + inherited[1]) + static_cast<double>(work.decayed[index]);
  const double rate = static_cast<double>(expf(call.numbers.a_log[head]));
  NumberSums sums{0, 0, 0};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    if (t >= text.end_of(at.chunk)) continue;
    const int64_t token = text.column_of(at.chunk) + t;
    const double ddecay = first + before + (e == 0 ? 0.0 : change[0]);
    const double dstep = column[e] + static_cast<double>(tiles.diagonal[t]) +
                         static_cast<double>(tiles.later[t]) - rate * ddecay;
    const float raw = to_float(call.dt.at(at.sequence, token, head)) + call.numbers.dt_bias[head];
    const float step = softplus(raw);
    const bool passes = call.numbers.min_step <= step && step <= call.numbers.max_step;
    const float ddt = passes ? static_cast<float>(dstep) / (1.0f + expf(-raw)) : 0.0f;
    work.ddt.at(at.sequence, token, head) = from_float<T>(ddt);
    sums.da_log -= ddecay * rate * static_cast<double>(tiles.tokens[t].step);
    sums.ddt_bias += static_cast<double>(ddt);
    sums.dd += static_cast<double>(tiles.dd[t]);
  }
  return {warp_sum(sums.da_log), warp_sum(sums.ddt_bias), warp_sum(sums.dd)};
}

// From the sums of c b^T in scratch memory and `slopes` = dM: weights = M, dproducts += dG, and the
// sums of tiles.
template <class T>
__device__ void differentiate_weights(const float* products, ScanSums<T>& slopes,
                                      HeadGradientTiles<T>& tiles, ScanSums<T>& dproducts) {
  const ScanToken* tokens = tiles.tokens;
#pragma unroll
  for (int n = 0; n < ScanSums<T>::kCount; ++n) {
    const int i = ScanSums<T>::row(n), j = ScanSums<T>::column(n);
    const float decay = decay_of_pair(tokens, i, j), step = tokens[j].step;
    const float weight = sum_at(products, n) * decay;
    float& slope = slopes.of[n / 4][n % 4];
    tiles.weights.row(i)[j] = from_float<T>(weight * step);
    dproducts.of[n / 4][n % 4] = fmaf(slope * decay, step, dproducts.of[n / 4][n % 4]);
    if (i == j) {
      tiles.dd[i] = slope;
      tiles.diagonal[i] = weight * slope;
    }
    slope = i == j ? 0.0f : weight * slope;
  }
  slopes.sum_columns(tiles.columns);
  slopes.add_rows(tiles.rows, [&](int, int j) { return tokens[j].step; });
}

// dx in the columns from p on, for which tiles.x and tiles.dy are filled.
template <class T>
__device__ void differentiate_x(const ScanGradients<T>& work, const HeadsOfChunk& at,
                                const ScanText& text, int head, int p,
                                HeadGradientTiles<T>& tiles) {
  const ScanCall<T>& call = work.call;
  const ScanToken* tokens = tiles.tokens;
  const float* dstate = work.dstate_after(at.sequence, at.chunk, head);
  ScanSums<T> dx;
  if (dstate != nullptr) {
    for (int n = 0; n < call.state_width; n += kSide) {
      __syncthreads();
      fill_tile(tiles.left, call.b_rows(text, at.sequence, at.chunk, at.group), 0, n);
      fill_tile(tiles.right, call.rows_of_state(dstate), p, n);
      __syncthreads();
      dx.template add_product<Depth::inside, Depth::inside>(tiles.left, tiles.right);
    }
    const ScanToken& last = tokens[text.last_of(at.chunk)];
    dx.each([&](int j, int, float& x) { x *= decay_of_input(last, tokens[j], j); });
    dx.add_rows(tiles.later, [&](int j, int column) { return to_float(tiles.x.row(j)[column]); });
    dx.each([&](int j, int, float& x) { x *= tokens[j].step; });
  }
  __syncthreads();
  dx.template add_product<Depth::outside, Depth::outside>(tiles.weights, tiles.dy,
                                                          ScanSums<T>::upper());
  const float d = call.numbers.d[head];
  dx.each([&](int j, int column, float x) {
    tiles.right.row(j)[column] = from_float<T>(fmaf(d, to_float(tiles.dy.row(j)[column]), x));
  });
  __syncthreads();
  store_tile(
      tiles.right,
      call.rows_of(work.dx, nullptr, text, at.sequence, at.chunk, head, call.heads, call.width), p);
}

template <class T>
__global__ void __launch_bounds__(kScanThreads, 2) differentiate_heads(ScanGradients<T> work) {
  auto& tiles = *reinterpret_cast<HeadGradientTiles<T>*>(dynamic_shared());
  const ScanCall<T>& call = work.call;
  const HeadsOfChunk at(call);
  const ScanText text = call.text(at.sequence);
  // Scratch memory keeps the products for all heads, because registers are few; at the end it
  // receives their gradients.
  const int64_t tile = work.tile_index(at.sequence, at.chunk, at.part, at.group);
  float* const kept = work.products + tile * kSide * kSide;
  ScanSums<T> products, dproducts;
  for (int n = 0; n < call.state_width; n += kSide) {
    __syncthreads();
    fill_tile(tiles.left, call.c_rows(text, at.sequence, at.chunk, at.group), 0, n);
    fill_tile(tiles.right, call.b_rows(text, at.sequence, at.chunk, at.group), 0, n);
    __syncthreads();
    products.template add_product<Depth::inside, Depth::inside>(tiles.left, tiles.right,
                                                                ScanSums<T>::lower_result());
  }
  store_sums(products, kept);
  for (int head = at.first_head; head < at.end_head; ++head) {
    const auto fill = [&](int p) {
      __syncthreads();
      fill_tile(tiles.x, call.x_rows(text, at.sequence, at.chunk, head), 0, p);
      fill_tile(tiles.dy, call.y_rows(text, at.sequence, at.chunk, head), 0, p);
      __syncthreads();
    };
    __syncthreads();
    load_tokens(call, at.sequence, at.chunk, head, tiles.tokens);
    if (threadIdx.x < kSide) tiles.rows[threadIdx.x] = tiles.later[threadIdx.x] = 0;
    ScanSums<T> slopes;
    for (int p = 0; p < call.width; p += kSide) {
      fill(p);
      slopes.template add_product<Depth::inside, Depth::inside>(tiles.dy, tiles.x,
                                                                ScanSums<T>::lower_result());
    }
    __syncthreads();
    differentiate_weights(kept, slopes, tiles, dproducts);
    for (int p = 0; p < call.width; p += kSide) {
      if (call.width > kSide) fill(p);
      differentiate_x(work, at, text, head, p, tiles);
    }
    __syncthreads();
    if (threadIdx.x >= kWarp) continue;
    const NumberSums sums = differentiate_steps(work, at, text, head, tiles);
    if (threadIdx.x > 0) continue;
    const int64_t to = call.head_index(at.sequence, at.chunk, head);
    if (work.da_log != nullptr) work.da_log[to] = static_cast<float>(sums.da_log);
    if (work.ddt_bias != nullptr) work.ddt_bias[to] = static_cast<float>(sums.ddt_bias);
    if (work.dd != nullptr) work.dd[to] = static_cast<float>(sums.dd);
  }
  store_sums(dproducts, kept);
}

}  // namespace

template <class T>
void head_gradients(const ScanGradients<T>& work, Stream& stream) {
  const ScanCall<T>& call = work.call;
  const int64_t blocks = work.sequences * call.groups * call.parts * call.chunks;
  launch_scan<HeadGradientTiles<T>>("state_scan_backward, dx", differentiate_heads<T>, blocks,
                                    stream, work);
}

template void head_gradients(const ScanGradients<float>&, Stream&);
template void head_gradients(const ScanGradients<Bf16>&, Stream&);
template void head_gradients(const ScanGradients<F16>&, Stream&);

}  // namespace megatron::kernels::cuda
