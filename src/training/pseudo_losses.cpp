#include "training/pseudo_losses.h"

#include <algorithm>

#include "base/error.h"
#include "inference/fill_mask.h"
#include "inference/generate.h"

namespace megatron::training {

PseudoTexts::PseudoTexts(const corpus::Documents& documents, const tokenizers::Tokenizer& tokenizer,
                         int64_t length)
    : documents_(documents.size()),
      mask_(inference::mask_token(tokenizer)),
      vocabulary_(tokenizer.vocabulary_size()),
      ends_(tokenizers::text_ends(tokenizer)) {
  const int64_t around = (ends_.first ? 1 : 0) + (ends_.last ? 1 : 0);
  MG_CHECK(length > around,
           "--seq-length is {}, but the tokenizer puts {} tokens around each text; raise it",
           length, around);
  for (int64_t d = 0; d < documents_; ++d) {
    std::vector<int64_t> wide(static_cast<size_t>(documents.tokens(d)));
    documents.read(d, 0, wide);
    std::vector<int32_t> tokens(wide.begin(), wide.end());
    if (ends_.first && !tokens.empty() && tokens.front() == *ends_.first)
      tokens.erase(tokens.begin());
    if (ends_.last && !tokens.empty() && tokens.back() == *ends_.last) tokens.pop_back();
    cut(d, std::move(tokens), length - around);
  }
}

void PseudoTexts::cut(int64_t document, std::vector<int32_t> tokens, int64_t length) {
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(length)) {
    const auto part = std::span(tokens).subspan(
        begin, std::min(static_cast<size_t>(length), tokens.size() - begin));
    Window window{.document = document, .tokens = {}};
    if (ends_.first) window.tokens.push_back(*ends_.first);
    window.first = std::ssize(window.tokens);
    window.tokens.insert(window.tokens.end(), part.begin(), part.end());
    window.end = std::ssize(window.tokens);
    if (ends_.last) window.tokens.push_back(*ends_.last);
    windows_.push_back(std::move(window));
  }
}

int64_t PseudoTexts::tokens() const {
  int64_t sum = 0;
  for (const Window& window : windows_) sum += window.end - window.first;
  return sum;
}

std::vector<LossSum> PseudoTexts::losses(const models::Stage& stage, Runtime& runtime,
                                         const std::function<void(int64_t)>& progress) const {
  constexpr int64_t kTokensOfPass = 4096;
  constexpr size_t kHeld = size_t{1} << 18;  // tokens of the requests in memory
  const inference::EngineOptions options{.vocabulary = vocabulary_, .max_tokens = kTokensOfPass};
  std::vector<LossSum> losses(static_cast<size_t>(documents_));
  std::vector<inference::Request> requests;
  std::vector<int64_t> of_documents;  // of each request
  size_t held = 0;
  int64_t done = 0;
  const auto run = [&] {
    const auto results = inference::generate(stage, runtime, requests, options);
    for (size_t i = 0; i < results.size(); ++i) {
      LossSum& loss = losses[static_cast<size_t>(of_documents[i])];
      loss.sum -= results[i].prompt_log_probabilities.at(0);
      loss.tokens += 1;
    }
    done += std::ssize(requests);
    progress(done);
    requests.clear();
    of_documents.clear();
    held = 0;
  };
  for (const Window& window : windows_) {
    for (int64_t i = window.first; i < window.end; ++i) {
      inference::Request request{
          .number = requests.size(), .prompt = window.tokens, .max_tokens = 0};
      int32_t& token = request.prompt[static_cast<size_t>(i)];
      request.masked = {{static_cast<int32_t>(i), token}};
      token = mask_;
      held += request.prompt.size();
      requests.push_back(std::move(request));
      of_documents.push_back(window.document);
      if (held >= kHeld) run();
    }
  }
  if (!requests.empty()) run();
  return losses;
}

}  // namespace megatron::training
