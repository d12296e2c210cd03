#include "training/document_losses.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace megatron::training {
namespace {

constexpr int64_t kShortest = 16;
constexpr int64_t kPassesOfDocuments =
    8;  // forward passes of each rank between two progress reports

// Windows of one padded length, and the index of each among all windows.
struct Bucket {
  std::vector<Window> windows;
  std::vector<size_t> places;
};

}  // namespace

std::vector<Window> windows_of(int64_t document, int64_t tokens, int64_t length, int64_t stride) {
  MG_ASSERT(length > 0 && stride > 0 && stride <= length);
  std::vector<Window> windows;
  const int64_t inputs = tokens - 1;
  for (int64_t begin = 0, done = 0; done < inputs; begin += stride) {
    const int64_t end = std::min(begin + length, inputs);
    windows.push_back({document, begin, end - begin, done - begin});
    done = end;
  }
  return windows;
}

int64_t padded_length(int64_t window, int64_t longest) {
  int64_t length = kShortest;
  while (length < window) length *= 2;
  return std::min(length, longest);
}

void WindowSet::read(int64_t k, data::Sample& sample) const {
  MG_ASSERT(k >= 0 && k < size());
  const Window& window = windows_[static_cast<size_t>(k)];
  const auto used = static_cast<size_t>(window.length), length = static_cast<size_t>(length_);
  MG_ASSERT(used <= length);
  std::vector<int64_t> text(used + 1);
  documents_.read(window.document, window.begin, text);
  sample.tokens.assign(text.begin(), text.end() - 1);
  sample.labels.assign(text.begin() + 1, text.end());
  sample.tokens.resize(length, 0);
  sample.labels.resize(length, 0);
  sample.position_ids.resize(length);
  std::iota(sample.position_ids.begin(), sample.position_ids.end(), int64_t{0});
  sample.loss_mask.assign(length, 0.0f);
  std::fill(sample.loss_mask.begin() + window.counted, sample.loss_mask.begin() + window.length,
            1.0f);
  sample.segment_begin.clear();
}

void WindowSet::read_filler(data::Sample& sample) const {
  read(0, sample);
  std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0.0f);
}

std::vector<LossSum> document_losses(LossPass& pass, const corpus::Documents& documents,
                                     const WindowShape& shape,
                                     const std::function<void(int64_t done)>& progress) {
  std::map<int64_t, Bucket> buckets;
  std::vector<int64_t> document_of;  // document of each window
  for (int64_t d = 0; d < documents.size(); ++d) {
    for (const Window& w : windows_of(d, documents.tokens(d), shape.seq_length, shape.stride)) {
      Bucket& bucket = buckets[padded_length(w.length, shape.seq_length)];
      bucket.windows.push_back(w);
      bucket.places.push_back(document_of.size());
      document_of.push_back(d);
    }
  }
  std::vector<LossSum> of_window(document_of.size());
  int64_t done = 0;
  for (auto& [length, bucket] : buckets) {
    const WindowSet set(documents, std::move(bucket.windows), length);
    const int64_t together = shape.micro_batch * (shape.seq_length / length);
    const int64_t chunk = together * pass.ranks().samples().size() * kPassesOfDocuments;
    std::vector<int64_t> indices;
    for (int64_t begin = 0; begin < set.size(); begin += chunk) {
      indices.resize(static_cast<size_t>(std::min(chunk, set.size() - begin)));
      std::iota(indices.begin(), indices.end(), begin);
      const auto losses = evaluate_samples(pass, set, indices, together, length);
      for (size_t i = 0; i < losses.size(); ++i) {
        of_window[bucket.places[static_cast<size_t>(begin) + i]] = losses[i];
        done += static_cast<int64_t>(losses[i].tokens);
      }
      progress(done);
    }
  }
  std::vector<LossSum> sums(static_cast<size_t>(documents.size()));
  for (size_t w = 0; w < of_window.size(); ++w) {
    LossSum& sum = sums[static_cast<size_t>(document_of[w])];
    sum.sum += of_window[w].sum;
    sum.tokens += of_window[w].tokens;
  }
  return sums;
}

double unigram_entropy(const corpus::Documents& documents) {
  LabelCounts counts;
  std::vector<int64_t> ids;
  for (int64_t d = 0; d < documents.size(); ++d) {
    ids.resize(static_cast<size_t>(documents.tokens(d)));
    documents.read(d, 0, ids);
    for (size_t i = 1; i < ids.size(); ++i) counts.add(ids[i]);
  }
  return counts.entropy();
}

}  // namespace megatron::training
