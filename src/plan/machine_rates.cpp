#include "plan/machine_rates.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/clock.h"
#include "base/divide.h"
#include "base/error.h"
#include "kernels/cpu/products/bf16_products.h"
#include "kernels/cpu/products/library_product.h"
#include "kernels/table.h"

namespace megatron::plan {
namespace {

// Seconds of consecutive products that count as sustained, at most.
constexpr double kWindow = 0.05;
constexpr int64_t kCopied = int64_t{256} << 20;  // bytes on a host

double spread_of(const std::vector<double>& samples) {
  if (samples.empty()) return 0;
  const auto [least, most] = std::ranges::minmax(samples);
  return (most - least) / most;
}

// Numbers in [-1, 1) in which all bits vary.
void fill_randomly(Tensor& t) {
  constexpr int64_t kPart = int64_t{1} << 20;
  std::vector<float> numbers(static_cast<size_t>(std::min(kPart, t.elements())));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint64_t bits = (i + 1) * 0x9E3779B97F4A7C15u;
    numbers[i] = static_cast<float>((bits ^ bits >> 29) >> 40) * 0x1p-23f - 1.0f;
  }
  Tensor all = t.view({t.elements()});
  for (int64_t at = 0; at < all.elements(); at += kPart) {
    Tensor part = all.slice(0, at, std::min(kPart, all.elements() - at));
    copy_from(part, std::span<const float>(numbers).first(static_cast<size_t>(part.elements())));
  }
}

// Uses as many sums as hide the latency of an addition, and prefetches memory 2 KB ahead.
uint64_t sum_of_words(const uint64_t* words, int64_t count) {
  constexpr int64_t kSums = 16, kAhead = 256;
  uint64_t sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    __builtin_prefetch(words + i + kAhead);
    __builtin_prefetch(words + i + kAhead + kSums / 2);
    for (int64_t k = 0; k < kSums; ++k) sums[k] += words[i + k];
  }
  for (; i < count; ++i) sums[0] += words[i];
  return std::accumulate(sums, sums + kSums, uint64_t{0});
}

// Operands and arguments of a product.
class PeakProduct {
 public:
  PeakProduct(Runtime& runtime, DType type, const PeakShape& shape, bool transpose_b)
      : runtime_(runtime), clock_(runtime), transpose_b_(transpose_b) {
    Arena& arena = runtime.arena(MemoryClass::scratch);
    a_ = Tensor::empty(arena, {shape.m, shape.k}, type, "peak.a");
    b_ = transpose_b ? Tensor::empty(arena, {shape.n, shape.k}, type, "peak.b")
                     : Tensor::empty(arena, {shape.k, shape.n}, type, "peak.b");
    out_ = Tensor::empty(arena, {shape.m, shape.n}, type, "peak.out");
    flops_ = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
             static_cast<double>(shape.k);
    if (runtime.device().kind == DeviceKind::cuda) {
      fill_randomly(a_);
      fill_randomly(b_);
      return;
    }
    const kernels::Table& table = kernels::table(runtime.stream());
    table.fill({.out = a_, .value = 0.5}, runtime.stream());
    table.fill({.out = b_, .value = 0.25}, runtime.stream());
  }

  void run() const {
    kernels::table(runtime_.stream())
        .gemm({.a = a_, .b = b_, .out = out_, .transpose_b = transpose_b_}, runtime_.stream());
  }
  double one_seconds() {
    return clock_.mean_seconds(0, [this] { run(); });
  }
  double best_rate(double seconds) {
    double best = 0;
    const double window = std::min(seconds, kWindow), end = now_seconds() + seconds;
    do {
      best = std::max(best, flops_ / clock_.mean_seconds(window, [this] { run(); }));
    } while (now_seconds() < end);
    return best;
  }

 private:
  Runtime& runtime_;
  CallClock clock_;
  Tensor a_, b_, out_;
  bool transpose_b_;
  double flops_ = 0;
};

double best_of(Runtime& runtime, DType type, const PeakShape& shape, bool transpose_b,
               double seconds) {
  return PeakProduct(runtime, type, shape, transpose_b).best_rate(seconds);
}

// Products to measure on a GPU: the faster it is, the larger they must be.
std::vector<PeakShape> cubes(Runtime& runtime, DType type) {
  constexpr int64_t kSmallest = 128, kLargest = 8192;
  constexpr double kEnough = 1e-3;
  std::vector<PeakShape> shapes;
  for (int64_t n = kSmallest; n <= kLargest; n *= 2) {
    shapes.push_back({n, n, n});
    PeakProduct product(runtime, type, shapes.back(), true);
    product.run();  // creates the shape's plan first
    if (product.one_seconds() >= kEnough) break;
  }
  constexpr size_t kMeasured = 2;
  if (shapes.size() > kMeasured) shapes.erase(shapes.begin(), shapes.end() - kMeasured);
  return shapes;
}

constexpr PeakShape kHostShapes[] = {
    {1024, 1024, 1024}, {2048, 768, 768}, {1024, 3072, 768}, {1024, 768, 3072}, {768, 2048, 2048}};

}  // namespace

std::vector<PeakShape> sample_gemm_rates(Runtime& runtime, DType type, double seconds) {
  std::vector<PeakShape> shapes(std::begin(kHostShapes), std::end(kHostShapes));
  if (runtime.device().kind == DeviceKind::cuda) shapes = cubes(runtime, type);
  const double each = seconds / static_cast<double>(2 * shapes.size());
  for (PeakShape& shape : shapes) {
    for (const bool transpose_b : {true, false})
      shape.rate = std::max(shape.rate, best_of(runtime, type, shape, transpose_b, each));
  }
  return shapes;
}

double best_rate(const std::vector<PeakShape>& shapes) {
  return std::ranges::max_element(shapes, {}, &PeakShape::rate)->rate;
}

double library_gemm_rate(Runtime& runtime, DType type, double seconds) {
  using kernels::cpu::LibraryProduct;
  const bool multiplied =
      type == DType::f32 ||
      (type == DType::bf16 && kernels::cpu::bf16_products() != kernels::cpu::Bf16Products::widened);
  if (runtime.device().kind != DeviceKind::cpu || !multiplied) return 0;
  CallClock clock(runtime);
  const double each = seconds / std::size(kHostShapes);
  double best = 0;
  for (const PeakShape& shape : kHostShapes) {
    const LibraryProduct product{.m = shape.m,
                                 .n = shape.n,
                                 .k = shape.k,
                                 .b = LibraryProduct::Order::packed,
                                 .in = type,
                                 .out = type};
    const double flops = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                         static_cast<double>(shape.k);
    kernels::cpu::with_library_product(
        product, runtime.pool().size(), runtime.arena(MemoryClass::scratch),
        [&](const std::function<void()>& run) {
          const double window = std::min(each, kWindow), end = now_seconds() + each;
          do {
            best = std::max(best, flops / clock.mean_seconds(window, run));
          } while (now_seconds() < end);
        });
  }
  return best;
}

double copy_bandwidth(Runtime& runtime, int rounds) {
  BandwidthMeter meter(runtime);
  meter.sample(rounds);
  return meter.best();
}

void PeakMeter::sample(double seconds) {
  if (runtime_ != nullptr) {
    samples_.push_back(best_rate(sample_gemm_rates(*runtime_, type_, seconds)));
  } else {
    Runtime own(device_, threads_);
    samples_.push_back(best_rate(sample_gemm_rates(own, type_, seconds)));
  }
}

double PeakMeter::peak() const { return samples_.empty() ? 0 : std::ranges::max(samples_); }

double PeakMeter::spread() const { return spread_of(samples_); }

BandwidthMeter::BandwidthMeter(Runtime& runtime) : runtime_(runtime), clock_(runtime) {
  if (runtime.device().kind != DeviceKind::cuda) {
    make(kCopied);
    return;
  }
  constexpr int64_t kSmallest = int64_t{1} << 20, kLargest = int64_t{1} << 30;
  constexpr double kEnough = 2e-4;
  for (int64_t bytes = kSmallest;; bytes *= 2) {
    make(bytes);
    copy_once();
    if (bytes == kLargest || copy_once() >= kEnough) return;
  }
}

void BandwidthMeter::make(int64_t bytes) {
  Arena& arena = runtime_.arena(MemoryClass::scratch);
  from_ = to_ = {};
  from_ = Tensor::empty(arena, {bytes / 4}, DType::f32, "rates.from");
  to_ = Tensor::empty(arena, {bytes / 4}, DType::f32, "rates.to");
  const kernels::Table& table = kernels::table(runtime_.stream());
  table.fill({.out = from_, .value = 1}, runtime_.stream());
  table.fill({.out = to_, .value = 1}, runtime_.stream());
}

double BandwidthMeter::copy_once() {
  return clock_.seconds([this] {
    kernels::table(runtime_.stream()).copy({.x = from_, .out = to_}, runtime_.stream());
  });
}

double BandwidthMeter::read_once() {
  constexpr int64_t kBlock = 1 << 14;  // words
  const auto* words = static_cast<const uint64_t*>(from_.raw());
  const int64_t count = from_.bytes() / static_cast<int64_t>(sizeof(uint64_t));
  const double begin = now_seconds();
  runtime_.pool().parallel_shares(ceil_div(count, kBlock), [&](int64_t block, int) {
    const int64_t first = block * kBlock;
    const uint64_t sum = sum_of_words(words + first, std::min(kBlock, count - first));
    read_.fetch_xor(sum, std::memory_order_relaxed);
  });
  return now_seconds() - begin;
}

double BandwidthMeter::sample(int rounds) {
  double least = copy_once();
  for (int round = 1; round < rounds; ++round) least = std::min(least, copy_once());
  return samples_.emplace_back(2 * static_cast<double>(from_.bytes()) / least);
}

double BandwidthMeter::sample_reading(int rounds) {
  MG_ASSERT(runtime_.device().is_host());
  double least = read_once();
  for (int round = 1; round < rounds; ++round) least = std::min(least, read_once());
  return reading_.emplace_back(static_cast<double>(from_.bytes()) / least);
}

double BandwidthMeter::best_reading() const {
  return reading_.empty() ? 0 : std::ranges::max(reading_);
}

double BandwidthMeter::best() const { return samples_.empty() ? 0 : std::ranges::max(samples_); }

double BandwidthMeter::spread() const { return spread_of(samples_); }

}  // namespace megatron::plan
