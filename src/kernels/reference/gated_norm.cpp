#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {
namespace {

// g = z sigmoid(z) and dg / dz.
template <class C>
struct GateOf {
  explicit GateOf(C z) {
    const C sigmoid = 1 / (1 + std::exp(-z));
    value = z * sigmoid;
    slope = sigmoid * (1 + z * (1 - sigmoid));
  }
  C value, slope;
};

// out = u * rstd * weight * after, where u = x * before: the gate is before the norm or after it.
template <class C>
void normalise(const GatedNormArgs& args) {
  const std::vector<C> x = load<C>(args.x), z = load<C>(args.z), weight = load<C>(args.weight);
  const int64_t tokens = args.x.size(0), width = args.x.size(1), size = width / args.groups;
  const bool norms = args.order != GateOrder::gate_only,
             first = args.order == GateOrder::gate_first;
  std::vector<C> out(x.size()), rstds;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const int64_t begin = t * width + group * size;
      const auto u = [&](int64_t i) { return x[i] * (first ? GateOf<C>(z[i]).value : 1); };
      C squares = 0;
      for (int64_t i = begin; i < begin + size; ++i) squares += u(i) * u(i);
      const C rstd =
          norms ? 1 / std::sqrt(squares / static_cast<C>(size) + static_cast<C>(args.eps)) : 1;
      if (norms) rstds.push_back(rstd);
      for (int64_t i = begin; i < begin + size; ++i)
        out[i] =
            u(i) * rstd * (norms ? weight[i - t * width] : 1) * (first ? 1 : GateOf<C>(z[i]).value);
    }
  }
  store(args.out, out);
  if (norms) store(args.rstd, rstds);
}

// With n = u * rstd and dn the gradient of n: du = rstd * (dn - n * mean(dn * n)).
template <class C>
void differentiate(const GatedNormBackwardArgs& args) {
  const std::vector<C> x = load<C>(args.x), z = load<C>(args.z), weight = load<C>(args.weight),
                       rstds = load<C>(args.rstd), dout = load<C>(args.dout);
  const int64_t tokens = args.x.size(0), width = args.x.size(1), size = width / args.groups;
  const bool norms = args.order != GateOrder::gate_only,
             first = args.order == GateOrder::gate_first;
  std::vector<C> dx(x.size()), dz(x.size()), dweight(width);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const int64_t begin = t * width + group * size;
      const C rstd = norms ? rstds[t * args.groups + group] : 1;
      const auto w = [&](int64_t i) { return norms ? weight[i - t * width] : 1; };
      const auto n = [&](int64_t i) { return x[i] * (first ? GateOf<C>(z[i]).value : 1) * rstd; };
      const auto dn = [&](int64_t i) {
        return dout[i] * w(i) * (first ? 1 : GateOf<C>(z[i]).value);
      };
      C mean = 0;
      for (int64_t i = begin; i < begin + size && norms; ++i)
        mean += dn(i) * n(i) / static_cast<C>(size);
      for (int64_t i = begin; i < begin + size; ++i) {
        const GateOf<C> gate(z[i]);
        const C du = rstd * (dn(i) - n(i) * mean);
        dx[i] = du * (first ? gate.value : 1);
        dz[i] = gate.slope * (first ? du * x[i] : dout[i] * w(i) * n(i));
        dweight[i - t * width] += dout[i] * n(i) * (first ? 1 : gate.value);
      }
    }
  }
  store(args.dx, dx);
  store(args.dz, dz);
  store_sum(args.dweight, std::move(dweight));
}

}  // namespace

void gated_norm(const GatedNormArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? normalise<double>(args) : normalise<float>(args);
}
void gated_norm_backward(const GatedNormBackwardArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? differentiate<double>(args) : differentiate<float>(args);
}

}  // namespace megatron::kernels::reference
