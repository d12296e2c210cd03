#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/moment_codes.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

using SignedHalves = hn::Rebind<int16_t, Floats>;
using SignedWords = hn::RebindToSigned<Floats>;

// The f32 master weight of a parameter: the parameter itself, or its bf16 value and the remainder.
struct PlainMaster {
  float* value;
  template <class N>
  HWY_INLINE V load_master(int64_t i, N n) const {
    return load(value + i, n);
  }
  template <class N>
  HWY_INLINE void store_master(V w, int64_t i, N n) const {
    store(w, value + i, n);
  }
};

struct SplitMaster {
  bf16* value;
  int16_t* remainder;

  HWY_INLINE V load_master(int64_t i, Whole) const { return joined(value + i, remainder + i); }
  HWY_INLINE V load_master(int64_t i, Part part) const {
    bf16 values[kLanes] = {};
    int16_t remainders[kLanes] = {};
    std::memcpy(values, value + i, static_cast<size_t>(part.n) * sizeof(bf16));
    std::memcpy(remainders, remainder + i, static_cast<size_t>(part.n) * sizeof(int16_t));
    return joined(values, remainders);
  }
  HWY_INLINE void store_master(V w, int64_t i, Whole) const { split(w, value + i, remainder + i); }
  HWY_INLINE void store_master(V w, int64_t i, Part part) const {
    bf16 values[kLanes];
    int16_t remainders[kLanes];
    split(w, values, remainders);
    std::memcpy(value + i, values, static_cast<size_t>(part.n) * sizeof(bf16));
    std::memcpy(remainder + i, remainders, static_cast<size_t>(part.n) * sizeof(int16_t));
  }

 private:
  static HWY_INLINE V joined(const bf16* values, const int16_t* remainders) {
    const SignedWords words;
    const auto low = hn::PromoteTo(words, hn::LoadU(SignedHalves(), remainders));
    return hn::BitCast(kFloats, hn::Add(hn::BitCast(words, load(values)), low));
  }
  // The remainder is the low half of the master weight; the value is rounded and takes the carry.
  static HWY_INLINE void split(V w, bf16* values, int16_t* remainders) {
    const Words words;
    const auto bits = hn::BitCast(words, w);
    const auto upper = hn::ShiftRight<16>(hn::Add(bits, hn::Set(words, 0x8000u)));
    hn::StoreU(hn::TruncateTo(Halves(), upper), Halves(), reinterpret_cast<uint16_t*>(values));
    const auto low = hn::TruncateTo(Halves(), hn::And(bits, hn::Set(words, 0xffffu)));
    hn::StoreU(low, Halves(), reinterpret_cast<uint16_t*>(remainders));
  }
};

template <class F>
void for_master(const char* kernel, const MasterWeight& parameter, F&& f) {
  switch (parameter.value.dtype()) {
    case DType::f32: return f(PlainMaster{parameter.value.data<float>()});
    case DType::bf16:
      return f(SplitMaster{parameter.value.data<bf16>(), parameter.remainder.data<int16_t>()});
    default: refuse_type(kernel, parameter.value.dtype());
  }
}

HWY_INLINE V scalar(const Tensor& tensor) {
  return set(static_cast<float>(*tensor.data<double>()));
}

HWY_INLINE hn::Vec<Words> broadcast(uint32_t value) { return hn::Set(Words(), value); }

HWY_INLINE hn::Vec<Words> load_codes(const uint8_t* p, Whole) {
  return hn::PromoteTo(Words(), hn::LoadU(hn::Rebind<uint8_t, Floats>(), p));
}
HWY_INLINE hn::Vec<Words> load_codes(const uint8_t* p, Part part) {
  uint8_t codes[kLanes] = {};
  std::memcpy(codes, p, static_cast<size_t>(part.n));
  return load_codes(codes, Whole{});
}
HWY_INLINE void store_codes(hn::Vec<SignedWords> codes, uint8_t* p, Whole) {
  const hn::Rebind<uint8_t, Floats> bytes;
  hn::StoreU(hn::DemoteTo(bytes, codes), bytes, p);
}
HWY_INLINE void store_codes(hn::Vec<SignedWords> codes, uint8_t* p, Part part) {
  uint8_t buffer[kLanes];
  store_codes(codes, buffer, Whole{});
  std::memcpy(p, buffer, static_cast<size_t>(part.n));
}

// The functions of moment_codes.h. `second` has v as it is stored.
template <class T, class N>
HWY_INLINE V load_root(const T* second, N n) {
  return hn::Sqrt(load(second, n));
}
template <class N>
HWY_INLINE V load_root(const uint8_t* second, N n) {
  const auto codes = load_codes(second, n);
  const V root = hn::BitCast(
      kFloats, hn::ShiftLeft<MomentDither::kRootBits>(hn::Add(codes, broadcast(kRootBias))));
  return hn::IfThenZeroElse(hn::RebindMask(kFloats, hn::Eq(codes, broadcast(0))), root);
}
template <class T, class N>
HWY_INLINE V load_square(const T* second, N n) {
  return load(second, n);
}
template <class N>
HWY_INLINE V load_square(const uint8_t* second, N n) {
  const V root = load_root(second, n);
  return hn::Mul(root, root);
}
template <class T, class N>
HWY_INLINE void store_square(V v, T* p, N n, MomentDither) {
  store(v, p, n);
}
template <class N>
HWY_INLINE void store_square(V v, uint8_t* p, N n, MomentDither dither) {
  const SignedWords integers;
  const V root = hn::Sqrt(v);
  const auto bits = hn::ShiftRight<MomentDither::kRootBits>(
      hn::Add(hn::BitCast(Words(), root), broadcast(dither.root)));
  const auto code = hn::Sub(hn::BitCast(integers, bits), hn::Set(integers, kRootBias));
  const auto most = hn::Min(hn::Max(code, hn::Set(integers, 1)), hn::Set(integers, 255));
  const auto none = hn::RebindMask(integers, hn::Eq(root, hn::Zero(kFloats)));
  store_codes(hn::IfThenZeroElse(none, most), p, n);
}
template <class T, class Second, class N>
HWY_INLINE V load_average(const T* p, const Second*, N n) {
  return load(p, n);
}
template <class Second, class N>
HWY_INLINE V load_average(const uint8_t* p, const Second* second, N n) {
  const auto codes = load_codes(p, n), size = hn::And(codes, broadcast(0x7f));
  const V normal = hn::BitCast(
      kFloats, hn::ShiftLeft<MomentDither::kRatioBits>(hn::Add(size, broadcast(kRatioBias))));
  const V small = hn::Mul(hn::ConvertTo(kFloats, hn::BitCast(SignedWords(), size)), set(0x1p-9f));
  const auto is = [](auto mask) { return hn::RebindMask(kFloats, mask); };
  V ratio = hn::IfThenElse(is(hn::Lt(size, broadcast(8))), small, normal);
  ratio = hn::IfThenElse(is(hn::Eq(size, broadcast(kRatioNan))), hn::NaN(kFloats), ratio);
  const auto sign = hn::BitCast(kFloats, hn::ShiftLeft<24>(hn::AndNot(broadcast(0x7f), codes)));
  return hn::Mul(hn::Mul(hn::Or(ratio, sign), set(1 / kRatioScale)), load_root(second, n));
}
template <class T, class Second, class N>
HWY_INLINE void store_average(V m, const Second*, T* p, N n, MomentDither) {
  store(m, p, n);
}
template <class Second, class N>
HWY_INLINE void store_average(V m, const Second* second, uint8_t* p, N n, MomentDither dither) {
  const SignedWords integers;
  const V root = load_root(second, n), zero = hn::Zero(kFloats);
  const V ratio =
      hn::IfThenElse(hn::Eq(root, zero), zero, hn::Mul(hn::Div(m, root), set(kRatioScale)));
  const V size = hn::Abs(ratio), share = set(static_cast<float>(dither.ratio) * 0x1p-20f);
  const V most = hn::IfThenElse(hn::Lt(size, set(kLargestRatio)), size, set(kLargestRatio));
  const auto bits = hn::ShiftRight<MomentDither::kRatioBits>(
      hn::Add(hn::BitCast(Words(), most), broadcast(dither.ratio)));
  const auto normal = hn::Min(hn::Sub(bits, broadcast(kRatioBias)), broadcast(kLargestRatioCode));
  // Larger values are set to 0 before the conversion, because they may not fit an integer.
  const auto is_small = hn::Lt(size, set(kSmallestNormalRatio));
  const V spacings = hn::IfThenElseZero(is_small, hn::Add(hn::Mul(size, set(0x1p9f)), share));
  const auto small = hn::BitCast(Words(), hn::ConvertTo(integers, spacings));
  const auto code = hn::IfThenElse(hn::RebindMask(Words(), is_small), small, normal);
  const auto negative = hn::RebindMask(Words(), hn::Lt(ratio, zero));
  const auto is_nan = hn::RebindMask(Words(), hn::IsNaN(m));
  const auto coded = hn::Or(code, hn::IfThenElseZero(negative, broadcast(0x80)));
  store_codes(hn::BitCast(integers, hn::IfThenElse(is_nan, broadcast(kRatioNan), coded)), p, n);
}

template <class F>
void for_moment(const Tensor& moment, F&& f) {
  if (moment.dtype() == DType::u8) return f(moment.data<uint8_t>());
  for_storage_type("adam", moment.dtype(), [&](auto type) { f(moment.data<decltype(type)>()); });
}
template <class F>
void for_moments(const AdamArgs& args, F&& f) {
  for_master("adam", args.parameter, [&](auto master) {
    for_moment(args.exp_avg, [&](auto* first) {
      for_moment(args.exp_avg_sq, [&](auto* second) { f(master, first, second); });
    });
  });
}

// Does not use fma, so that every instruction set gives the same bits.
void adam_step(const AdamArgs& args, Stream& stream) {
  const double step = *args.step.data<double>();
  const V lr = scalar(args.lr), scale = scalar(args.scale);
  const V decay = args.decay ? scalar(args.weight_decay) : set(0.0f);
  const V beta1 = set(static_cast<float>(args.beta1)),
          rest1 = set(static_cast<float>(1 - args.beta1));
  const V beta2 = set(static_cast<float>(args.beta2)),
          rest2 = set(static_cast<float>(1 - args.beta2));
  const V correction1 = set(static_cast<float>(1 - std::pow(args.beta1, step)));
  const V correction2 = set(static_cast<float>(1 - std::pow(args.beta2, step)));
  const V eps = set(static_cast<float>(args.eps));
  const MomentDither dither = MomentDither::of(step);
  for_moments(args, [&](auto master, auto* exp_avg, auto* exp_avg_sq) {
    const float* grad = args.grad.data<float>();
    for_blocks(stream, args.grad.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end, [&](int64_t i, auto n) {
        const V g = hn::Mul(load(grad + i, n), scale);
        const V square = load_square(exp_avg_sq + i, n);
        const V m = hn::Add(hn::Mul(beta1, load_average(exp_avg + i, exp_avg_sq + i, n)),
                            hn::Mul(rest1, g));
        const V v = hn::Add(hn::Mul(beta2, square), hn::Mul(hn::Mul(rest2, g), g));
        const V w = master.load_master(i, n);
        const V root = hn::Add(hn::Sqrt(hn::Div(v, correction2)), eps);
        const V update = hn::Add(hn::Div(hn::Div(m, correction1), root), hn::Mul(decay, w));
        master.store_master(hn::Sub(w, hn::Mul(lr, update)), i, n);
        store_square(v, exp_avg_sq + i, n, dither);
        store_average(m, exp_avg_sq + i, exp_avg + i, n, dither);
      });
    });
  });
}

void sgd_step(const SgdArgs& args, Stream& stream) {
  const bool first = *args.step.data<double>() == 1, has_buffer = args.buffer.defined();
  const V lr = scalar(args.lr), scale = scalar(args.scale);
  const V decay = args.decay ? scalar(args.weight_decay) : set(0.0f);
  const V momentum = set(static_cast<float>(args.momentum));
  for_master("sgd", args.parameter, [&](auto master) {
    const float* grad = args.grad.data<float>();
    float* buffer = has_buffer ? args.buffer.data<float>() : nullptr;
    for_blocks(stream, args.grad.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end, [&](int64_t i, auto n) {
        const V w = master.load_master(i, n);
        V g = hn::Add(hn::Mul(load(grad + i, n), scale), hn::Mul(decay, w));
        if (has_buffer) {
          if (!first) g = hn::Add(hn::Mul(momentum, load(buffer + i, n)), g);
          store(g, buffer + i, n);
        }
        master.store_master(hn::Sub(w, hn::Mul(lr, g)), i, n);
      });
    });
  });
}

// +1, -1, 0, or NaN.
HWY_INLINE V sign(V v) {
  const V zero = hn::Zero(kFloats);
  const V one = hn::CopySign(set(1.0f), v);
  return hn::IfThenElse(hn::Eq(v, zero), zero, hn::IfThenElse(hn::IsNaN(v), v, one));
}

void lion_step(const LionArgs& args, Stream& stream) {
  const V lr = scalar(args.lr), scale = scalar(args.scale);
  const V decay = args.decay ? scalar(args.weight_decay) : set(0.0f);
  const V beta1 = set(static_cast<float>(args.beta1)),
          rest1 = set(static_cast<float>(1 - args.beta1));
  const V beta2 = set(static_cast<float>(args.beta2)),
          rest2 = set(static_cast<float>(1 - args.beta2));
  for_master("lion", args.parameter, [&](auto master) {
    const float* grad = args.grad.data<float>();
    float* exp_avg = args.exp_avg.data<float>();
    for_blocks(stream, args.grad.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end, [&](int64_t i, auto n) {
        const V g = hn::Mul(load(grad + i, n), scale), m = load(exp_avg + i, n);
        const V w = master.load_master(i, n);
        const V step = sign(hn::Add(hn::Mul(beta1, m), hn::Mul(rest1, g)));
        master.store_master(hn::Sub(w, hn::Mul(lr, hn::Add(step, hn::Mul(decay, w)))), i, n);
        store(hn::Add(hn::Mul(beta2, m), hn::Mul(rest2, g)), exp_avg + i, n);
      });
    });
  });
}

void momentum_step(const MuonMomentumArgs& args, Stream& stream) {
  const V scale = scalar(args.scale), mu = set(static_cast<float>(args.mu)),
          rest = set(static_cast<float>(1 - args.mu));
  const float* grad = args.grad.data<float>();
  float* momentum = args.momentum.data<float>();
  const Output<float> direction =
      output_of<float>(args.direction, kBlockElements, {grad, momentum});
  for_blocks(stream, args.grad.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](int64_t i, auto n) {
      const V g = hn::Mul(load(grad + i, n), scale);
      const V before = load(momentum + i, n);
      const V m = hn::Add(before, hn::Mul(rest, hn::Sub(g, before)));
      store(m, momentum + i, n);
      store(args.nesterov ? hn::Add(hn::Mul(rest, g), hn::Mul(mu, m)) : m, direction + i, n);
    });
  });
}

void multiply_elements(const UnitNormArgs& args, double factor, Stream& stream) {
  const V by = set(static_cast<float>(factor));
  for_storage_type("unit_norm", args.out.dtype(), [&](auto type) {
    const float* x = args.x.data<float>();
    const auto out = output_of<decltype(type)>(args.out, kBlockElements, {x});
    for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end,
                  [&](int64_t i, auto n) { store(hn::Mul(load(x + i, n), by), out + i, n); });
    });
  });
}

void weighted_elements(const WeightedSumArgs& args, Stream& stream) {
  const V a = set(static_cast<float>(args.x_weight)), b = set(static_cast<float>(args.y_weight));
  const auto run = [&](const auto* x, const auto* y, auto out) {
    for_blocks(stream, args.x.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end, [&](int64_t i, auto n) {
        store(hn::Add(hn::Mul(a, load(x + i, n)), hn::Mul(b, load(y + i, n))), out + i, n);
      });
    });
  };
  for_storage_type("weighted_sum", args.x.dtype(), [&](auto x) {
    for_storage_type("weighted_sum", args.y.dtype(), [&](auto y) {
      for_storage_type("weighted_sum", args.out.dtype(), [&](auto out) {
        run(args.x.data<decltype(x)>(), args.y.data<decltype(y)>(),
            output_of<decltype(out)>(args.out, kBlockElements, {args.x.raw(), args.y.raw()}));
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(adam_step);
HWY_EXPORT(sgd_step);
HWY_EXPORT(lion_step);
HWY_EXPORT(momentum_step);
HWY_EXPORT(multiply_elements);
HWY_EXPORT(weighted_elements);

void grad_scale(const GradScaleArgs& args, Stream&) {
  double squares = 0;
  for (const double partial : args.partials.span<double>()) squares += partial;
  const double divisor = *args.divisor.data<double>();
  const double norm = std::sqrt(squares) / divisor;
  const double clip = args.max_norm > 0 ? args.max_norm / (norm + 1e-6) : 1;
  *args.norm.data<double>() = norm;
  *args.scale.data<double>() = 1 / divisor * (clip < 1 ? clip : 1);
}

void adam(const AdamArgs& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(adam_step)(args, stream); }

void sgd(const SgdArgs& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(sgd_step)(args, stream); }

void lion(const LionArgs& args, Stream& stream) { HWY_DYNAMIC_DISPATCH(lion_step)(args, stream); }

void muon_momentum(const MuonMomentumArgs& args, Stream& stream) {
  require_storage_type("muon_momentum", args.grad.dtype());
  HWY_DYNAMIC_DISPATCH(momentum_step)(args, stream);
}

void unit_norm(const UnitNormArgs& args, Stream& stream) {
  require_storage_type("unit_norm", args.x.dtype());
  double squares = 0;
  for (const double partial : args.partials.span<double>()) squares += partial;
  const double factor = 1 / std::max(std::sqrt(squares), args.eps);
  HWY_DYNAMIC_DISPATCH(multiply_elements)(args, factor, stream);
}

void weighted_sum(const WeightedSumArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(weighted_elements)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
