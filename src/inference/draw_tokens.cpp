#include "inference/draw_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/sample.h"

namespace megatron::inference {
namespace {

// Reason why a text ends with the token about to be appended, if it does.
std::optional<Finish> finish_of(Sequence& s, int32_t id, const models::Model& model) {
  const Request& request = s.request;
  if (std::ranges::find(request.end_tokens, id) != request.end_tokens.end())
    return Finish::end_token;
  if (s.matcher) {
    s.matcher->accept(id);
    if (s.matcher->must_end()) return Finish::complete;
  }
  const int64_t length = s.length() + 1;
  if (length - s.given >= request.max_tokens) return Finish::length;
  if (length > model->context_length()) return Finish::positions;
  return {};
}

// Draws a token from the ids that the grammar allows, and from the end tokens if the text may end.
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
                       .prompt = static_cast<size_t>(s.given),
                       .end_tokens = request.end_tokens,
                       .allowed = allowed};
  return draw(logits, text, request.sampling, request.number);
}

// Takes the device's draws and returns the rows without one: those left out, and those that cannot
// be drawn from, for which the host finds the reason.
std::vector<size_t> take_draws(std::span<Sequence* const> ready, const DeviceDraws& on_device,
                               const models::Model& model, std::span<DrawnToken> drawn) {
  std::vector<size_t> others;
  for (size_t r = 0; r < ready.size(); ++r) {
    if (on_device.ids.empty() || on_device.ids[r] < 0) {
      others.push_back(r);
      continue;
    }
    drawn[r].token.draw = {on_device.ids[r], 0.0 - on_device.losses[r]};
    drawn[r].finish = finish_of(*ready[r], on_device.ids[r], model);
  }
  return others;
}

void draw_on_host(std::span<Sequence* const> ready, std::span<const size_t> rows, Logits& logits,
                  int64_t vocabulary, const models::Model& model, Runtime& runtime,
                  std::span<DrawnToken> drawn) {
  logits.read(rows);
  // Per sequence: the token, then its alternatives.
  std::vector<std::vector<int32_t>> labels(ready.size());
  runtime.pool().parallel_for(std::ssize(rows), [&](int64_t row, int) {
    const size_t r = rows[static_cast<size_t>(row)];
    const Request& request = ready[r]->request;
    const std::span<const float> choices = logits.row(r).first(static_cast<size_t>(vocabulary));
    const BeamGroup* const beams = ready[r]->of_request().beams.get();
    try {
      if (beams != nullptr) {
        checked_largest(choices);
        labels[r] = most_likely(choices, beams->search.candidates());
        return;
      }
      const int32_t id = draw_token(*ready[r], choices);
      drawn[r].finish = finish_of(*ready[r], id, model);
      labels[r] = {id};
    } catch (const Error& error) {
      drawn[r].error = error.what();
      drawn[r].by_grammar = dynamic_cast<const GrammarLimit*>(&error) != nullptr;
      return;
    }
    if (request.logprobs <= 0) return;
    const std::vector<int32_t> most = most_likely(choices, request.logprobs);
    labels[r].insert(labels[r].end(), most.begin(), most.end());
  });
  const std::vector<std::vector<double>> losses = logits.losses(labels);
  for (const size_t r : rows) {
    if (labels[r].empty()) continue;
    const bool of_beam = ready[r]->of_request().beams != nullptr;
    if (!of_beam) drawn[r].token.draw = {labels[r][0], 0.0 - losses[r][0]};
    for (size_t i = of_beam ? 0 : 1; i < labels[r].size(); ++i)
      drawn[r].token.alternatives.push_back({labels[r][i], 0.0 - losses[r][i]});
  }
}

}  // namespace

std::vector<double> sampling_rules(std::span<Sequence* const> ready, int64_t vocabulary) {
  std::vector<double> rules;
  for (const Sequence* s : ready) {
    const Request& request = s->request;
    const SamplingOptions& options = request.sampling;
    const TextSoFar text{.tokens = s->tokens, .prompt = static_cast<size_t>(s->given)};
    if (vocabulary > kernels::kMaxSampled || s->matcher || request.logprobs > 0 || request.beams ||
        changes_logits(text, options)) {
      rules.insert(rules.end(), {-1, 0, 1, 0, 0});
      continue;
    }
    const bool greedy = options.temperature == 0;
    rules.insert(
        rules.end(),
        {options.temperature, static_cast<double>(options.top_k), options.top_p, options.min_p,
         greedy ? 0 : uniform_of(options, request.number, text.tokens.size())});
  }
  return rules;
}

std::vector<DrawnToken> draw_tokens(std::span<Sequence* const> ready, const DeviceDraws& on_device,
                                    Logits& logits, int64_t vocabulary, const models::Model& model,
                                    Runtime& runtime) {
  std::vector<DrawnToken> drawn(ready.size());
  const std::vector<size_t> others = take_draws(ready, on_device, model, drawn);
  if (!others.empty()) draw_on_host(ready, others, logits, vocabulary, model, runtime, drawn);
  return drawn;
}

}  // namespace megatron::inference
