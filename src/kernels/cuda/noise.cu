#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/row_tokens.h"
#include "kernels/cuda/wide.h"

namespace megatron::kernels::cuda {
namespace {

// Each thread computes the four channels of one counter.
template <class T>
__global__ void __launch_bounds__(kThreads)
    jitter_groups(DeviceRowTokens tokens, uint64_t key, int64_t rows, int64_t width, float amount,
                  const T* x, T* out) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x, groups = (width + 3) / 4;
  const int64_t row = item / groups, group = item - row * groups;
  if (row >= rows) return;
  const DeviceRowTokens::Token token = tokens.at(static_cast<uint32_t>(row));
  const PhiloxWords words =
      dropout_words(key, token.sample, token.position, static_cast<uint32_t>(group));
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t channel = group * 4 + j;
    if (channel >= width) break;
    const float u = static_cast<float>(words.at[j] >> 8) * 0x1p-24f;
    const int64_t i = row * width + channel;
    out[i] = from_float<T>(to_float(x[i]) * (1 + amount * (2 * u - 1)));
  }
}

template <class C>
struct RandomLogits {
  DeviceRowTokens tokens;  // without sample ids if they are not needed
  uint64_t key;
  RandomLogitsArgs::Of of;
  double scale;
  int64_t rows, experts;
  const C* x;
  C* out;
};

template <class C>
__global__ void __launch_bounds__(kThreads) fill_logits(RandomLogits<C> work) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = i / work.experts, expert = i - row * work.experts;
  if (row >= work.rows) return;
  using Of = RandomLogitsArgs::Of;
  DeviceRowTokens::Token token{};
  if (work.of != Of::all) token = work.tokens.at(static_cast<uint32_t>(row));
  if (work.of == Of::sample) token.position = 0;
  const PhiloxWords words =
      dropout_words(work.key, token.sample, token.position, static_cast<uint32_t>(expert));
  uint64_t sum = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) sum += words.at[j];
  const double g = std::sqrt(3.0) * (static_cast<double>(sum) / 4294967296.0 - 2);
  const double x = work.x == nullptr ? 0.0 : static_cast<double>(work.x[i]);
  work.out[i] = static_cast<C>(x + work.scale * g);
}

template <class C>
void fill_as(const RandomLogitsArgs& args, Stream& stream) {
  const int64_t rows = args.out.size(0), experts = args.out.size(1);
  const RandomLogits<C> work{.tokens = device_row_tokens("random_logits", args.rows.tokens, rows),
                             .key = args.rows.key(),
                             .of = args.of,
                             .scale = args.scale,
                             .rows = rows,
                             .experts = experts,
                             .x = address_of<C>(args.x),
                             .out = address_of<C>(args.out)};
  launch("random_logits", fill_logits<C>, grid_for(rows * experts), stream, work);
}

}  // namespace

void jitter(const JitterArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), width = args.x.size(1);
  if (rows * width == 0) return;
  for_storage_type("jitter", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch("jitter", jitter_groups<T>, grid_for(rows * ((width + 3) / 4)), stream,
           device_row_tokens("jitter", args.rows.tokens, rows), args.rows.key(), rows, width,
           static_cast<float>(args.width), address_of<T>(args.x), address_of<T>(args.out));
  });
}

void random_logits(const RandomLogitsArgs& args, Stream& stream) {
  if (args.out.elements() == 0) return;
  args.out.dtype() == DType::f64 ? fill_as<double>(args, stream) : fill_as<float>(args, stream);
}

}  // namespace megatron::kernels::cuda
