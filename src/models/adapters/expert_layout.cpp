#include "models/adapters/expert_layout.h"

#include <fmt/ranges.h>

#include <tuple>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::models {
namespace {

using Sizes = std::vector<int64_t>;

// "0.18.1", "0.20.1.dev0@5d602fd"; a file without a version is older than 0.18.
bool swaps_in_and_out(std::string_view peft_version) {
  const auto major = parse_number<int64_t>(take_until(peft_version, '.'));
  const auto minor = parse_number<int64_t>(take_until(peft_version, '.'));
  return !major || !minor || std::tie(*major, *minor) < std::tuple{0, 19};
}

int64_t stored_rank(const FusedExperts& fused) {
  const Sizes &a = fused.shape_a, &b = fused.shape_b;
  const bool good =
      a.size() == 2 && b.size() == 2 && a[0] > 0 && a[0] == b[1] && a[0] % fused.experts == 0;
  MG_CHECK(good,
           "the adapter of {} has A {} and B {}; for {} experts they must be [{} * rank, in] and "
           "[out, rank * {}]",
           fused.name, a, b, fused.experts, fused.experts, fused.experts);
  return a[0] / fused.experts;
}

}  // namespace

StoredElement ExpertLayout::a(int64_t expert, int64_t row, int64_t column) const {
  if (swapped) return {AdapterPart::b, (column * rank + row) * experts + expert};
  return {AdapterPart::a, (expert * rank + row) * in + column};
}

StoredElement ExpertLayout::b(int64_t expert, int64_t row, int64_t column) const {
  if (swapped) return {AdapterPart::a, (expert * rank + column) * out + row};
  return {AdapterPart::b, (row * rank + column) * experts + expert};
}

std::vector<int64_t> ExpertLayout::stored_shape(AdapterPart part) const {
  MG_ASSERT(part == AdapterPart::a || part == AdapterPart::b);
  if (part == AdapterPart::a) return {experts * rank, swapped ? out : in};
  return {swapped ? in : out, rank * experts};
}

ExpertLayout expert_layout(const FusedExperts& fused) {
  ExpertLayout layout{
      .experts = fused.experts, .rank = stored_rank(fused), .in = fused.in, .out = fused.out};
  layout.swapped =
      !fused.transposed && (fused.in == fused.out ? swaps_in_and_out(fused.peft_version)
                                                  : fused.shape_a[1] == fused.out);
  const Sizes a = layout.stored_shape(AdapterPart::a), b = layout.stored_shape(AdapterPart::b);
  MG_CHECK(
      fused.shape_a == a && fused.shape_b == b,
      "the adapter of {} has A {} and B {}; with rank {} they must be {} and {} for {} experts "
      "of {} inputs and {} outputs",
      fused.name, fused.shape_a, fused.shape_b, layout.rank, a, b, fused.experts, fused.in,
      fused.out);
  return layout;
}

}  // namespace megatron::models
