// Muon: momentum orthogonalised by Newton-Schulz iterations (Jordan et al. 2024,
// kellerjordan.github.io/posts/muon; scaling: Liu et al., arXiv 2502.16982).
#pragma once

#include <array>

#include "optim/gathered_matrix.h"
#include "optim/rule.h"

namespace megatron::optim {

// Published sets of coefficients (a, b, c), one for each iteration:
//   simple         one triple for all (Jordan et al. 2024);
//   quintic        five, in a cycle (Cesista, leloykun.github.io/ponder/muon-opt-coeffs);
//   polar_express  eight, then the last (Amsel et al., arXiv 2505.16932), divided by 1.01^degree;
//   cans           five, then the last (Grishina et al., arXiv 2506.10935);
//   aol            four, in a cycle (github.com/thib-s/flash-newton-schulz).
enum class NewtonSchulz { simple, quintic, polar_express, cans, aol };
std::vector<std::array<double, 3>> coefficients(NewtonSchulz type, int64_t iterations);

// Factor of the orthogonal matrix [M,N]: spectral sqrt(max(M,N)), unit_rms_norm sqrt(M/N),
// shape_scaling sqrt(max(1, M/N)).
enum class MuonScale { spectral, unit_rms_norm, shape_scaling };
double scale_factor(MuonScale mode, int64_t rows, int64_t columns);

// Precision of the products for 16- and 32-bit models; sums are always f32, and fp64 models compute
// in fp64. highest and high: f32. medium: each factor is rounded to bf16; results and intermediate
// values are f32. low: the whole iteration is kept in bf16.
enum class ProductPrecision { low, medium, high, highest };

struct MuonConfig {
  double momentum = 0.9;
  bool nesterov = false;
  bool split_qkv = true;  // treats q, k and v as three matrices instead of one
  MuonScale scale = MuonScale::spectral;
  double extra_scale = 1;
  NewtonSchulz coefficients = NewtonSchulz::quintic;
  int64_t iterations = 5;
  ProductPrecision precision = ProductPrecision::medium;

  void check() const;  // throws Error naming the flag
};

// True if Muon updates a parameter: a matrix between embedding and output layer, except for the
// input projection of a state space.
bool takes(const parallel::ParameterSpec& placed);

// For each matrix p [M,N] of a parameter: g = gradient * scale; m += (1-mu)(g - m); d = nesterov ?
// (1-mu) g + mu m : m; X = d / max(|d|_F, 1e-7); `iterations` times A = X X^T (or, if M > N, X^T X
// on the other side), X = aX + (bA + cA^2) X; p = p (1 - lr weight_decay) - lr f X, f = extra_scale
// * scale_factor. A gated MLP's [gate; up] is one matrix. If a matrix is divided among ranks, d is
// gathered; each rank computes the whole X and takes its slice.
class Muon final : public Rule {
 public:
  // parameters: all that the rule will update; buffers are sized for the largest. tensor: the ranks
  // among which ParameterSpec::division divides; null: one.
  Muon(const MuonConfig& config, std::span<const parallel::ParameterSpec* const> parameters,
       comm::Group* tensor, Runtime& runtime);

  std::vector<State> states(DType wide) const override { return {{"momentum_buffer", wide}}; }
  void update(const Target& target, const StepScalars& step, Stream& stream) override;
  void rehearse(const Target& target, Stream& stream) override;

  // Only the iteration: replaces x [M,N] = U S V^T (singular value decomposition), in the model's
  // wide type, by approximately U V^T.
  void orthogonalize(const Tensor& x, Stream& stream);

 private:
  struct Rows {
    int64_t begin = 0, size = 0;
  };
  // Matrices of the whole parameter, not of this rank's shard.
  std::vector<Rows> matrices(const parallel::ParameterSpec& placed) const;
  void update_divided(const Target& target, const StepScalars& step, Stream& stream);
  void find_direction(const Target& target, const Rows& rows, const StepScalars& step,
                      const Tensor& direction, Stream& stream) const;
  void set_factor(int64_t rows, int64_t columns, Stream& stream);
  void descend(const Target& target, const Rows& rows, const StepScalars& step,
               const Tensor& direction, Stream& stream) const;
  void iterate(const std::array<double, 3>& abc, const Tensor& x, Stream& stream);
  // A tensor as a factor of products: the tensor itself, or its rounded copy in `rounded`.
  Tensor factor(const Tensor& x, const Tensor& rounded, Stream& stream) const;

  MuonConfig config_;
  GatheredMatrix gathered_;
  std::vector<std::array<double, 3>> coefficients_;
  // Types between products, and of factors in products.
  DType held_ = DType::f32, multiplied_ = DType::f32;
  // Flat buffers, sized for the largest matrix [M,N] or [min,min]: the direction (wide); X and Y
  // (held_), X rounded (multiplied_); A and A^2 (held_), A or bA + cA^2 rounded. Buffers of equal
  // type are shared.
  Tensor direction_, x_, y_, x_rounded_, gram_, square_, gram_rounded_;
  Tensor partials_, factor_;
};

}  // namespace megatron::optim
