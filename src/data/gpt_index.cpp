#include "data/gpt_index.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/divide.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace megatron::data {
namespace {

constexpr int64_t kMaxEntries = int64_t{1} << 35;
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

int64_t samples_built(const IndexRequest& request, int64_t epochs) {
  const int64_t tokens = epochs * request.tokens_per_epoch - request.extra_tokens;
  if (request.drop_last_partial) return tokens / request.sequence_length;
  // Computed in single precision, as in the original.
  return static_cast<int64_t>(
      std::ceil(static_cast<float>(tokens) / static_cast<float>(request.sequence_length)));
}

// Fills in first, first + 1, ... for each epoch in turn, shuffled together.
void fill_epochs(std::span<int32_t> out, const IndexRequest& request, RandomState& random) {
  const auto count = static_cast<size_t>(request.sequences);
  for (size_t epoch = 0; epoch < out.size(); epoch += count) {
    const auto part = out.subspan(epoch, count);
    std::iota(part.begin(), part.end(), static_cast<int32_t>(request.first_sequence));
  }
  random.shuffle(out);
}

// Number of entries of the document index that are shuffled together before the last epoch's.
size_t first_documents(const IndexRequest& request, const IndexPlan& plan) {
  return static_cast<size_t>(plan.documents - (plan.separate_final_epoch ? request.sequences : 0));
}

IntegerType shuffle_type(const IndexPlan& plan) {
  return plan.samples >= 0xfffffffell ? IntegerType::i64 : IntegerType::u32;
}

// Lengths are 32-bit in the token files, so only the number of documents can require more.
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

// Writes the rows, block by block of the document index. A block's lengths are looked up once; its
// beginning in the chain of tokens is known as soon as the block before it has been looked up.
template <class T>
class SampleRows {
 public:
  SampleRows(const IndexRequest& request, const IndexPlan& plan, std::span<const int32_t> documents,
             const Lengths& lengths, std::span<T> rows, int threads)
      : request_(request),
        plan_(plan),
        documents_(documents),
        lengths_(lengths),
        rows_(rows),
        sizes_(static_cast<size_t>(threads), std::vector<int32_t>(kBlock)),
        ends_(documents.size() / kBlock + 2) {
    rows_[0] = rows_[1] = 0;
    for (auto& end : ends_) end = kUnknown;
    ends_[0] = 0;
  }

  int64_t blocks() const { return ceil_div(std::ssize(documents_), kBlock); }

  // Blocks may be processed concurrently, but must be begun in ascending order.
  void write_block(int64_t block, int thread) noexcept {
    const auto begin = static_cast<size_t>(block) * kBlock;
    const auto part = documents_.subspan(begin, std::min(kBlock, documents_.size() - begin));
    const auto sizes = std::span(sizes_[static_cast<size_t>(thread)]).first(part.size());
    int64_t sum = 0;
    for (size_t i = 0; i < part.size(); ++i) {
      __builtin_prefetch(lengths_.address(part[std::min(i + kAhead, part.size() - 1)]));
      const int64_t size = lengths_[part[i]];
      sizes[i] = static_cast<int32_t>(size);
      sum += size;
    }
    auto& known = ends_[static_cast<size_t>(block)];
    known.wait(kUnknown);
    const int64_t tokens = known;
    auto& end = ends_[static_cast<size_t>(block) + 1];
    end = tokens + sum;
    end.notify_all();
    write_rows(begin, sizes, tokens);
  }

  // Writes the rows after the last token.
  void write_last() {
    const int64_t last = static_cast<int64_t>(documents_.size()) - 1;
    const int64_t offset = lengths_[documents_.back()] - request_.extra_tokens;
    for (int64_t row = row_behind(ends_[static_cast<size_t>(blocks())]); row <= plan_.samples;
         ++row)
      write(row, last, offset);
  }

 private:
  static constexpr size_t kBlock = size_t{1} << 17;
  static constexpr size_t kAhead = 48;  // lookups in flight
  static constexpr int64_t kUnknown = -1;

  // Returns the token at which (extra 1) or after which (extra 0) row k > 0 begins.
  int64_t token_of(int64_t row) const {
    return row * request_.sequence_length - 1 + request_.extra_tokens;
  }
  // First row k > 0 whose token is not among the first `tokens`.
  int64_t row_behind(int64_t tokens) const {
    const int64_t length = request_.sequence_length;
    return std::max<int64_t>(1, ceil_div(tokens + 1 - request_.extra_tokens, length));
  }
  void write(int64_t row, int64_t document, int64_t offset) {
    rows_[static_cast<size_t>(2 * row)] = static_cast<T>(document);
    rows_[static_cast<size_t>(2 * row + 1)] = static_cast<T>(offset);
  }

  void write_rows(size_t first, std::span<const int32_t> sizes, int64_t tokens) {
    int64_t row = row_behind(tokens);
    int64_t token = row <= plan_.samples ? token_of(row) : std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t end = tokens + sizes[i];
      while (token < end) {
        write(row, static_cast<int64_t>(first + i), token - tokens + 1 - request_.extra_tokens);
        ++row;
        token = row <= plan_.samples ? token + request_.sequence_length
                                     : std::numeric_limits<int64_t>::max();
      }
      tokens = end;
    }
  }

  const IndexRequest& request_;
  const IndexPlan& plan_;
  std::span<const int32_t> documents_;
  const Lengths& lengths_;
  std::span<T> rows_;
  std::vector<std::vector<int32_t>> sizes_;  // of each thread's block
  std::vector<std::atomic<int64_t>> ends_;   // tokens before each block
};

template <class T>
IntegerArray build_rows(const IndexRequest& request, const IndexPlan& plan,
                        const IntegerArray& documents, const Lengths& lengths, ThreadPool& pool,
                        IntegerType type, FunctionRef<void()> meanwhile) {
  IntegerArray index(type, {plan.samples + 1, 2});
  SampleRows<T> rows(request, plan, documents.values<int32_t>(), lengths, index.values<T>(),
                     pool.size());
  pool.parallel_for(1 + rows.blocks(), [&](int64_t block, int thread) {
    block == 0 ? meanwhile() : rows.write_block(block - 1, thread);
  });
  rows.write_last();
  return index;
}

}  // namespace

IndexPlan plan_index(const IndexRequest& request) {
  const int64_t per_epoch = request.tokens_per_epoch, length = request.sequence_length,
                extra = request.extra_tokens;
  MG_CHECK(length > 1, "--seq-length is {}; samples need at least 2 tokens", length);
  MG_CHECK(request.sequences > 0 && per_epoch > 1,
           "a split has {} sequences with {} tokens in all, too few for one sample: give it a "
           "larger share (--split) or "
           "more data, or weight 0",
           request.sequences, per_epoch);
  MG_CHECK(request.first_sequence + request.sequences <= kInt32Max,
           "the data set has {} sequences; at most {} are supported",
           request.first_sequence + request.sequences, kInt32Max);
  IndexPlan plan;
  if (request.samples) {
    MG_CHECK(*request.samples >= 0 && *request.samples < kMaxEntries && length < kInt32Max,
             "{} samples of {} tokens are requested; the number of samples must lie in [0, {})",
             *request.samples, length, kMaxEntries);
    const auto wanted = static_cast<__int128_t>(*request.samples) * length + extra;
    const auto epochs = std::max<__int128_t>(1, (wanted + per_epoch - 1) / per_epoch);
    MG_CHECK(epochs * request.sequences < kMaxEntries &&
                 epochs * per_epoch < std::numeric_limits<int64_t>::max() / 2,
             "{} samples of {} tokens need more than {} documents from a split with {} tokens: "
             "request fewer samples or give more data",
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
  const size_t first = first_documents(request, plan);
  fill_epochs(all.first(first), request, random);
  fill_epochs(all.subspan(first), request, random);
  return index;
}

void skip_document_index(const IndexRequest& request, const IndexPlan& plan, RandomState& random) {
  const size_t first = first_documents(request, plan);
  random.skip_shuffle(first);
  random.skip_shuffle(static_cast<size_t>(plan.documents) - first);
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
                                const IntegerArray& document_index, const Lengths& lengths,
                                ThreadPool& pool, FunctionRef<void()> meanwhile) {
  const IntegerType type = row_type(document_index.size());
  const auto build = type == IntegerType::i64 ? build_rows<int64_t> : build_rows<int32_t>;
  return build(request, plan, document_index, lengths, pool, type, meanwhile);
}

GptIndices build_indices(const IndexRequest& request, const IndexPlan& plan, int64_t seed,
                         const Lengths& lengths, ThreadPool& pool, IndexReady ready) {
  std::optional<IntegerArray> documents, shuffle;
  // If there is a spare thread, the draws of the document index are made twice, so that the shuffle
  // index need not wait for it.
  RandomState random(seed), ahead(seed);
  const bool apart = pool.size() > 1;
  pool.parallel_for(apart ? 2 : 1, [&](int64_t block, int) {
    if (block == 0) return void(documents.emplace(build_document_index(request, plan, random)));
    skip_document_index(request, plan, ahead);
    shuffle.emplace(build_shuffle_index(plan, ahead));
    ready("shuffle_index", *shuffle);
  });
  IntegerArray rows = build_sample_index(request, plan, *documents, lengths, pool,
                                         [&] { ready("document_index", *documents); });
  ready("sample_index", rows);
  if (!shuffle) {
    shuffle.emplace(build_shuffle_index(plan, random));
    ready("shuffle_index", *shuffle);
  }
  return {std::move(*documents), std::move(rows), std::move(*shuffle)};
}

}  // namespace megatron::data
