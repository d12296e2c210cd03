// The passes of an encoder's engine: scores, embeddings and predictions of masked tokens.
#include <algorithm>
#include <cmath>

#include "inference/draw_tokens.h"
#include "inference/embedding.h"
#include "inference/engine.h"

namespace megatron::inference {

// Stages with the output layer run it together, where tensor parallelism divides it. All rows of a
// pass are ready.
void Engine::run_texts(ForwardPass& pass, const Drawing& drawing, PassResults& results) {
  const auto any = [&](const auto& wants) {
    return std::ranges::any_of(drawing.sequences,
                               [&](const Sequence* s) { return wants(s->request); });
  };
  if (any([](const Request& r) { return r.scores; })) results.scores = pass.text_scores();
  if (any([](const Request& r) { return !r.masked.empty(); }))
    predict_masked(pass, drawing, results);
  if (!any([](const Request& r) { return r.embedding.has_value(); })) return;
  const std::vector<std::vector<float>> hidden = pass.hidden();
  if (!ranks_.draws()) return;
  const auto width = static_cast<size_t>(stage_.model()->hidden_size());
  results.embeddings.resize(hidden.size());
  results.embedding_errors.resize(hidden.size());
  for (size_t r = 0; r < hidden.size(); ++r) {
    const auto& form = drawing.sequences[r]->request.embedding;
    if (!form) continue;
    try {
      results.embeddings[r] =
          embedding_of(pooled(hidden[r], width, form->pooling), hidden[r].size() / width, *form);
    } catch (const Error& e) {
      results.embedding_errors[r] = e.what();
    }
  }
}

// The logits of few tokens are in memory at once.
void Engine::predict_masked(ForwardPass& pass, const Drawing& drawing, PassResults& results) {
  constexpr size_t kTokens = 64;
  struct Wanted {
    int32_t token = 0, label = 0;
    int64_t count = -1;
  };
  std::vector<Wanted> all;
  int32_t begin = 0;
  for (const Sequence* s : drawing.sequences) {
    for (const MaskedToken& masked : s->request.masked)
      all.push_back({begin + masked.index, masked.label, s->request.prompt_alternatives});
    begin += static_cast<int32_t>(s->length());
  }
  results.prompt_alternatives.resize(all.size());
  for (size_t at = 0; at < all.size(); at += kTokens) {
    const auto part = std::span(all).subspan(at, std::min(kTokens, all.size() - at));
    std::vector<int32_t> tokens;
    for (const Wanted& w : part) tokens.push_back(w.token);
    Logits logits = pass.logits_after(tokens);
    std::vector<size_t> rows(part.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = i;
    logits.read(rows);
    std::vector<std::vector<int32_t>> labels(part.size());
    runtime_.pool().parallel_for(std::ssize(part), [&](int64_t n, int) {
      const auto i = static_cast<size_t>(n);
      if (part[i].count > 0)
        labels[i] =
            most_likely(logits.row(i).first(static_cast<size_t>(vocabulary_)), part[i].count);
      labels[i].push_back(part[i].label);
    });
    const std::vector<std::vector<double>> losses = logits.losses(labels);
    for (size_t i = 0; i < part.size(); ++i) {
      PromptAlternatives& alternatives = results.prompt_alternatives[at + i];
      for (size_t k = 0; k + 1 < labels[i].size(); ++k)
        alternatives.likely.push_back({labels[i][k], 0.0 - losses[i][k]});
      results.losses.push_back(losses[i].back());
    }
  }
}

void Engine::give_texts(const Drawing& drawing, PassResults& results, Updates& updates) {
  size_t masked = 0;
  for (size_t r = 0; r < updates.size(); ++r) {
    const Request& request = drawing.sequences[r]->request;
    RequestUpdate& update = updates[r];
    if (request.embedding) {
      update.embedding = std::move(results.embeddings[r]);
      update.error = std::move(results.embedding_errors[r]);
    }
    for (size_t i = 0; i < request.masked.size(); ++i, ++masked) {
      const double log_probability = 0.0 - results.losses[masked];
      if (!std::isfinite(log_probability))
        update.error = "the predictions of a masked token are NaN or infinite";
      update.prompt_log_probabilities.push_back(log_probability);
      if (request.prompt_alternatives >= 0)
        update.prompt_alternatives.push_back(std::move(results.prompt_alternatives[masked]));
    }
    if (!request.scores && !results.scores.empty()) results.scores[r].clear();
  }
}

}  // namespace megatron::inference
