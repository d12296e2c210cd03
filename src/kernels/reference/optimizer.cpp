#include <bit>
#include <cmath>

#include "kernels/moment_codes.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
std::vector<C> load_master(const MasterWeight& weight) {
  std::vector<C> master = load<C>(weight.value);
  if (weight.value.dtype() != DType::bf16) return master;
  const std::vector<int64_t> remainder = load_integers(weight.remainder);
  for (size_t i = 0; i < master.size(); ++i) {
    const uint32_t high = std::bit_cast<uint32_t>(static_cast<float>(master[i]));
    master[i] = std::bit_cast<float>(high + static_cast<uint32_t>(remainder[i]));
  }
  return master;
}

template <class C>
void store_master(const MasterWeight& weight, std::vector<C> master) {
  if (weight.value.dtype() == DType::bf16) {
    std::vector<int64_t> remainder(master.size());
    for (size_t i = 0; i < master.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(master[i]));
      const uint32_t high = (bits + 0x8000u) & 0xffff0000u;
      remainder[i] = static_cast<int16_t>(static_cast<uint16_t>(bits - high));
      master[i] = std::bit_cast<float>(high);
    }
    store_integers(weight.remainder, remainder);
  }
  store(weight.value, master);
}

template <class C>
std::vector<C> load_squares(const Tensor& exp_avg_sq) {
  if (exp_avg_sq.dtype() != DType::u8) return load<C>(exp_avg_sq);
  std::vector<C> v;
  for (const uint8_t code : exp_avg_sq.span<uint8_t>())
    v.push_back(static_cast<C>(root_of(code)) * static_cast<C>(root_of(code)));
  return v;
}
template <class C>
void store_squares(const Tensor& exp_avg_sq, const std::vector<C>& v, MomentDither dither) {
  if (exp_avg_sq.dtype() != DType::u8) return store(exp_avg_sq, v);
  for (size_t i = 0; i < v.size(); ++i) {
    const auto root = static_cast<float>(std::sqrt(v[i]));
    exp_avg_sq.data<uint8_t>()[i] = static_cast<uint8_t>(root_code(root, dither));
  }
}

// v: as stored.
template <class C>
std::vector<C> load_average(const Tensor& exp_avg, const std::vector<C>& v) {
  if (exp_avg.dtype() != DType::u8) return load<C>(exp_avg);
  std::vector<C> m;
  for (const uint8_t code : exp_avg.span<uint8_t>())
    m.push_back(static_cast<C>(ratio_of(code)) * std::sqrt(v[m.size()]));
  return m;
}
template <class C>
void store_average(const Tensor& exp_avg, const std::vector<C>& m, const std::vector<C>& v,
                   MomentDither dither) {
  if (exp_avg.dtype() != DType::u8) return store(exp_avg, m);
  for (size_t i = 0; i < m.size(); ++i) {
    const auto average = static_cast<float>(m[i]), root = static_cast<float>(std::sqrt(v[i]));
    exp_avg.data<uint8_t>()[i] = static_cast<uint8_t>(ratio_code(average, root, dither));
  }
}

template <class C>
void adam_step(const AdamArgs& args) {
  std::vector<C> w = load_master<C>(args.parameter), v = load_squares<C>(args.exp_avg_sq),
                 m = load_average(args.exp_avg, v);
  const std::vector<C> grad = load<C>(args.grad);
  const double t = scalar(args.step);
  const C correction1 = static_cast<C>(1 - std::pow(args.beta1, t));
  const C correction2 = static_cast<C>(1 - std::pow(args.beta2, t));
  const C b1 = static_cast<C>(args.beta1), b2 = static_cast<C>(args.beta2),
          eps = static_cast<C>(args.eps);
  const C rest1 = static_cast<C>(1 - args.beta1), rest2 = static_cast<C>(1 - args.beta2);
  const C lr = static_cast<C>(scalar(args.lr)), scale = static_cast<C>(scalar(args.scale));
  const C decay = args.decay ? static_cast<C>(scalar(args.weight_decay)) : 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const C g = grad[i] * scale;
    m[i] = b1 * m[i] + rest1 * g;
    v[i] = b2 * v[i] + rest2 * g * g;
    w[i] -= lr * (m[i] / correction1 / (std::sqrt(v[i] / correction2) + eps) + decay * w[i]);
  }
  const MomentDither dither = MomentDither::of(t);
  store_squares(args.exp_avg_sq, v, dither);
  store_average(args.exp_avg, m, load_squares<C>(args.exp_avg_sq), dither);
  store_master(args.parameter, w);
}

template <class C>
void sgd_step(const SgdArgs& args) {
  std::vector<C> w = load_master<C>(args.parameter), buffer = load<C>(args.buffer);
  const std::vector<C> grad = load<C>(args.grad);
  const C lr = static_cast<C>(scalar(args.lr)), scale = static_cast<C>(scalar(args.scale));
  const C decay = args.decay ? static_cast<C>(scalar(args.weight_decay)) : 0;
  const C momentum = static_cast<C>(args.momentum);
  const bool first = scalar(args.step) == 1;
  for (size_t i = 0; i < w.size(); ++i) {
    C g = grad[i] * scale + decay * w[i];
    if (args.buffer.defined()) g = buffer[i] = first ? g : momentum * buffer[i] + g;
    w[i] -= lr * g;
  }
  if (args.buffer.defined()) store(args.buffer, buffer);
  store_master(args.parameter, w);
}

template <class C>
void lion_step(const LionArgs& args) {
  std::vector<C> w = load_master<C>(args.parameter), m = load<C>(args.exp_avg);
  const std::vector<C> grad = load<C>(args.grad);
  const C b1 = static_cast<C>(args.beta1), rest1 = static_cast<C>(1 - args.beta1);
  const C b2 = static_cast<C>(args.beta2), rest2 = static_cast<C>(1 - args.beta2);
  const C lr = static_cast<C>(scalar(args.lr)), scale = static_cast<C>(scalar(args.scale));
  const C decay = args.decay ? static_cast<C>(scalar(args.weight_decay)) : 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const C g = grad[i] * scale, mixed = b1 * m[i] + rest1 * g;
    const C sign = static_cast<C>((mixed > 0) - (mixed < 0));
    w[i] -= lr * ((std::isnan(mixed) ? mixed : sign) + decay * w[i]);
    m[i] = b2 * m[i] + rest2 * g;
  }
  store(args.exp_avg, m);
  store_master(args.parameter, w);
}

template <class C>
void momentum_step(const MuonMomentumArgs& args) {
  std::vector<C> m = load<C>(args.momentum), direction(m.size());
  const std::vector<C> grad = load<C>(args.grad);
  const C mu = static_cast<C>(args.mu), rest = static_cast<C>(1 - args.mu);
  const C scale = static_cast<C>(scalar(args.scale));
  for (size_t i = 0; i < m.size(); ++i) {
    const C g = grad[i] * scale;
    m[i] += rest * (g - m[i]);
    direction[i] = args.nesterov ? rest * g + mu * m[i] : m[i];
  }
  store(args.momentum, m);
  store(args.direction, direction);
}

template <class C>
void weighted(const WeightedSumArgs& args) {
  std::vector<C> x = load<C>(args.x);
  const std::vector<C> y = load<C>(args.y);
  const C a = static_cast<C>(args.x_weight), b = static_cast<C>(args.y_weight);
  for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * y[i];
  store(args.out, x);
}

template <class C>
void scaled(const Tensor& from, double factor, const Tensor& to) {
  std::vector<C> values = load<C>(from);
  for (C& value : values) value *= static_cast<C>(factor);
  store(to, values);
}

}  // namespace

void grad_scale(const GradScaleArgs& args, Stream&) {
  double sum = 0;
  for (const double partial : load<double>(args.partials)) sum += partial;
  const double norm = std::sqrt(sum) / scalar(args.divisor);
  const double clip = args.max_norm / (norm + 1e-6);
  const double scale = 1 / scalar(args.divisor) * (args.max_norm > 0 && clip < 1 ? clip : 1);
  store(args.norm, std::vector<double>{norm});
  store(args.scale, std::vector<double>{scale});
}

void adam(const AdamArgs& args, Stream&) {
  args.grad.dtype() == DType::f64 ? adam_step<double>(args) : adam_step<float>(args);
}

void sgd(const SgdArgs& args, Stream&) {
  args.grad.dtype() == DType::f64 ? sgd_step<double>(args) : sgd_step<float>(args);
}

void lion(const LionArgs& args, Stream&) {
  args.grad.dtype() == DType::f64 ? lion_step<double>(args) : lion_step<float>(args);
}

void muon_momentum(const MuonMomentumArgs& args, Stream&) {
  args.grad.dtype() == DType::f64 ? momentum_step<double>(args) : momentum_step<float>(args);
}

void unit_norm(const UnitNormArgs& args, Stream&) {
  double sum = 0;
  for (const double partial : load<double>(args.partials)) sum += partial;
  const double factor = 1 / std::max(std::sqrt(sum), args.eps);
  args.x.dtype() == DType::f64 ? scaled<double>(args.x, factor, args.out)
                               : scaled<float>(args.x, factor, args.out);
}

void weighted_sum(const WeightedSumArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? weighted<double>(args) : weighted<float>(args);
}

}  // namespace megatron::kernels::reference
