#include "inference/device_draws.h"

#include <bit>

#include "kernels/sample.h"
#include "kernels/table.h"

namespace megatron::inference {

bool draw_any(std::span<const double> rules) {
  for (size_t i = kernels::kTemperature; i < rules.size(); i += kernels::kSampleRules)
    if (rules[i] >= 0) return true;
  return false;
}

DrawTensors::DrawTensors(Runtime& runtime, int64_t rows) : runtime_(runtime) {
  Arena& arena = runtime.arena(MemoryClass::activations);
  rules_ = Tensor::empty(arena, {rows, kernels::kSampleRules}, DType::f64, "draws.rules");
  weights_ = Tensor::empty(arena, {rows}, DType::f32, "draws.weights");
  results_ = Tensor::empty(arena, {2 * rows}, DType::i32, "draws.results");
}

void DrawTensors::fill(std::span<const double> rules, int64_t rows) {
  if (!runtime_.device().has_data()) return;
  std::vector<double> all(rules.begin(), rules.end()), weights;
  while (static_cast<int64_t>(all.size()) < rows * kernels::kSampleRules)
    all.insert(all.end(), {-1, 0, 1, 0, 0});
  for (size_t i = kernels::kTemperature; i < all.size(); i += kernels::kSampleRules)
    weights.push_back(all[i] < 0 ? 0 : 1);
  Tensor of_rules = rules_.slice(0, 0, rows), of_weights = weights_.slice(0, 0, rows);
  copy_from(of_rules, std::span<const double>(all), runtime_.stream());
  copy_from(of_weights, std::span<const double>(weights), runtime_.stream());
}

void DrawTensors::queue(const Tensor& logits, int64_t choices) const {
  const int64_t rows = logits.size(0);
  Stream& stream = runtime_.stream();
  const kernels::Table& table = kernels::table(stream);
  const Tensor ids = results_.slice(0, 0, rows);
  table.sample(
      {.logits = logits.slice(1, 0, choices), .rules = rules_.slice(0, 0, rows), .ids = ids},
      stream);
  table.cross_entropy({.logits = logits,
                       .labels = ids,
                       .weights = weights_.slice(0, 0, rows),
                       .loss = results_.slice(0, rows, rows).view_as(DType::f32)},
                      stream);
}

DeviceDraws DrawTensors::read(int64_t rows, int64_t count) const {
  runtime_.stream().synchronize();
  std::vector<int32_t> values(static_cast<size_t>(2 * rows));
  copy_bytes_to(results_.slice(0, 0, 2 * rows), std::as_writable_bytes(std::span(values)));
  DeviceDraws draws;
  for (int64_t r = 0; r < count; ++r) {
    draws.ids.push_back(values[static_cast<size_t>(r)]);
    draws.losses.push_back(std::bit_cast<float>(values[static_cast<size_t>(rows + r)]));
  }
  return draws;
}

}  // namespace megatron::inference
