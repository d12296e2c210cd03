#include "kernels/case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {

// One function per family, in cases/FAMILY.cpp.
using AddCases = void(std::vector<Case>&);
AddCases add_gemm_cases, add_norm_cases, add_activation_cases, add_rope_cases, add_attention_cases,
    add_attention_merge_cases, add_embedding_cases, add_cross_entropy_cases, add_draw_cases,
    add_dropout_cases, add_elementwise_cases, add_optimizer_cases, add_head_norm_cases,
    add_put_rows_cases, add_sample_cases, add_element_cases, add_together_cases, add_route_cases,
    add_noise_cases, add_expert_balance_cases, add_expert_rows_cases, add_grouped_gemm_cases,
    add_causal_conv_cases, add_gated_norm_cases, add_state_scan_cases, add_quantize_family_cases,
    add_coded_product_cases, add_matrix_codes_cases, add_tokens_of_rows_cases;

std::vector<Case> cases() {
  std::vector<Case> all;
  for (AddCases* const add : {add_gemm_cases,           add_norm_cases,
                              add_activation_cases,     add_rope_cases,
                              add_attention_cases,      add_embedding_cases,
                              add_cross_entropy_cases,  add_draw_cases,
                              add_dropout_cases,        add_elementwise_cases,
                              add_optimizer_cases,      add_head_norm_cases,
                              add_put_rows_cases,       add_sample_cases,
                              add_element_cases,        add_together_cases,
                              add_route_cases,          add_noise_cases,
                              add_expert_balance_cases, add_expert_rows_cases,
                              add_grouped_gemm_cases,   add_attention_merge_cases,
                              add_causal_conv_cases,    add_gated_norm_cases,
                              add_state_scan_cases,     add_quantize_family_cases,
                              add_coded_product_cases,  add_matrix_codes_cases,
                              add_tokens_of_rows_cases})
    add(all);
  return all;
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Output {
  std::string name;
  std::vector<double> values;
};

// Runs a call and reads its outputs. A bf16 value and the i16 remainder that follows it are read as
// the f32 master that they represent: near a tie, the halves may differ much when the master does
// not.
std::vector<Output> results(const Case::Call& call, Runtime& runtime) {
  call.run(runtime.stream(), table(runtime.stream()));
  runtime.stream().synchronize();
  std::vector<Output> outputs;
  const Tensor* previous = nullptr;
  for (const auto& [name, tensor] : call.outputs) {
    std::vector<double> values = to_doubles(tensor);
    if (previous != nullptr && previous->dtype() == DType::bf16 && tensor.dtype() == DType::i16) {
      std::vector<double>& master = outputs.back().values;
      for (size_t i = 0; i < master.size(); ++i) {
        const uint32_t high = std::bit_cast<uint32_t>(static_cast<float>(master[i]));
        master[i] =
            std::bit_cast<float>(high + static_cast<uint32_t>(static_cast<int32_t>(values[i])));
      }
    } else {
      outputs.push_back({name, std::move(values)});
    }
    previous = &tensor;
  }
  return outputs;
}

bool same_bits(const Output& a, const Output& b) {
  return std::ranges::equal(a.values, b.values, {}, std::bit_cast<uint64_t, double>,
                            std::bit_cast<uint64_t, double>);
}

// Root mean square of the finite elements.
double rms(const std::vector<double>& values) {
  double squares = 0;
  size_t finite = 0;
  for (const double y : values) {
    if (!std::isfinite(y)) continue;
    ++finite;
    squares += y * y;
  }
  return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

// Largest |out - reference| relative to the reference's rms, or to |reference| / most if that is
// larger; infinities must agree.
double relative_error(const Output& out, const Output& reference, double most) {
  const double least = rms(reference.values);
  double worst = 0;
  for (size_t i = 0; i < reference.values.size(); ++i) {
    const double x = out.values[i], y = reference.values[i];
    if (std::isnan(x) || std::isnan(y)) return kInfinity;
    if (std::isinf(y)) {
      if (x != y) return kInfinity;
      continue;
    }
    if (x != y) worst = std::max(worst, std::abs(x - y) / std::max(least, std::abs(y) / most));
  }
  return worst;
}

// NaN equals NaN, whatever its bits.
bool equal_numbers(const Output& out, const Output& reference) {
  return std::ranges::equal(out.values, reference.values, [](double x, double y) {
    return std::isnan(y) ? std::isnan(x) : x == y && std::signbit(x) == std::signbit(y);
  });
}

void compare(const std::vector<Output>& outputs, const std::vector<Output>& others,
             const char* what, CaseResult& result) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!same_bits(outputs[i], others[i])) result = {kInfinity, outputs[i].name + what};
  }
}

CaseResult compare_with(DeviceKind oracle_kind, double tolerance, double most,
                        const Case& kernel_case, Runtime& runtime) {
  MG_CHECK(runtime.device().has_data(),
           "a case cannot be compared on device '{}', which does not hold data",
           to_string(runtime.device()));
  Runtime oracle({oracle_kind}, runtime.pool().size());
  const std::vector<Output> wanted = results(kernel_case.make(oracle), oracle);
  const Case::Call call = kernel_case.make(runtime);
  const std::vector<Output> outputs = results(call, runtime);
  MG_ASSERT(wanted.size() == outputs.size());
  CaseResult result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const double worst = kernel_case.exact
                             ? (equal_numbers(outputs[i], wanted[i]) ? 0 : kInfinity)
                             : relative_error(outputs[i], wanted[i], most) / tolerance;
    if (i == 0 || worst > result.worst) result = {worst, outputs[i].name};
  }
  compare(outputs, results(call, runtime), " differs when run again", result);
  if (runtime.device().kind != DeviceKind::cpu) return result;
  for (const int threads : {1, 3}) {
    Runtime other(runtime.device(), threads);
    compare(outputs, results(kernel_case.make(other), other), " differs with the number of threads",
            result);
  }
  return result;
}

}  // namespace

CaseResult compare_with_reference(const Case& kernel_case, Runtime& runtime) {
  return compare_with(DeviceKind::reference, kernel_case.tolerance, kInfinity, kernel_case,
                      runtime);
}

CaseResult compare_with_cpu(const Case& kernel_case, Runtime& runtime) {
  return compare_with(DeviceKind::cpu, 2 * kernel_case.tolerance, 4, kernel_case, runtime);
}

}  // namespace megatron::kernels
