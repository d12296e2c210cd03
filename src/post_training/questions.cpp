#include "post_training/questions.h"

#include <algorithm>

#include "corpus/chat/best_answer.h"

namespace megatron::post_training {
namespace {

using corpus::TokenSpan;

double overlap(const TokenSpan& a, const TokenSpan& b) {
  const bool none = a.first == 0 || b.first == 0;
  if (none) return a.first == b.first ? 1 : 0;
  const auto both = static_cast<double>(
      std::max<int64_t>(std::min(a.last, b.last) - std::max(a.first, b.first) + 1, 0));
  return 2 * both / static_cast<double>(a.last - a.first + b.last - b.first + 2);
}

}  // namespace

training::ObjectiveTerms QuestionObjective::evaluate(const corpus::HostBatch& batch,
                                                     std::span<const double> scores,
                                                     std::span<double> gradient) const {
  training::ObjectiveTerms terms = AnswerObjective::evaluate(batch, scores, gradient);
  double exact = 0, f1 = 0, windows = 0;
  for (const TextRange& text : counted_texts(batch)) {
    const auto label = [&](size_t t) { return batch.labels[text.begin + t]; };
    size_t begin = 0, end = text.length;
    while (begin < end && label(begin) == 0) ++begin;
    while (end > begin && label(end - 1) == 0) --end;
    const TokenSpan best =
                        corpus::best_answer(scores.subspan(text.begin * 2, text.length * 2),
                                            static_cast<int64_t>(begin), static_cast<int64_t>(end)),
                    answer{static_cast<int64_t>(batch.targets[text.begin]),
                           static_cast<int64_t>(batch.targets[text.begin + 1])};
    const double null = scores[text.begin * 2] + scores[text.begin * 2 + 1];
    const TokenSpan predicted = best.score > null ? best : TokenSpan{};
    exact += predicted.first == answer.first && predicted.last == answer.last ? 1 : 0;
    f1 += overlap(predicted, answer);
    windows += 1;
  }
  const double divisor = std::max(windows, 1.0);
  terms.metrics = {{"exact match", exact / divisor, windows}, {"f1", f1 / divisor, windows}};
  return terms;
}

}  // namespace megatron::post_training
