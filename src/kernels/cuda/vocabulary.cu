#include "kernels/cuda/dynamic_shared.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/logits.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kFloats = kChunk<float>;

struct Columns {
  const float* logits;
  float *exponentials, *stats;  // exponentials: may be null
  const int32_t* labels;
  const float* weights;
  int64_t width, logits_apart, exponentials_apart, first, keeps;
  bool aligned;
};

// One block per row, here and below.
__global__ void __launch_bounds__(kLogitsThreads) stats_of_row(Columns a) {
  __shared__ float partial[kWarp];
  const int64_t t = blockIdx.x;
  const bool counts = a.weights[t] != 0;
  const LogitsRow<float> row{a.logits + t * a.logits_apart,
                             reinterpret_cast<Vector<float, kFloats>*>(dynamic_shared()), a.width,
                             a.keeps, a.aligned};
  const int64_t label = counts ? a.labels[t] - a.first : -1;
  const float of_label = label >= 0 && label < a.width ? row.x[label] : -INFINITY;
  SoftmaxSum all;
  if (counts) all = row.sum(partial);
  if (threadIdx.x == 0) {
    a.stats[3 * t] = all.most;
    a.stats[3 * t + 1] = all.sum;
    a.stats[3 * t + 2] = of_label;
  }
  if (a.exponentials == nullptr) return;
  float* exponentials = a.exponentials + t * a.exponentials_apart;
  if (!counts) return clear_row<kFloats>(exponentials, a.width, a.aligned);
  row.each<false>([&](const Vector<float, kFloats>& values, int64_t i, int64_t count) {
    Vector<float, kFloats> out;
#pragma unroll
    for (int j = 0; j < kFloats; ++j) out.at[j] = exp_approx(values.at[j] - all.most);
    store_logits(exponentials + i, out, count, a.aligned);
  });
}

// D: type of dlogits.
template <class D>
struct Parts {
  const float *stats, *exponentials;
  const int32_t* labels;
  const float* weights;
  float *loss, *hits;  // hits: may be null
  D* dlogits;          // may be null
  int64_t ranks, rows, rank, width, exponentials_apart, dlogits_apart, first;
  bool aligned;
};

// Combines all ranks' statistics of a token. One thread computes them, in the order of the ranks.
struct TokenStats {
  float loss, share;  // share: factor that turns this rank's exponentials into probabilities
  bool hit;           // no logit is above the label's
};
__device__ TokenStats token_stats(const float* stats, int64_t ranks, int64_t rows, int64_t rank,
                                  int64_t t) {
  float most = -INFINITY, of_label = -INFINITY, sum = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const float* of_rank = stats + (r * rows + t) * 3;
    most = fmaxf(most, of_rank[0]);
    if (of_rank[2] != -INFINITY) of_label = of_rank[2];
  }
  for (int64_t r = 0; r < ranks; ++r) {
    const float* of_rank = stats + (r * rows + t) * 3;
    sum = fmaf(of_rank[1], expf(of_rank[0] - most), sum);
  }
  return {logf(sum) + (most - of_label), expf(stats[(rank * rows + t) * 3] - most) / sum,
          of_label >= most};
}

template <class D>
__global__ void __launch_bounds__(kLogitsThreads) divided_loss_of_row(Parts<D> a) {
  __shared__ TokenStats shared;
  const int64_t t = blockIdx.x;
  const float weight = a.weights[t];
  if (threadIdx.x == 0) {
    shared = {0, 0, false};
    if (weight != 0) shared = token_stats(a.stats, a.ranks, a.rows, a.rank, t);
    a.loss[t] = shared.loss;
    if (a.hits != nullptr) a.hits[t] = shared.hit ? 1.0f : 0.0f;
  }
  __syncthreads();
  if (a.dlogits == nullptr) return;
  D* dlogits = a.dlogits + t * a.dlogits_apart;
  if (weight == 0) return clear_row<kFloats>(dlogits, a.width, a.aligned);
  const int64_t label = a.labels[t] - a.first;
  const float share = shared.share, scale = share * weight;
  const LogitsRow<float> row{a.exponentials + t * a.exponentials_apart, nullptr, a.width, 0,
                             a.aligned};
  row.each<false>([&](const Vector<float, kFloats>& values, int64_t i, int64_t count) {
    Vector<D, kFloats> out;
#pragma unroll
    for (int j = 0; j < kFloats; ++j) out.at[j] = from_float<D>(values.at[j] * scale);
    if (label >= i && label < i + kFloats) {
#pragma unroll
      for (int j = 0; j < kFloats; ++j)
        if (i + j == label) out.at[j] = from_float<D>(weight * fmaf(values.at[j], share, -1.0f));
    }
    store_logits(dlogits + i, out, count, a.aligned);
  });
}

template <class D>
void divided_losses(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  const bool gradient = args.dlogits.defined();
  Parts<D> a{.stats = address_of<float>(args.stats),
             .exponentials = gradient ? address_of<float>(args.exponentials) : nullptr,
             .labels = address_of<int32_t>(args.labels),
             .weights = address_of<float>(args.weights),
             .loss = address_of<float>(args.loss),
             .hits = address_of<float>(args.hits),
             .dlogits = address_of<D>(args.dlogits),
             .ranks = args.stats.size(0),
             .rows = args.stats.size(1),
             .rank = args.rank,
             .width = gradient ? args.dlogits.size(1) : 0,
             .exponentials_apart = gradient ? rows_apart(args.exponentials) : 0,
             .dlogits_apart = rows_apart(args.dlogits),
             .first = args.first,
             .aligned = false};
  a.aligned = a.exponentials_apart % kFloats == 0 && a.dlogits_apart % kFloats == 0 &&
              are_aligned({a.exponentials, a.dlogits});
  const Grid grid{.blocks = dim3(static_cast<unsigned>(a.rows)),
                  .threads = dim3(logits_threads(ceil_div(a.width, kFloats)))};
  launch("vocabulary_cross_entropy", divided_loss_of_row<D>, grid, stream, a);
}

void require_f32(const char* kernel, DType type) {
  if (type != DType::f32) refuse_type(kernel, type);
}

}  // namespace

void vocabulary_stats(const VocabularyStatsArgs& args, Stream& stream) {
  require_f32("vocabulary_stats", args.logits.dtype());
  const int64_t rows = args.logits.size(0), width = args.logits.size(1);
  if (rows == 0) return;
  const int64_t chunks = ceil_div(width, kFloats), memory = logits_memory(stream);
  Columns a{.logits = address_of<float>(args.logits),
            .exponentials = address_of<float>(args.exponentials),
            .stats = address_of<float>(args.stats),
            .labels = address_of<int32_t>(args.labels),
            .weights = address_of<float>(args.weights),
            .width = width,
            .logits_apart = rows_apart(args.logits),
            .exponentials_apart = rows_apart(args.exponentials),
            .first = args.first,
            .keeps = args.exponentials.defined() ? std::min(chunks, memory / kVectorBytes) : 0,
            .aligned = false};
  a.aligned = a.logits_apart % kFloats == 0 && a.exponentials_apart % kFloats == 0 &&
              are_aligned({a.logits, a.exponentials});
  const Grid grid{.blocks = dim3(static_cast<unsigned>(rows)),
                  .threads = dim3(logits_threads(chunks)),
                  .dynamic_shared = static_cast<size_t>(a.keeps * kVectorBytes)};
  allow_dynamic_shared(stats_of_row, static_cast<size_t>(memory));
  launch("vocabulary_stats", stats_of_row, grid, stream, a);
}

void vocabulary_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  require_f32("vocabulary_cross_entropy", args.stats.dtype());
  if (args.stats.size(1) == 0) return;
  if (!args.dlogits.defined()) return divided_losses<float>(args, stream);
  for_storage_type("vocabulary_cross_entropy", args.dlogits.dtype(),
                   [&](auto type) { divided_losses<decltype(type)>(args, stream); });
}

}  // namespace megatron::kernels::cuda
