#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"
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

template <class F>
void for_moments(const AdamArgs& args, F&& f) {
  for_master("adam", args.parameter, [&](auto master) {
    for_storage_type("adam", args.exp_avg.dtype(), [&](auto first) {
      for_storage_type("adam", args.exp_avg_sq.dtype(), [&](auto second) {
        f(master, args.exp_avg.data<decltype(first)>(), args.exp_avg_sq.data<decltype(second)>());
      });
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
  for_moments(args, [&](auto master, auto* exp_avg, auto* exp_avg_sq) {
    const float* grad = args.grad.data<float>();
    for_blocks(stream, args.grad.elements(), kBlockElements, [&](int64_t begin, int64_t end) {
      for_vectors(begin, end, [&](int64_t i, auto n) {
        const V g = hn::Mul(load(grad + i, n), scale);
        const V m = hn::Add(hn::Mul(beta1, load(exp_avg + i, n)), hn::Mul(rest1, g));
        const V v = hn::Add(hn::Mul(beta2, load(exp_avg_sq + i, n)), hn::Mul(hn::Mul(rest2, g), g));
        const V w = master.load_master(i, n);
        const V root = hn::Add(hn::Sqrt(hn::Div(v, correction2)), eps);
        const V update = hn::Add(hn::Div(hn::Div(m, correction1), root), hn::Mul(decay, w));
        master.store_master(hn::Sub(w, hn::Mul(lr, update)), i, n);
        store(m, exp_avg + i, n);
        store(v, exp_avg_sq + i, n);
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
