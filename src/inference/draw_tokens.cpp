#include "inference/draw_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/sample.h"

namespace megatron::inference {
namespace {

// Whether a text ends with a token that is about to be appended.
std::optional<Finish> finish_of(Sequence& s, int32_t id, const models::Model& model) {
  const Request& request = s.request;
  if (std::ranges::find(request.end_tokens, id) != request.end_tokens.end())
    return Finish::end_token;
  if (s.matcher) {
    s.matcher->accept(id);
    if (s.matcher->must_end()) return Finish::complete;
  }
  const int64_t length = s.length() + 1;
  if (length - std::ssize(request.prompt) >= request.max_tokens) return Finish::length;
  if (length > model->max_position_embeddings()) return Finish::positions;
  return {};
}

// The ids that the grammar and, at an end, the end tokens allow.
int32_t draw_token(Sequence& s, std::span<const float> logits) {
  const Request& request = s.request;
  std::vector<uint64_t> allowed;
  if (s.matcher) {
    allowed.resize(std::max(request.token_bytes->words(), (logits.size() + 63) / 64));
    bool complete = false;
    s.matcher->allowed(allowed, complete);
    if (complete) {
      for (const int32_t id : request.end_tokens) {
        const auto i = static_cast<size_t>(id);
        if (i < logits.size()) allowed[i / 64] |= uint64_t{1} << (i % 64);
      }
    }
  }
  const TextSoFar text{.tokens = s.tokens,
                       .prompt = request.prompt.size(),
                       .end_tokens = request.end_tokens,
                       .allowed = allowed};
  return draw(logits, text, request.sampling, request.number);
}

// Draws by the device's kernel, and returns the rows that it does not draw: all but on CUDA, those whose logits are
// changed first or are wanted, and those that cannot be drawn from, of which the host says why.
std::vector<size_t> sample(std::span<Sequence* const> ready, const Logits& logits,
                           int64_t vocabulary, const models::Model& model, const Device& device,
                           std::span<DrawnToken> drawn) {
  std::vector<size_t> others;
  std::vector<double> rules;
  for (size_t r = 0; r < ready.size(); ++r) {
    const Request& request = ready[r]->request;
    const SamplingOptions& options = request.sampling;
    const TextSoFar text{.tokens = ready[r]->tokens, .prompt = request.prompt.size()};
    if (device.kind != DeviceKind::cuda || vocabulary > kernels::kMostSampled ||
        ready[r]->matcher || request.logprobs > 0 || changes_logits(text, options)) {
      others.push_back(r);
      rules.insert(rules.end(), {-1, 0, 1, 0, 0});
      continue;
    }
    const bool greedy = options.temperature == 0;
    rules.insert(
        rules.end(),
        {options.temperature, static_cast<double>(options.top_k), options.top_p, options.min_p,
         greedy ? 0 : uniform_of(options, request.number, text.tokens.size())});
  }
  if (others.size() == ready.size()) return others;
  const Logits::Sampled sampled = logits.sample(rules, vocabulary);
  others.clear();
  for (size_t r = 0; r < ready.size(); ++r) {
    if (sampled.ids[r] < 0) {
      others.push_back(r);
      continue;
    }
    drawn[r].token.draw = {sampled.ids[r], 0.0 - sampled.losses[r]};
    drawn[r].finish = finish_of(*ready[r], sampled.ids[r], model);
  }
  return others;
}

void draw_on_host(std::span<Sequence* const> ready, std::span<const size_t> rows, Logits& logits,
                  int64_t vocabulary, const models::Model& model, Runtime& runtime,
                  std::span<DrawnToken> drawn) {
  logits.read(rows);
  std::vector<std::vector<int32_t>> labels(ready.size());  // the token, then its alternatives
  runtime.pool().parallel_for(std::ssize(rows), [&](int64_t row, int) {
    const size_t r = rows[static_cast<size_t>(row)];
    const Request& request = ready[r]->request;
    const std::span<const float> choices = logits.row(r).first(static_cast<size_t>(vocabulary));
    try {
      const int32_t id = draw_token(*ready[r], choices);
      drawn[r].finish = finish_of(*ready[r], id, model);
      labels[r] = {id};
    } catch (const Error& error) {
      drawn[r].error = error.what();
      return;
    }
    if (request.logprobs <= 0) return;
    const std::vector<int32_t> most = most_likely(choices, request.logprobs);
    labels[r].insert(labels[r].end(), most.begin(), most.end());
  });
  const std::vector<std::vector<double>> losses = logits.losses(labels);
  for (const size_t r : rows) {
    if (labels[r].empty()) continue;
    drawn[r].token.draw = {labels[r][0], 0.0 - losses[r][0]};
    for (size_t i = 1; i < labels[r].size(); ++i)
      drawn[r].token.alternatives.push_back({labels[r][i], 0.0 - losses[r][i]});
  }
}

}  // namespace

std::vector<DrawnToken> draw_tokens(std::span<Sequence* const> ready, Logits& logits,
                                    int64_t vocabulary, const models::Model& model,
                                    Runtime& runtime) {
  std::vector<DrawnToken> drawn(ready.size());
  const std::vector<size_t> others =
      sample(ready, logits, vocabulary, model, runtime.device(), drawn);
  if (!others.empty()) draw_on_host(ready, others, logits, vocabulary, model, runtime, drawn);
  return drawn;
}

}  // namespace megatron::inference
