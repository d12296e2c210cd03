#include "data/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace megatron::data {
namespace {

constexpr int64_t kMaxEntries = int64_t{1} << 35;
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

int64_t samples_built(const IndexRequest& request, int64_t epochs) {
  const int64_t tokens = epochs * request.tokens_per_epoch - request.extra_tokens;
  if (request.drop_last_partial) return tokens / request.sequence_length;
  // In single precision, as the original has it.
  return static_cast<int64_t>(
      std::ceil(static_cast<float>(tokens) / static_cast<float>(request.sequence_length)));
}

// first, first + 1, ... of each epoch in turn, shuffled together.
void fill_epochs(std::span<int32_t> out, const IndexRequest& request, RandomState& random) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] =
        static_cast<int32_t>(request.first_sequence + static_cast<int64_t>(i) % request.sequences);
  }
  random.shuffle(out);
}

IntegerType shuffle_type(const IndexPlan& plan) {
  return plan.samples >= 0xfffffffell ? IntegerType::i64 : IntegerType::u32;
}

// Lengths are 32-bit in the token files, so only the number of documents can ask for more.
IntegerType row_type(int64_t documents) {
  return documents > kInt32Max ? IntegerType::i64 : IntegerType::i32;
}

template <class T>
void fill_shuffle(std::span<T> out, const IndexPlan& plan, RandomState& random) {
  std::iota(out.begin(), out.end(), T{0});
  const auto first = static_cast<size_t>(
      plan.separate_final_epoch ? plan.samples_without_final_epoch : plan.samples);
  random.shuffle(out.first(first));
  if (plan.separate_final_epoch) random.shuffle(out.subspan(first));
}

template <class T>
void fill_samples(std::span<T> rows, const IndexRequest& request, const IntegerArray& documents,
                  FunctionRef<int64_t(int64_t)> length) {
  const int64_t last = documents.size() - 1;
  int64_t document = 0, offset = 0;
  rows[0] = rows[1] = 0;
  for (size_t row = 2; row < rows.size(); row += 2) {
    int64_t remaining = request.sequence_length + request.extra_tokens;
    for (;;) {
      const int64_t size = length(documents[document]), available = size - offset;
      remaining -= available;
      if (remaining <= 0) {
        offset += remaining + available - request.extra_tokens;
        break;
      }
      if (document == last) {
        offset = size - request.extra_tokens;
        break;
      }
      ++document;
      offset = 0;
    }
    rows[row] = static_cast<T>(document);
    rows[row + 1] = static_cast<T>(offset);
  }
}

}  // namespace

IndexPlan plan_index(const IndexRequest& request) {
  const int64_t per_epoch = request.tokens_per_epoch, length = request.sequence_length,
                extra = request.extra_tokens;
  MG_CHECK(length > 1, "sequence length {}: samples need at least 2 tokens (--seq-length)", length);
  MG_CHECK(request.sequences > 0 && per_epoch > 1,
           "a split has {} sequences with {} tokens in all, too few for one sample: give it a "
           "larger share (--split) or "
           "more data, or weight 0",
           request.sequences, per_epoch);
  MG_CHECK(request.first_sequence + request.sequences <= kInt32Max,
           "{} sequences; at most {} are supported in one data set",
           request.first_sequence + request.sequences, kInt32Max);
  IndexPlan plan;
  if (request.samples) {
    MG_CHECK(*request.samples >= 0 && *request.samples < kMaxEntries && length < kInt32Max,
             "{} samples of {} tokens are asked for; 0 to {} can be indexed", *request.samples,
             length, kMaxEntries);
    const auto wanted = static_cast<__int128_t>(*request.samples) * length + extra;
    const auto epochs = std::max<__int128_t>(1, (wanted + per_epoch - 1) / per_epoch);
    MG_CHECK(epochs * request.sequences < kMaxEntries &&
                 epochs * per_epoch < std::numeric_limits<int64_t>::max() / 2,
             "{} samples of {} tokens need more than {} documents of a split with {} tokens: ask "
             "for fewer samples or give "
             "more data",
             *request.samples, length, kMaxEntries, per_epoch);
    plan.epochs = static_cast<int64_t>(epochs);
  }
  if (plan.epochs > 1) {
    plan.samples_without_final_epoch = ((plan.epochs - 1) * per_epoch - extra) / length;
    const int64_t from_final = *request.samples - plan.samples_without_final_epoch;
    const int64_t samples_per_epoch = (per_epoch - extra) / length;
    MG_ASSERT(from_final >= 0 && from_final <= samples_per_epoch + 1);
    plan.separate_final_epoch =
        from_final < static_cast<int64_t>(0.80 * static_cast<double>(samples_per_epoch));
  }
  plan.documents = plan.epochs * request.sequences;
  plan.samples = samples_built(request, plan.epochs);
  return plan;
}

int64_t index_bytes(const IndexPlan& plan) {
  const int64_t row = row_type(plan.documents) == IntegerType::i64 ? 16 : 8;
  const int64_t shuffled = shuffle_type(plan) == IntegerType::i64 ? 8 : 4;
  return 4 * plan.documents + row * (plan.samples + 1) + shuffled * plan.samples;
}

IntegerArray build_document_index(const IndexRequest& request, const IndexPlan& plan,
                                  RandomState& random) {
  IntegerArray index(IntegerType::i32, {plan.documents});
  const auto all = index.values<int32_t>();
  const auto first =
      static_cast<size_t>(plan.documents - (plan.separate_final_epoch ? request.sequences : 0));
  fill_epochs(all.first(first), request, random);
  if (plan.separate_final_epoch) fill_epochs(all.subspan(first), request, random);
  return index;
}

IntegerArray build_shuffle_index(const IndexPlan& plan, RandomState& random) {
  if (shuffle_type(plan) == IntegerType::i64) {
    IntegerArray index(IntegerType::i64, {plan.samples});
    fill_shuffle(index.values<int64_t>(), plan, random);
    return index;
  }
  IntegerArray index(IntegerType::u32, {plan.samples});
  fill_shuffle(index.values<uint32_t>(), plan, random);
  return index;
}

IntegerArray build_sample_index(const IndexRequest& request, const IndexPlan& plan,
                                const IntegerArray& document_index,
                                FunctionRef<int64_t(int64_t)> length) {
  if (row_type(document_index.size()) == IntegerType::i64) {
    IntegerArray index(IntegerType::i64, {plan.samples + 1, 2});
    fill_samples(index.values<int64_t>(), request, document_index, length);
    return index;
  }
  IntegerArray index(IntegerType::i32, {plan.samples + 1, 2});
  fill_samples(index.values<int32_t>(), request, document_index, length);
  return index;
}

}  // namespace megatron::data
