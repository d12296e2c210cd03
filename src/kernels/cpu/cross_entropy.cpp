#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

constexpr float kNone = -std::numeric_limits<float>::infinity();

template <class T>
float largest(const T* x, int64_t n) {
  const V lowest = set(kNone);
  V most[4] = {lowest, lowest, lowest, lowest};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int64_t k = 0; k < 4; ++k) most[k] = hn::Max(most[k], load(x + i + k * kLanes));
  }
  for_vectors(i, n, [&](int64_t j, auto part) {
    most[0] = hn::Max(most[0], keep_or(load(x + j, part), lowest, part));
  });
  return hn::GetLane(
      hn::MaxOfLanes(kFloats, hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]))));
}

// Rows per block: several, so that reading and writing overlap, but few enough to have blocks for
// many threads. Depends on the shape alone: the maximum of a block's first row is found in a
// different order than those of the others, which can change the sign of a zero.
int64_t block_height(int64_t rows, int64_t vocabulary) {
  constexpr int64_t kRows = 8, kBlocks = 64;
  return std::max(rows_per_block(vocabulary), std::min(kRows, rows / kBlocks));
}

// Reads the row after the current one and finds its maximum, a part at a time, so that memory is
// always busy.
template <class T>
class NextRow {
 public:
  NextRow(const T* x, int64_t n) : x_(x), n_(n), most_(set(kNone)) {}
  HWY_INLINE void take() {
    if (at_ + kLanes > n_) return;
    __builtin_prefetch(x_ + at_ + 4 * kElementsAhead<T>);
    most_ = hn::Max(most_, load(x_ + at_));
    at_ += kLanes;
  }
  float largest() {
    while (at_ + kLanes <= n_) take();
    if (at_ < n_) {
      const Part part{n_ - at_};
      most_ = hn::Max(most_, keep_or(load(x_ + at_, part), set(kNone), part));
    }
    return hn::GetLane(hn::MaxOfLanes(kFloats, most_));
  }

 private:
  const T* x_;
  int64_t n_, at_ = 0;
  V most_;
};

// Writes the gradient of a row from its exponentials, a part at a time: exponentials * scale, but
// of_label at the label, which may lie outside of the row. exponentials may be dx.
template <class D>
class GradientOfRow {
 public:
  GradientOfRow() = default;
  GradientOfRow(const float* exponentials, Output<D> dx, int64_t n, float scale, int64_t label,
                float of_label)
      : exponentials_(exponentials),
        dx_(dx),
        n_(n),
        label_(label),
        scale_(scale),
        of_label_(of_label) {
    for (const int64_t head = before_line(dx, n); at_ < head;)
      write(Part{std::min(2 * kLanes, head - at_)});
  }
  HWY_INLINE void take() {
    if (at_ + 2 * kLanes <= n_) {
      write(Whole{});
    } else if (at_ < n_) {
      write(Part{n_ - at_});
    }
  }
  void write_rest() {
    while (at_ < n_) take();
  }

 private:
  static constexpr int64_t count(Whole) { return 2 * kLanes; }
  static int64_t count(Part part) { return part.n; }
  template <class P>
  HWY_INLINE void write(P part) {
    const V factor = set(scale_), lanes = hn::Iota(kFloats, 0);
    const VectorPair terms = load_pair(exponentials_ + at_, part);
    VectorPair v{hn::Mul(terms.a, factor), hn::Mul(terms.b, factor)};
    const auto lane = static_cast<uint64_t>(label_ - at_);
    if (lane < static_cast<uint64_t>(2 * kLanes)) {
      const auto replaced = [&](V x, uint64_t at) {
        return hn::IfThenElse(hn::Eq(lanes, set(static_cast<float>(at))), set(of_label_), x);
      };
      v = {replaced(v.a, lane), replaced(v.b, lane - static_cast<uint64_t>(kLanes))};
    }
    store_in_order(v, dx_ + at_, part);
    at_ += count(part);
  }

  const float* exponentials_ = nullptr;
  Output<D> dx_{nullptr, false};
  int64_t n_ = 0, at_ = 0, label_ = 0;
  float scale_ = 0, of_label_ = 0;
};

// Sum of exp(x - shift): f32 sums of 4096 elements, added in f64. Stores the terms in exponentials
// if it is not null; it may be x, or data that `before` still reads. Advances `next` by its whole
// vectors and completes `before`, so that reading, computing and writing overlap.
template <class T, class D>
double sum_of_exponentials(const T* x, int64_t n, V shift, float* exponentials, NextRow<T>& next,
                           GradientOfRow<D>& before) {
  constexpr int64_t kChunk = 4096;
  NextRow<T> taken = next;
  GradientOfRow<D> written = before;
  double sum = 0;
  written.take();
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    sum += sum_of(std::min(kChunk, n - begin), [&](int64_t i, auto part) {
      if (i / kLanes % 2 == 0) written.take();
      taken.take();
      const V e = exp_up_to_90(hn::Sub(load(x + begin + i, part), shift));
      if (exponentials != nullptr) store(e, exponentials + begin + i, part);
      return e;
    });
  }
  next = taken;
  before = written;
  return sum;
}

template <class T, class D>
void cross_entropy_rows(const CrossEntropyArgs& args, Stream& stream) {
  const int64_t vocabulary = args.logits.size(1);
  const T* logits = args.logits.data<T>();
  // In f32 the gradient tensor first holds the exponentials.
  const Output<D> dlogits =
      !args.dlogits.defined()
          ? Output<D>{nullptr, false}
          : Output<D>{args.dlogits.data<D>(),
                      !std::is_same_v<D, float> && passes_caches(args.dlogits, {logits})};
  const int32_t* labels = args.labels.data<int32_t>();
  const float* weights = args.weights.data<float>();
  float* loss = args.loss.data<float>();
  float* hits = args.hits.defined() ? args.hits.data<float>() : nullptr;
  constexpr bool kInPlace = std::is_same_v<D, float>;
  const Tensor memory = cross_entropy_scratch(args, stream);
  const int64_t rows = args.logits.size(0), height = block_height(rows, vocabulary);
  for_each_block(stream, ceil_div(rows, height), [&](int64_t block, int thread) {
    const int64_t end = std::min(rows, (block + 1) * height);
    float most = kNone;
    bool known = false;  // maximum of row t is known from reading ahead
    GradientOfRow<D> before;
    for (int64_t t = block * height; t < end; ++t) {
      const Output<D> dx = dlogits.p == nullptr ? dlogits : dlogits + t * vocabulary;
      if (weights[t] == 0) {
        loss[t] = 0;
        if (hits != nullptr) hits[t] = 0;
        if (dx.p != nullptr) std::fill_n(dx.p, vocabulary, D(0.0f));
        known = false;
        continue;
      }
      MG_CHECK(labels[t] >= 0 && labels[t] < vocabulary,
               "cross_entropy: label {} of token {} is outside the vocabulary of {}; give the "
               "token weight 0 to ignore it",
               labels[t], t, vocabulary);
      float* exponentials = nullptr;
      if constexpr (kInPlace) {
        exponentials = dx.p;
      } else if (dx.p != nullptr) {
        exponentials = memory.data<float>() + thread * vocabulary;
      }
      const T* x = logits + t * vocabulary;
      if (!known) most = largest(x, vocabulary);
      const double above =
          static_cast<double>(most) - static_cast<double>(static_cast<float>(x[labels[t]]));
      if (hits != nullptr) hits[t] = above <= 0 ? 1 : 0;
      NextRow<T> next(x + vocabulary, t + 1 < end ? vocabulary : 0);
      const double sum = sum_of_exponentials(x, vocabulary, set(most), exponentials, next, before);
      loss[t] = static_cast<float>(std::log(sum) + above);
      most = next.largest();
      known = true;
      if (dx.p == nullptr) continue;
      const auto share = static_cast<float>(1 / sum);
      before = GradientOfRow<D>(exponentials, dx, vocabulary, share * weights[t], labels[t],
                                weights[t] * (exponentials[labels[t]] * share - 1.0f));
    }
    before.write_rest();
  });
}

void softmax_cross_entropy(const CrossEntropyArgs& args, Stream& stream) {
  for_storage_type("cross_entropy", args.logits.dtype(), [&](auto type) {
    const DType gradient = args.dlogits.defined() ? args.dlogits.dtype() : DType::f32;
    for_storage_type("cross_entropy", gradient, [&](auto gradient_type) {
      cross_entropy_rows<decltype(type), decltype(gradient_type)>(args, stream);
    });
  });
}

void stats_of_rows(const VocabularyStatsArgs& args, Stream& stream) {
  const int64_t vocabulary = args.logits.size(1);
  const float* logits = args.logits.data<float>();
  float* exponentials = args.exponentials.defined() ? args.exponentials.data<float>() : nullptr;
  float* stats = args.stats.data<float>();
  const int32_t* labels = args.labels.data<int32_t>();
  const float* weights = args.weights.data<float>();
  const int64_t rows = args.logits.size(0);
  for_blocks(stream, rows, block_height(rows, vocabulary), [&](int64_t begin, int64_t end) {
    float most = kNone;
    bool known = false;  // maximum of row t is known from reading ahead
    for (int64_t t = begin; t < end; ++t) {
      const float* x = logits + t * vocabulary;
      float* out = stats + 3 * t;
      out[0] = out[2] = kNone;
      out[1] = 0;
      float* terms = exponentials == nullptr ? nullptr : exponentials + t * vocabulary;
      if (weights[t] == 0) {
        if (terms != nullptr) std::fill_n(terms, vocabulary, 0.0f);
        known = false;
        continue;
      }
      const int64_t label = labels[t] - args.first;
      if (label >= 0 && label < vocabulary) out[2] = x[label];
      out[0] = known ? most : largest(x, vocabulary);
      NextRow<float> next(x + vocabulary, t + 1 < end ? vocabulary : 0);
      GradientOfRow<float> none;
      out[1] =
          static_cast<float>(sum_of_exponentials(x, vocabulary, set(out[0]), terms, next, none));
      most = next.largest();
      known = true;
    }
  });
}

// Statistics of a token over all ranks.
struct TokenStats {
  double sum;  // of exp(logit - most) over the whole vocabulary
  float most, of_label;
};

TokenStats token_stats(const float* stats, int64_t ranks, int64_t rows, int64_t t) {
  TokenStats all{.sum = 0, .most = kNone, .of_label = kNone};
  for (int64_t r = 0; r < ranks; ++r) {
    const float* of_rank = stats + (r * rows + t) * 3;
    all.most = std::max(all.most, of_rank[0]);
    if (of_rank[2] != kNone) all.of_label = of_rank[2];
  }
  for (int64_t r = 0; r < ranks; ++r) {
    const float* of_rank = stats + (r * rows + t) * 3;
    all.sum += static_cast<double>(of_rank[1]) *
               std::exp(static_cast<double>(of_rank[0]) - static_cast<double>(all.most));
  }
  return all;
}

template <class D>
void divided_cross_entropy_rows(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  const int64_t ranks = args.stats.size(0), rows = args.stats.size(1);
  const float* stats = args.stats.data<float>();
  const int32_t* labels = args.labels.data<int32_t>();
  const float* weights = args.weights.data<float>();
  float* loss = args.loss.data<float>();
  float* hits = args.hits.defined() ? args.hits.data<float>() : nullptr;
  const bool has_gradient = args.dlogits.defined();
  const float* exponentials = has_gradient ? args.exponentials.data<float>() : nullptr;
  const Output<D> dlogits =
      has_gradient ? Output<D>{args.dlogits.data<D>(), passes_caches(args.dlogits, {exponentials})}
                   : Output<D>{nullptr, false};
  const int64_t vocabulary = !has_gradient ? 0 : args.dlogits.size(1);
  const auto row = [&](int64_t t) {
    const Output<D> dx = dlogits + t * vocabulary;
    if (weights[t] == 0) {
      loss[t] = 0;
      if (hits != nullptr) hits[t] = 0;
      std::fill_n(dx.p, vocabulary, D(0.0f));
      return;
    }
    const TokenStats all = token_stats(stats, ranks, rows, t);
    loss[t] = static_cast<float>(
        std::log(all.sum) + (static_cast<double>(all.most) - static_cast<double>(all.of_label)));
    if (hits != nullptr) hits[t] = all.of_label >= all.most ? 1 : 0;
    if (vocabulary == 0) return;
    const double here = stats[(args.rank * rows + t) * 3];
    const auto share = static_cast<float>(std::exp(here - static_cast<double>(all.most)) / all.sum);
    const float* x = exponentials + t * vocabulary;
    const int64_t label = labels[t] - args.first;
    const bool has_label = label >= 0 && label < vocabulary;
    const float of_label = has_label ? weights[t] * (x[label] * share - 1.0f) : 0.0f;
    GradientOfRow<D>(x, dx, vocabulary, share * weights[t], has_label ? label : -kLanes, of_label)
        .write_rest();
  };
  for_blocks(stream, rows, rows_per_block(vocabulary), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(t);
  });
}

void divided_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  const DType gradient = args.dlogits.defined() ? args.dlogits.dtype() : DType::f32;
  for_storage_type("vocabulary_cross_entropy", gradient,
                   [&](auto type) { divided_cross_entropy_rows<decltype(type)>(args, stream); });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(softmax_cross_entropy);
HWY_EXPORT(stats_of_rows);
HWY_EXPORT(divided_cross_entropy);

namespace {

void require_f32(const char* kernel, DType type) {
  if (type != DType::f32) refuse_type(kernel, type);
}

}  // namespace

Tensor cross_entropy_scratch(const CrossEntropyArgs& args, Stream& stream) {
  if (!args.dlogits.defined() || args.dlogits.dtype() == DType::f32) return {};
  return Tensor::empty(stream.scratch(), {stream.target().threads, args.logits.size(1)}, DType::f32,
                       "exponentials of logits");
}

void vocabulary_stats(const VocabularyStatsArgs& args, Stream& stream) {
  require_f32("vocabulary_stats", args.logits.dtype());
  HWY_DYNAMIC_DISPATCH(stats_of_rows)(args, stream);
}

void vocabulary_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream) {
  require_f32("vocabulary_cross_entropy", args.stats.dtype());
  HWY_DYNAMIC_DISPATCH(divided_cross_entropy)(args, stream);
}

void cross_entropy(const CrossEntropyArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(softmax_cross_entropy)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
