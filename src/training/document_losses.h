// Losses of documents, each predicted only from its own tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "corpus/documents.h"
#include "data/dataset.h"
#include "training/evaluate.h"

namespace megatron::training {

// Input tokens [begin, begin + length) of a document. The next token is predicted from each. Only
// predictions from index `counted` of the window onwards count.
struct Window {
  int64_t document = 0, begin = 0, length = 0, counted = 0;
  bool operator==(const Window&) const = default;
};

// Windows of a document of `tokens` tokens: they begin `stride` tokens apart and extend to the
// second-to-last token, and each counts the tokens that the previous one did not. With stride ==
// length they do not overlap. Every token except the first thus counts once; there is no window for
// fewer than two tokens.
std::vector<Window> windows_of(int64_t document, int64_t tokens, int64_t length, int64_t stride);

// Sequences for windows of `window` tokens have this length: 16, 32, 64 ... but at most `longest`.
// It depends on nothing else, so that a document's loss does not depend on the others.
int64_t padded_length(int64_t window, int64_t longest);

// Windows as samples of one length, padded with positions that have no loss.
class WindowSet final : public data::Dataset {
 public:
  WindowSet(const corpus::Documents& documents, std::vector<Window> windows, int64_t length)
      : documents_(documents), windows_(std::move(windows)), length_(length) {}
  int64_t size() const override { return static_cast<int64_t>(windows_.size()); }
  void read(int64_t k, data::Sample& sample) const override;
  void read_filler(data::Sample& sample) const override;

 private:
  const corpus::Documents& documents_;
  std::vector<Window> windows_;
  int64_t length_;
};

struct WindowShape {
  int64_t seq_length = 0, stride = 0;
  int64_t micro_batch =
      1;  // sequences of seq_length per forward pass of a rank; more if they are shorter
};

// Returns {sum, counted tokens} of each document on every rank, bit-identical for any number of
// ranks and any micro_batch. progress: called on every rank with the number of positions predicted
// so far. Collective.
std::vector<LossSum> document_losses(LossPass& pass, const corpus::Documents& documents,
                                     const WindowShape& shape,
                                     const std::function<void(int64_t done)>& progress);

// Unigram entropy of the labels that count.
double unigram_entropy(const corpus::Documents& documents);

}  // namespace megatron::training
