#include "kernels/own_kernels.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "base/error.h"

namespace megatron::kernels {
namespace {

struct OwnKernel {
  std::string_view name;
  bool (*is_own)(const Table&);
};
constexpr OwnKernel kEntries[] = {
    {"gemm", [](const Table& t) { return t.gemm != nullptr; }},
    {"add_rms_norm", [](const Table& t) { return t.add_rms_norm != nullptr; }},
    {"add_rms_norm_backward", [](const Table& t) { return t.add_rms_norm_backward != nullptr; }},
    {"add_layer_norm", [](const Table& t) { return t.add_layer_norm != nullptr; }},
    {"add_layer_norm_backward",
     [](const Table& t) { return t.add_layer_norm_backward != nullptr; }},
    {"activation", [](const Table& t) { return t.activation != nullptr; }},
    {"activation_backward", [](const Table& t) { return t.activation_backward != nullptr; }},
    {"rope", [](const Table& t) { return t.rope != nullptr; }},
    {"attention", [](const Table& t) { return t.attention != nullptr; }},
    {"attention_backward", [](const Table& t) { return t.attention_backward != nullptr; }},
    {"embedding", [](const Table& t) { return t.embedding != nullptr; }},
    {"embedding_backward", [](const Table& t) { return t.embedding_backward != nullptr; }},
    {"cross_entropy", [](const Table& t) { return t.cross_entropy != nullptr; }},
    {"vocabulary_stats", [](const Table& t) { return t.vocabulary_stats != nullptr; }},
    {"vocabulary_cross_entropy",
     [](const Table& t) { return t.vocabulary_cross_entropy != nullptr; }},
    {"dropout", [](const Table& t) { return t.dropout != nullptr; }},
    {"add", [](const Table& t) { return t.add != nullptr; }},
    {"copy", [](const Table& t) { return t.copy != nullptr; }},
    {"fill", [](const Table& t) { return t.fill != nullptr; }},
    {"column_sum", [](const Table& t) { return t.column_sum != nullptr; }},
    {"sum", [](const Table& t) { return t.sum != nullptr; }},
    {"sum_of_squares", [](const Table& t) { return t.sum_of_squares != nullptr; }},
    {"grad_scale", [](const Table& t) { return t.grad_scale != nullptr; }},
    {"adam", [](const Table& t) { return t.adam != nullptr; }},
    {"sgd", [](const Table& t) { return t.sgd != nullptr; }},
    {"lion", [](const Table& t) { return t.lion != nullptr; }},
    {"muon_momentum", [](const Table& t) { return t.muon_momentum != nullptr; }},
    {"unit_norm", [](const Table& t) { return t.unit_norm != nullptr; }},
    {"weighted_sum", [](const Table& t) { return t.weighted_sum != nullptr; }},
};
static_assert(std::ranges::equal(kEntries, kHotKernels, {}, &OwnKernel::name));

}  // namespace

std::vector<std::string_view> composed_kernels(const Table& table) {
  std::vector<std::string_view> names;
  for (const OwnKernel& entry : kEntries)
    if (!entry.is_own(table)) names.push_back(entry.name);
  return names;
}

void require_own_kernels(const Table& table, DeviceKind kind) {
  const std::vector<std::string_view> composed = composed_kernels(table);
  if (composed.empty()) return;
  std::string names;
  for (const std::string_view one : composed)
    names += (names.empty() ? "" : ", ") + std::string(one);
  fail(
      "on {} there is no kernel of its own for {}: other kernels would compute it together, "
      "slowly; "
      "use --device cpu, or --allow-composed to go on",
      name(kind), names);
}

}  // namespace megatron::kernels
