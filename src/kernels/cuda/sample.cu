#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/logits.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/reduce.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kMaxThreads = 1024;

// A token's position in the descending order of its row, as one number: larger for larger logits
// and, among equal ones, for lower ids.
using Rank = uint64_t;
constexpr uint32_t kLastId = 0xffffffffu;
constexpr Rank kNan = ~Rank{0};
constexpr Rank kFinite = Rank{0x00800000} << 32;  // the lowest rank of a logit above -infinity

__device__ Rank rank_of(float logit, int id) {
  if (logit != logit) return kNan;
  const unsigned bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const unsigned key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return Rank{key} << 32 | (kLastId - static_cast<unsigned>(id));
}
__device__ float logit_of(Rank rank) {
  const auto key = static_cast<unsigned>(rank >> 32);
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

__device__ Rank block_first(Rank x, uint64_t* partial) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto of_warp = [](Rank first) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
      first = max(first, __shfl_xor_sync(kAllLanes, first, distance));
    return first;
  };
  x = of_warp(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = of_warp(lane < static_cast<int>(blockDim.x) / kWarp ? partial[lane] : 0);
  __syncthreads();
  return x;
}

// The row of one block. Every thread calls these functions and gets the same result.
template <class T>
struct SampledRow {
  const T* logits;
  int width;
  double temperature, largest;
  uint64_t* partial;  // kWarp values in shared memory

  __device__ Rank rank(int id) const { return rank_of(to_float(logits[id]), id); }

  __device__ Rank first() const {
    Rank first = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) first = max(first, rank(i));
    return block_first(first, partial);
  }

  __device__ uint64_t weight(float logit) const {
    return static_cast<uint64_t>(llrint(kSampleUnit * exp((logit - largest) / temperature)));
  }

  struct Sums {
    uint64_t tokens, weight;
  };
  // Sums over the ranks in [begin, end).
  template <bool kWeights>
  __device__ Sums sums(Rank begin, Rank end) const {
    Sums mine{0, 0};
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      const float logit = to_float(logits[i]);
      const Rank at = rank_of(logit, i);
      if (at < begin || at >= end) continue;
      ++mine.tokens;
      if (kWeights) mine.weight += weight(logit);
    }
    mine.tokens = block_sum(mine.tokens, partial);
    if (kWeights) mine.weight = block_sum(mine.weight, partial);
    return mine;
  }

  // The highest rank in [low, end) such that the tokens from that rank up number or weigh at least
  // `wanted`; those from `low` up must. Bisects the range.
  template <bool kWeights>
  __device__ Rank cut(Rank low, Rank end, uint64_t wanted) const {
    uint64_t above = 0;
    while (end - low > 1) {
      const Rank middle = low + (end - low) / 2;
      const Sums found = sums<kWeights>(middle, end);
      const uint64_t more = kWeights ? found.weight : found.tokens;
      if (above + more < wanted) {
        above += more;
        end = middle;
        continue;
      }
      low = middle;
      if (found.tokens == 1) break;
    }
    return low;
  }

  __device__ uint64_t kept(int id, Rank low, double least) const {
    if (id >= width) return 0;
    const float logit = to_float(logits[id]);
    if (rank_of(logit, id) < low) return 0;
    const uint64_t q = weight(logit);
    return static_cast<double>(q) < least ? 0 : q;
  }

  // Draws among tokens that weigh at least `least` and rank at least `low`. The warp whose part of
  // the row contains the drawn token writes its id.
  __device__ void draw(Rank low, double least, double uniform, int32_t* id) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int warps = blockDim.x / kWarp;
    const int part = (width + warps * kWarp - 1) / (warps * kWarp) * kWarp;
    const int begin = warp * part, end = min(begin + part, width);
    uint64_t mine = 0;
    for (int i = begin + lane; i < end; i += kWarp) mine += kept(i, low, least);
    mine = warp_sum(mine);
    if (lane == 0) partial[warp] = mine;
    __syncthreads();
    uint64_t before = 0, total = 0;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) before += partial[w];
      total += partial[w];
    }
    const auto below = static_cast<uint64_t>(uniform * static_cast<double>(total));
    const uint64_t wanted = min(below, total - 1);
    if (wanted < before || wanted >= before + mine) return;
    for (int first = begin; first < end; first += kWarp) {
      uint64_t sum = first + lane < end ? kept(first + lane, low, least) : 0;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const uint64_t other = __shfl_up_sync(kAllLanes, sum, distance);
        if (lane >= distance) sum += other;
      }
      const unsigned reached = __ballot_sync(kAllLanes, before + sum > wanted ? 1 : 0);
      if (reached == 0) {
        before += __shfl_sync(kAllLanes, sum, kWarp - 1);
        continue;
      }
      if (lane == __ffs(static_cast<int>(reached)) - 1) *id = first + lane;
      return;
    }
  }
};

// One block per row.
template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    sample_row(const T* logits, int64_t apart, int width, const double* rules, int32_t* ids) {
  __shared__ uint64_t partial[kWarp];
  const int64_t r = blockIdx.x;
  rules += r * kSampleRules;
  SampledRow<T> row{logits + r * apart, width, rules[kTemperature], 0, partial};
  if (row.temperature < 0) {
    if (threadIdx.x == 0) ids[r] = -1;
    return;
  }
  const Rank first = row.first();
  row.largest = first == kNan ? NAN : logit_of(first);
  const bool finite = fabs(row.largest) < INFINITY;
  if (!finite || row.temperature == 0) {
    const auto id = static_cast<int32_t>(kLastId - static_cast<unsigned>(first));
    if (threadIdx.x == 0) ids[r] = finite ? id : -1;
    return;
  }
  Rank low = kFinite;
  const double k = rules[kTopK], p = rules[kTopP];
  if (k > 0 && k < width) {
    const auto wanted = static_cast<uint64_t>(k);
    if (row.template sums<false>(low, first + 1).tokens > wanted)
      low = row.template cut<false>(low, first + 1, wanted);
  }
  if (p < 1) {
    const uint64_t total = row.template sums<true>(low, first + 1).weight;
    const auto wanted = static_cast<uint64_t>(ceil(p * static_cast<double>(total)));
    low = row.template cut<true>(low, first + 1, max(uint64_t{1}, min(wanted, total)));
  }
  row.draw(low, rules[kMinP] * kSampleUnit, rules[kUniform], ids + r);
}

}  // namespace

void sample(const SampleArgs& args, Stream& stream) {
  for_storage_type("sample", args.logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t rows = args.logits.size(0), width = args.logits.size(1);
    if (rows == 0) return;
    constexpr int64_t kOfThread = 8;  // least logits per thread in long rows
    const int64_t threads = std::clamp<int64_t>(ceil_div(ceil_div(width, kOfThread), kWarp) * kWarp,
                                                kWarp, kMaxThreads);
    const Grid grid{.blocks = dim3(static_cast<unsigned>(rows)),
                    .threads = dim3(static_cast<unsigned>(threads))};
    launch("sample", sample_row<T>, grid, stream, address_of<T>(args.logits),
           rows_apart(args.logits), static_cast<int>(width), address_of<double>(args.rules),
           address_of<int32_t>(args.ids));
  });
}

}  // namespace megatron::kernels::cuda
