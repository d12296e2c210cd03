#include "golden/training/traffic_formula.h"

#include <algorithm>
#include <numeric>

namespace megatron::plan {
namespace {

constexpr double kGradient = 4;  // bytes

double d(int64_t value) { return static_cast<double>(value); }

// Bytes of the activations [T,H] of a micro-batch.
double activation(const TrafficShape& s) {
  return d(s.tokens) * d(s.model->hidden_size()) * d(size_of(s.type));
}

// Fraction of its bytes that a rank sends in an all-gather or a reduce-scatter.
double share(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

int64_t norm_elements(const models::ModelFacts& m) { return m.hidden_size * (m.rms_norm ? 1 : 2); }

int64_t position_elements(const models::ModelFacts& m) {
  return m.positions == models::Positions::learned ? m.max_position_embeddings * m.hidden_size : 0;
}

int64_t layer_elements(const models::ModelFacts& m) {
  const models::AttentionFacts& a = *m.attention;
  const models::FeedForwardFacts& f = *m.feed_forward;
  const int64_t q = a.heads * a.head_size, k = a.key_heads * a.head_size, h = m.hidden_size,
                up = (f.gated ? 2 : 1) * f.width;
  int64_t elements = 2 * norm_elements(m) + (q + 2 * k) * h + h * q + up * h + h * f.width;
  if (a.qkv_bias) elements += q + 2 * k;
  if (f.bias) elements += h + up + h;
  return elements;
}

// Parameters that every tensor-parallel rank holds in full.
int64_t undivided(const models::ModelFacts& m) {
  const int64_t layer = 2 * norm_elements(m) + (m.feed_forward->bias ? 2 * m.hidden_size : 0);
  return m.num_layers * layer + norm_elements(m) + position_elements(m);
}

}  // namespace

double tensor_parallel_bytes(const TrafficShape& s, int ranks, bool sequence) {
  const models::ModelFacts& m = s.model->facts();
  const double part = share(ranks) * activation(s), layers = d(m.num_layers);
  double bytes = part * ((sequence ? 10 : 8) * layers + 4) + d(ranks - 1) * d(s.tokens) * 3 * 4;
  if (m.attention->key_heads < ranks) {
    const double keys = 2 * d(m.attention->key_heads * m.attention->head_size) * d(size_of(s.type));
    bytes += layers * 2 * share(ranks) * d(s.tokens) * keys;
  }
  bytes *= d(s.micro_batches);
  return sequence ? bytes + 2 * share(ranks) * d(undivided(m)) * kGradient : bytes;
}

int64_t SpanElements::total() const { return std::accumulate(spans.begin(), spans.end(), shared); }

SpanElements span_elements(const models::Model& model) {
  const models::ModelFacts& m = model->facts();
  const int64_t table = m.vocab_size * m.hidden_size;
  SpanElements elements;
  elements.shared = m.tied ? table : 0;
  elements.spans.push_back(position_elements(m) + (m.tied ? 0 : table));
  elements.spans.insert(elements.spans.end(), static_cast<size_t>(m.num_layers), layer_elements(m));
  elements.spans.push_back(norm_elements(m) + (m.tied ? 0 : table));
  return elements;
}

double data_parallel_bytes(const TrafficShape& s, const SpanElements& parameters, int ranks,
                           const parallel::DataParallelOptions& options) {
  const double value = share(ranks) * d(size_of(s.type)), gradient = share(ranks) * kGradient;
  const double all = d(parameters.total()), shared = d(parameters.shared), m = d(s.micro_batches);
  const double reduced = gradient * (m * (all - shared) + shared);
  switch (options.sharding) {
    case parallel::Sharding::none: return 2 * gradient * all;
    case parallel::Sharding::optimizer: return (gradient + value) * all;
    case parallel::Sharding::gradients: return reduced + value * all;
    case parallel::Sharding::parameters: break;
  }
  const std::vector<int64_t>& spans = parameters.spans;
  const size_t last = spans.size() - 1;
  double at_end = d(spans[last]), at_begin = d(spans[0]);
  if (options.overlap_gather) {
    at_end += d(spans[last - 1]);
    at_begin += d(spans[1]);
  }
  const double gathered =
      2 * m * (all - shared) - m * at_end - (m - 1) * at_begin + (2 * m + 1) * shared;
  return reduced + value * gathered;
}

double pipeline_bytes(const TrafficShape& s, const parallel::PipelineShape& pipeline, int stage) {
  const auto elsewhere = [&](int virtual_stage) {
    return virtual_stage >= 0 && virtual_stage < pipeline.virtual_stages() &&
           pipeline.stage_of(virtual_stage) != stage;
  };
  int messages = 0;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    const int virtual_stage = pipeline.virtual_stage(stage, chunk);
    messages += elsewhere(virtual_stage + 1);
    messages += elsewhere(virtual_stage - 1);
  }
  double bytes = d(s.micro_batches) * activation(s) * messages;
  const int first = pipeline.stage_of(0), last = pipeline.stage_of(pipeline.virtual_stages() - 1);
  if (s.model->facts().tied && first != last && (stage == first || stage == last))
    bytes += 2 * share(2) * d(s.model->vocab_size() * s.model->hidden_size()) * kGradient;
  return bytes;
}

}  // namespace megatron::plan
