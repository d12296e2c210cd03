#include "kernels/gated_norm.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/thread_buffer.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_norm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// Two vectors of elements in load_pair's order.
struct Twos {
  Lanes a, b;
  HWY_INLINE Twos(VectorPair v) : a(v.a), b(v.b) {}
  HWY_INLINE Twos(Lanes both) : a(both), b(both) {}
  HWY_INLINE Twos(Lanes a_, Lanes b_) : a(a_), b(b_) {}
  HWY_INLINE operator VectorPair() const { return {a.v, b.v}; }
};
HWY_INLINE Twos operator*(Twos x, Twos y) { return {x.a * y.a, x.b * y.b}; }
HWY_INLINE Twos operator-(Twos x, Twos y) { return {x.a - y.a, x.b - y.b}; }
HWY_INLINE Twos fma(Twos x, Twos y, Twos z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }

template <class T>
HWY_INLINE Twos sigmoid_of(Twos z) {
  return {sigmoid_of_negative<T>(Silu<T>::minus(z.a)), sigmoid_of_negative<T>(Silu<T>::minus(z.b))};
}
template <class T>
HWY_INLINE Twos silu_of(Twos z) {
  return {Silu<T>::value(z.a), Silu<T>::value(z.b)};
}

// Rows of a group, of T, with a stride.
template <class T>
struct GroupRows {
  GroupRows(const Tensor& t, int64_t group, int64_t size)
      : p(t.data<T>() + group * size), stride(t.stride(0)) {}
  const T* row(int64_t t) const { return p + t * stride; }
  const T* p;
  int64_t stride;
};
template <class T>
Output<T> group_output(const Tensor& out, int64_t size) {
  return output_of<T>(out, std::gcd(out.stride(0), size), {});
}

// Elements of a group that are kept in f32 until its statistics are known, in load_pair's order.
class KeptGroup {
 public:
  explicit KeptGroup(int64_t size)
      : p_(reinterpret_cast<float*>(
            thread_buffer(Slot::c, (size + 2 * kLanes) * static_cast<int64_t>(sizeof(float))))) {}
  HWY_INLINE void set(int64_t i, Twos v) const { store_pair(v, p_ + i); }
  HWY_INLINE Twos at(int64_t i) const { return load_pair(p_ + i); }

 private:
  float* p_;
};

template <GateOrder kOrder, class T>
class GatedNorm {
 public:
  explicit GatedNorm(const GatedNormArgs& args)
      : args_(args),
        size_(args.x.size(1) / args.groups),
        kept_(size_),
        out_(group_output<T>(args.out, size_)) {}

  void norm(int64_t t, int64_t group) const {
    const GroupRows<T> xs(args_.x, group, size_), zs(args_.z, group, size_);
    const T *x = xs.row(t), *z = zs.row(t);
    const Output<T> out = out_ + (t * args_.out.stride(0) + group * size_);
    const auto ahead = [&](int64_t i) HWY_ATTR {
      prefetch(x + xs.stride + i, kPairBytes<T>);
      prefetch(z + zs.stride + i, kPairBytes<T>);
    };
    const auto gated = [&](Twos in, int64_t i, auto n)
                           HWY_ATTR { return in * silu_of<T>(load_pair(z + i, n)); };
    if constexpr (kOrder == GateOrder::gate_only) {
      for_pairs(0, size_, [&](int64_t i, auto n) {
        ahead(i);
        store_pair(gated(load_pair(x + i, n), i, n), out + i, n);
      });
      return;
    }
    const float squares = sum_of_twos<T>(size_, [&](int64_t i, auto n) {
      const Twos in = load_pair(x + i, n), product = gated(in, i, n);
      kept_.set(i, product);
      return kOrder == GateOrder::gate_first ? product * product : in * in;
    });
    float& rstd = args_.rstd.template data<float>()[t * args_.groups + group];
    rstd = 1.0f / std::sqrt(squares / static_cast<float>(size_) + static_cast<float>(args_.eps));
    const T* weight = args_.weight.template data<T>() + group * size_;
    for_pairs(0, size_, [&](int64_t i, auto n) {
      ahead(i);
      store_pair(kept_.at(i) * Lanes(rstd) * Twos(load_pair(weight + i, n)), out + i, n);
    });
  }

 private:
  const GatedNormArgs& args_;
  int64_t size_;
  KeptGroup kept_;
  Output<T> out_;
};

// With u the input of the norm, n = u rstd and dn the gradient of n: du = rstd (dn - n mean(dn n)).
template <GateOrder kOrder, class T>
class GatedNormBackward {
 public:
  // dweight [W]: sums, or null.
  GatedNormBackward(const GatedNormBackwardArgs& args, float* dweight)
      : args_(args),
        size_(args.x.size(1) / args.groups),
        kept_(size_),
        dx_(group_output<T>(args.dx, size_)),
        dz_(group_output<T>(args.dz, size_)) {
    for (int64_t group = 0; group < args.groups && dweight != nullptr; ++group)
      dweights_.emplace_back(dweight, group * size_, (group + 1) * size_);
  }

  void norm(int64_t t, int64_t group) {
    const GroupRows<T> xs(args_.x, group, size_), zs(args_.z, group, size_),
        douts(args_.dout, group, size_);
    const T *x = xs.row(t), *z = zs.row(t), *dout = douts.row(t);
    const Output<T> dx = dx_ + (t * args_.dx.stride(0) + group * size_),
                    dz = dz_ + (t * args_.dz.stride(0) + group * size_);
    if constexpr (kOrder == GateOrder::gate_only) {
      for_pairs(0, size_, [&](int64_t i, auto n) {
        const Twos in = load_pair(x + i, n), gate = load_pair(z + i, n), d = load_pair(dout + i, n);
        const Twos s = sigmoid_of<T>(gate), g = gate * s;
        store_pair(d * g, dx + i, n);
        store_pair(d * in * slope(s, g), dz + i, n);
      });
      return;
    }
    const T* weight = data_or_null<T>(args_.weight) + group * size_;
    const Lanes rstd = args_.rstd.template data<float>()[t * args_.groups + group];
    ColumnSums<T>* const dweights = dweights_.empty() ? nullptr : &dweights_[group];
    const float sum = sum_of_twos<T>(size_, [&](int64_t i, auto n) {
      const Twos gate = load_pair(z + i, n), s = sigmoid_of<T>(gate);
      kept_.set(i, s);
      // The gate is a factor before the norm or after it; in both cases of the product below.
      const Twos product =
          Twos(load_pair(dout + i, n)) * (Twos(load_pair(x + i, n)) * rstd * (gate * s));
      if (dweights != nullptr) {
        const Twos old = dweights->at(group * size_ + i, n);
        dweights->set(group * size_ + i, Twos(old.a + product.a, old.b + product.b), n);
      }
      return product * Twos(load_pair(weight + i, n));
    });
    const Lanes mean = sum / static_cast<float>(size_);
    for_pairs(0, size_, [&](int64_t i, auto n) {
      prefetch(x + xs.stride + i, kPairBytes<T>);
      prefetch(z + zs.stride + i, kPairBytes<T>);
      prefetch(dout + douts.stride + i, kPairBytes<T>);
      const Twos in = load_pair(x + i, n), s = kept_.at(i), g = Twos(load_pair(z + i, n)) * s;
      const Twos d = Twos(load_pair(dout + i, n)) * Twos(load_pair(weight + i, n));
      if constexpr (kOrder == GateOrder::gate_first) {
        const Twos du = Twos(rstd) * (d - in * g * rstd * mean);
        store_pair(du * g, dx + i, n);
        store_pair(du * in * slope(s, g), dz + i, n);
      } else {
        const Twos normed = in * rstd;
        store_pair(Twos(rstd) * (d * g - normed * mean), dx + i, n);
        store_pair(d * normed * slope(s, g), dz + i, n);
      }
    });
  }

  void end() {
    for (ColumnSums<T>& sums : dweights_) sums.in_order();
  }

 private:
  // Derivative of g = z s, s = sigmoid(z).
  HWY_INLINE static Twos slope(Twos s, Twos g) { return fma(g, Twos(Lanes(1.0f)) - s, s); }

  const GatedNormBackwardArgs& args_;
  int64_t size_;
  KeptGroup kept_;
  Output<T> dx_, dz_;
  std::vector<ColumnSums<T>> dweights_;
};

// Calls f(T{}, std::integral_constant<GateOrder, order>) with the storage type.
template <class F>
void for_gated(const char* kernel, DType type, GateOrder order, F&& f) {
  using enum GateOrder;
  for_storage_type(kernel, type, [&](auto stored) {
    switch (order) {
      case gate_first: return f(stored, std::integral_constant<GateOrder, gate_first>());
      case norm_first: return f(stored, std::integral_constant<GateOrder, norm_first>());
      case gate_only: return f(stored, std::integral_constant<GateOrder, gate_only>());
    }
  });
}

void norm_gated(const GatedNormArgs& args, Stream& stream) {
  for_gated("gated_norm", args.x.dtype(), args.order, [&](auto type, auto order) {
    for_blocks(stream, args.x.size(0), rows_per_block(args.x.size(1)),
               [&](int64_t begin, int64_t end) {
                 const GatedNorm<order, decltype(type)> rows(args);
                 for (int64_t t = begin; t < end; ++t)
                   for (int64_t group = 0; group < args.groups; ++group) rows.norm(t, group);
               });
  });
}

void norm_gated_backward(const GatedNormBackwardArgs& args, Stream& stream) {
  const RowBlocks blocks(args.x.size(0));
  const Tensor dweights = gated_norm_backward_scratch(args, stream);
  for_gated("gated_norm_backward", args.x.dtype(), args.order, [&](auto type, auto order) {
    for_blocks(stream, blocks.rows, blocks.height, [&](int64_t begin, int64_t end) {
      float* dweight = dweights.defined()
                           ? dweights.data<float>() + begin / blocks.height * args.x.size(1)
                           : nullptr;
      GatedNormBackward<order, decltype(type)> rows(args, dweight);
      for (int64_t t = begin; t < end; ++t)
        for (int64_t group = 0; group < args.groups; ++group) rows.norm(t, group);
      rows.end();
    });
  });
  if (dweights.defined()) add_partial_rows(dweights, args.dweight, stream);
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(norm_gated);
HWY_EXPORT(norm_gated_backward);

Tensor gated_norm_backward_scratch(const GatedNormBackwardArgs& args, Stream& stream) {
  if (!args.dweight.out.defined()) return {};
  return partial_rows(RowBlocks(args.x.size(0)), args.x.size(1), stream);
}

void gated_norm(const GatedNormArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_gated)(args, stream);
}
void gated_norm_backward(const GatedNormBackwardArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(norm_gated_backward)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
