// Measurements of `bench generate` on a model with random weights.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "inference/engine.h"
#include "models/stage.h"
#include "plan/machine_rates.h"

namespace megatron::bench {

class GenerateMeasures {
 public:
  // engine: options of the engines that do not depend on the measurement. peak: FLOP/s of products.
  GenerateMeasures(const models::Model& model, Runtime& runtime, DType type,
                   const inference::EngineOptions& engine, double peak);

  // Decodes `count` tokens after prompts of `prompt` tokens, `sequences` at once; prints the speed
  // and its share of what the machine allows, and returns tokens/s. Other programs may use the
  // memory too, so its bandwidth is measured before and after.
  double decode(int64_t prompt, int64_t count, int64_t sequences, plan::BandwidthMeter& memory);
  // Decodes `sequences` at once, alternately with an adapter for each sequence and without any. The
  // adapters are of rank `rank` and change all matrices.
  void adapters(int64_t prompt, int64_t count, int64_t sequences, int64_t rank);
  // Measures a prompt's tokens/s and its share of the GEMM peak, next to that of training's forward
  // pass.
  double prefill(int64_t prompt);
  // Measures the time per token at two positions, alternately.
  void positions(int64_t early, int64_t late, int64_t count);
  // Measures the time to the first token of a prompt with all but `rest` tokens cached, and of an
  // uncached one.
  void cached_prefix(int64_t prompt, int64_t rest);

 private:
  std::vector<int32_t> prompt_of(int64_t length, int64_t number) const;
  using Adapters = std::vector<std::shared_ptr<const inference::Adapter>>;
  // Seconds of each token of a sequence after the first. adapters: of each sequence; empty: none.
  std::vector<double> tokens(int64_t prompt, int64_t count, int64_t sequences,
                             inference::Statistics& statistics, const Adapters& adapters = {});
  double prefill_seconds(int64_t prompt);
  double forward_seconds(int64_t length);
  double share_of_experts(int64_t tokens) const;
  double weights_of_a_pass(int64_t sequences) const;
  double cached_bytes(double position) const;
  double attention_flops(double position) const;

  Runtime& runtime_;
  const inference::EngineOptions engine_;
  const double peak_;
  const std::unique_ptr<models::Stage> stage_;
};

}  // namespace megatron::bench
