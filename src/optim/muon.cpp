#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/table.h"

namespace megatron::optim {
namespace {

// View of the first elements of a flat buffer as a matrix.
Tensor matrix(const Tensor& buffer, int64_t rows, int64_t columns) {
  return buffer.slice(0, 0, rows * columns).view({rows, columns});
}

// Rows of a matrix; undefined if the matrix is.
Tensor part(const Tensor& whole, int64_t begin, int64_t size) {
  return whole.defined() ? whole.slice(0, begin, size) : whole;
}

DType wide_type(std::span<const parallel::ParameterSpec* const> parameters) {
  return parameters.empty() ? DType::f32
                            : kernels::accumulator(parameters[0]->parameter.value.dtype());
}

}  // namespace

std::vector<std::array<double, 3>> coefficients(NewtonSchulz type, int64_t iterations) {
  using Set = std::vector<std::array<double, 3>>;
  const auto set = [type]() -> Set {
    switch (type) {
      case NewtonSchulz::simple: return {{3.4445, -4.7750, 2.0315}};
      case NewtonSchulz::quintic:
        return {{4.0848, -6.8946, 2.9270},
                {3.9505, -6.3029, 2.6377},
                {3.7418, -5.5913, 2.3037},
                {2.8769, -3.1427, 1.2046},
                {2.8366, -3.0525, 1.2012}};
      case NewtonSchulz::polar_express:
        return {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
                {3.2856, -2.4153, 0.4853},   {2.2779, -1.6198, 0.3985}, {1.8726, -1.2307, 0.3585},
                {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
      case NewtonSchulz::cans:
        return {{8.4703, -25.1081, 18.6293},
                {4.1828, -3.1087, 0.5806},
                {3.9619, -2.9541, 0.5630},
                {3.2866, -2.4647, 0.5074},
                {2.2737, -1.6447, 0.4162}};
      case NewtonSchulz::aol:
        return {{4.0098, -7.0585, 2.4635},
                {3.4585, -5.5479, 2.5959},
                {2.7573, -3.2939, 1.4254},
                {2.7215, -3.0494, 1.3169}};
    }
    return {};
  }();
  const bool last_stays = type == NewtonSchulz::polar_express || type == NewtonSchulz::cans;
  Set list;
  for (size_t i = 0; i < static_cast<size_t>(iterations); ++i)
    list.push_back(set[last_stays ? std::min(i, set.size() - 1) : i % set.size()]);
  return list;
}

double scale_factor(MuonScale mode, int64_t rows, int64_t columns) {
  const double m = static_cast<double>(rows), n = static_cast<double>(columns);
  switch (mode) {
    case MuonScale::spectral: return std::sqrt(std::max(m, n));
    case MuonScale::unit_rms_norm: return std::sqrt(m / n);
    case MuonScale::shape_scaling: return std::sqrt(std::max(1.0, m / n));
  }
  return 1;
}

void MuonConfig::check() const {
  MG_CHECK(momentum >= 0 && momentum < 1, "--muon-momentum is {}; it must lie in [0, 1)", momentum);
  MG_CHECK(iterations >= 1 && iterations <= 100,
           "--muon-num-ns-steps is {}; it must lie in [1, 100] (usually 5)", iterations);
  MG_CHECK(extra_scale > 0 && std::isfinite(extra_scale),
           "--muon-extra-scale-factor is {}; it must be positive", extra_scale);
}

bool takes(const parallel::ParameterSpec& placed) {
  return placed.role == parallel::Role::hidden && placed.parameter.value.rank() == 2 &&
         placed.orthogonalized && !placed.is_expert();
}

Muon::Muon(const MuonConfig& config, std::span<const parallel::ParameterSpec* const> parameters,
           comm::Group* tensor, Runtime& runtime)
    : config_(config),
      gathered_(parameters, tensor, wide_type(parameters), runtime),
      coefficients_(coefficients(config.coefficients, config.iterations)) {
  const DType wide = wide_type(parameters);
  int64_t own = 0, largest = 0, square = 0;
  for (const parallel::ParameterSpec* placed : parameters) {
    const int64_t columns = gathered_.shape(*placed)[1];
    for (const Rows& rows : matrices(*placed)) {
      const int64_t side = std::min(rows.size, columns);
      largest = std::max(largest, rows.size * columns);
      square = std::max(square, side * side);
      if (!gathered_.is_divided(*placed)) own = std::max(own, rows.size * columns);
    }
  }
  const bool rounds = wide == DType::f32 && config.precision <= ProductPrecision::medium;
  multiplied_ = rounds ? DType::bf16 : wide;
  held_ = rounds && config.precision == ProductPrecision::low ? DType::bf16 : wide;
  const auto buffer = [&](int64_t elements, DType type, std::string_view label) {
    return Tensor::empty(runtime.arena(MemoryClass::optimizer), {elements}, type, label);
  };
  direction_ = buffer(own, wide, "muon.direction");
  if (held_ != wide) x_ = buffer(largest, held_, "muon.x");
  y_ = buffer(largest, held_, "muon.y");
  gram_ = buffer(square, held_, "muon.gram");
  square_ = buffer(square, held_, "muon.square");
  x_rounded_ = held_ == multiplied_ ? Tensor() : buffer(largest, multiplied_, "muon.x.rounded");
  gram_rounded_ =
      held_ == multiplied_ ? Tensor() : buffer(square, multiplied_, "muon.gram.rounded");
  partials_ = buffer(ceil_div(largest, kernels::kNormBlock), DType::f64, "muon.partials");
  factor_ = Tensor::empty(runtime.arena(MemoryClass::optimizer), {}, DType::f64, "muon.factor");
}

std::vector<Muon::Rows> Muon::matrices(const parallel::ParameterSpec& placed) const {
  const int64_t all = gathered_.shape(placed)[0];
  if (!config_.split_qkv || placed.matrices.empty()) return {{0, all}};
  std::vector<Rows> list;
  int64_t begin = 0;
  for (const int64_t rows : placed.matrices) {
    list.push_back({begin, rows});
    begin += rows;
  }
  MG_ASSERT(begin == all);
  return list;
}

Tensor Muon::factor(const Tensor& x, const Tensor& rounded, Stream& stream) const {
  if (!rounded.defined()) return x;
  const Tensor out = matrix(rounded, x.size(0), x.size(1));
  kernels::table(stream).copy({.x = x, .out = out}, stream);
  return out;
}

void Muon::iterate(const std::array<double, 3>& abc, const Tensor& x, Stream& stream) {
  const kernels::Table& table = kernels::table(stream);
  const auto& [a, b, c] = abc;
  const bool tall = x.size(0) > x.size(1);
  const int64_t side = std::min(x.size(0), x.size(1));
  const Tensor gram = matrix(gram_, side, side), square = matrix(square_, side, side),
               y = matrix(y_, x.size(0), x.size(1));
  const Tensor x_factor = factor(x, x_rounded_, stream);
  table.gemm({.a = x_factor, .b = x_factor, .out = gram, .transpose_a = tall, .transpose_b = !tall},
             stream);
  const Tensor gram_factor = factor(gram, gram_rounded_, stream);
  table.gemm({.a = gram_factor, .b = gram_factor, .out = square, .transpose_b = true}, stream);
  // bA + cA^2 overwrites the rounded A.
  table.weighted_sum({.x = gram, .y = square, .out = gram_factor, .x_weight = b, .y_weight = c},
                     stream);
  table.gemm({.a = tall ? x_factor : gram_factor, .b = tall ? gram_factor : x_factor, .out = y},
             stream);
  table.weighted_sum({.x = x, .y = y, .out = x, .x_weight = a, .y_weight = 1}, stream);
}

void Muon::orthogonalize(const Tensor& given, Stream& stream) {
  const kernels::Table& table = kernels::table(stream);
  const int64_t elements = given.elements();
  const Tensor partials = partials_.slice(0, 0, ceil_div(elements, kernels::kNormBlock));
  const Tensor x = held_ == given.dtype() ? given : matrix(x_, given.size(0), given.size(1));
  table.sum_of_squares({.x = given.view({elements}), .partial = partials}, stream);
  table.unit_norm({.x = given, .partials = partials, .out = x}, stream);
  for (const auto& abc : coefficients_) iterate(abc, x, stream);
  if (held_ != given.dtype()) table.copy({.x = x, .out = given}, stream);
}

void Muon::update(const Target& target, const StepScalars& step, Stream& stream) {
  if (gathered_.is_divided(*target.placed)) return update_divided(target, step, stream);
  const int64_t columns = target.weight.value.size(1);
  for (const Rows& rows : matrices(*target.placed)) {
    if (rows.size == 0) continue;
    const Tensor direction = matrix(direction_, rows.size, columns);
    find_direction(target, rows, step, direction, stream);
    orthogonalize(direction, stream);
    set_factor(rows.size, columns, stream);
    descend(target, rows, step, direction, stream);
  }
}

void Muon::update_divided(const Target& target, const StepScalars& step, Stream& stream) {
  const parallel::ParameterSpec& placed = *target.placed;
  const Tensor own = gathered_.slice(placed), whole = gathered_.whole(placed);
  if (own.elements() > 0) find_direction(target, {0, own.size(0)}, step, own, stream);
  gathered_.gather(placed, stream);
  const std::vector<Rows> list = matrices(placed);
  for (const Rows& rows : list)
    if (rows.size > 0) orthogonalize(whole.slice(0, rows.begin, rows.size), stream);
  gathered_.take(placed, stream);
  for (const Rows& rows : list) {
    set_factor(rows.size, whole.size(1), stream);
    gathered_.for_each_row(placed, rows.begin, rows.size, [&](int64_t begin, int64_t size) {
      descend(target, {begin, size}, step, own.slice(0, begin, size), stream);
    });
  }
}

void Muon::rehearse(const Target& target, Stream& stream) {
  const parallel::ParameterSpec& placed = *target.placed;
  const bool divided = gathered_.is_divided(placed);
  const int64_t columns = gathered_.shape(placed)[1];
  const auto copy_to = [&](const Tensor& x, const Tensor& out) {
    if (out.elements() > 0) kernels::table(stream).copy({.x = x, .out = out}, stream);
  };
  if (divided) {
    copy_to(target.gradient, gathered_.slice(placed));
    gathered_.gather(placed, stream);
  }
  for (const Rows& rows : matrices(placed)) {
    if (rows.size == 0) continue;
    const Tensor direction = divided ? gathered_.whole(placed).slice(0, rows.begin, rows.size)
                                     : matrix(direction_, rows.size, columns);
    if (!divided) copy_to(part(target.gradient, rows.begin, rows.size), direction);
    orthogonalize(direction, stream);
  }
}

void Muon::find_direction(const Target& target, const Rows& rows, const StepScalars& step,
                          const Tensor& direction, Stream& stream) const {
  kernels::table(stream).muon_momentum({.grad = part(target.gradient, rows.begin, rows.size),
                                        .momentum = part(target.states[0], rows.begin, rows.size),
                                        .scale = step.scale,
                                        .direction = direction,
                                        .mu = config_.momentum,
                                        .nesterov = config_.nesterov},
                                       stream);
}

void Muon::set_factor(int64_t rows, int64_t columns, Stream& stream) {
  const double factor = config_.extra_scale * scale_factor(config_.scale, rows, columns);
  kernels::table(stream).fill({.out = factor_, .value = factor}, stream);
}

void Muon::descend(const Target& target, const Rows& rows, const StepScalars& step,
                   const Tensor& direction, Stream& stream) const {
  kernels::table(stream).sgd({.parameter = {part(target.weight.value, rows.begin, rows.size),
                                            part(target.weight.remainder, rows.begin, rows.size)},
                              .grad = direction,
                              .lr = target.learning_rate,
                              .weight_decay = step.weight_decay,
                              .step = step.step,
                              .scale = factor_,
                              .decay = target.placed->decay},
                             stream);
}

}  // namespace megatron::optim
