#include "data/gpt_index.h"

#include <random>

#include "base/thread_pool.h"
#include "support.h"

namespace megatron::data {
namespace {

struct Built {
  GptIndices indices;
  std::vector<std::string> ready;
};

IndexRequest request_of(std::span<const int32_t> lengths, int64_t first, int64_t samples,
                        int64_t sequence_length, int64_t extra, bool drop) {
  IndexRequest request;
  request.first_sequence = first;
  request.sequences = static_cast<int64_t>(lengths.size()) - first;
  for (const int32_t length : lengths.subspan(static_cast<size_t>(first)))
    request.tokens_per_epoch += length;
  request.samples = samples;
  request.sequence_length = sequence_length;
  request.extra_tokens = extra;
  request.drop_last_partial = drop;
  return request;
}

// Walks the definition token by token, as the original does.
std::vector<int32_t> plain_rows(const IndexRequest& request, const IndexPlan& plan,
                                const IntegerArray& documents, std::span<const int32_t> lengths) {
  std::vector<int32_t> rows = {0, 0};
  int64_t document = 0, offset = 0;
  for (int64_t k = 0; k < plan.samples; ++k) {
    int64_t left = request.sequence_length + request.extra_tokens;
    for (;;) {
      const int64_t size = lengths[static_cast<size_t>(documents[document])];
      left -= size - offset;
      if (left <= 0) {
        offset = size + left - request.extra_tokens;
        break;
      }
      if (document + 1 == documents.size()) {
        offset = size - request.extra_tokens;
        break;
      }
      ++document;
      offset = 0;
    }
    rows.push_back(static_cast<int32_t>(document));
    rows.push_back(static_cast<int32_t>(offset));
  }
  return rows;
}

// Several blocks of documents, with empty ones, long ones, and a short last sample.
TEST(GptIndex, IsTheSameForAnyNumberOfThreads) {
  std::mt19937 random(2);
  std::vector<int32_t> lengths(150'000);
  for (int32_t& length : lengths)
    length = random() % 5 == 0 ? 0 : static_cast<int32_t>(random() % 90);
  lengths[70'000] = 1'000'000;
  const Lengths view(std::as_bytes(std::span(lengths)));
  for (const int64_t extra : {0, 1}) {
    for (const int64_t samples : {1, 70'000, 160'000}) {
      SCOPED_TRACE(fmt::format("{} {}", extra, samples));
      const auto request = request_of(lengths, 17, samples, 64, extra, false);
      const IndexPlan plan = plan_index(request);
      std::optional<GptIndices> first;
      for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        std::atomic<int> ready = 0;
        GptIndices built = build_indices(request, plan, 99, view, pool,
                                         [&](std::string_view, const IntegerArray&) { ++ready; });
        EXPECT_EQ(ready, 3);
        if (!first) {
          const auto rows = built.sample.values<int32_t>();
          EXPECT_EQ(std::vector(rows.begin(), rows.end()),
                    plain_rows(request, plan, built.document, lengths));
          first.emplace(std::move(built));
          continue;
        }
        EXPECT_TRUE(as_text(built.document.bytes()) == as_text(first->document.bytes()));
        EXPECT_TRUE(as_text(built.sample.bytes()) == as_text(first->sample.bytes()));
        EXPECT_TRUE(as_text(built.shuffle.bytes()) == as_text(first->shuffle.bytes()));
      }
    }
  }
}

TEST(GptIndex, AgreesWithItsDefinitionOnSmallChains) {
  std::mt19937 random(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> lengths(1 + random() % 6);
    for (int32_t& length : lengths) length = static_cast<int32_t>(random() % 9);
    const auto request = request_of(lengths, 0, 1 + random() % 12, 2 + random() % 7, random() % 2,
                                    random() % 2 == 0);
    if (request.tokens_per_epoch < 2) continue;
    const IndexPlan plan = plan_index(request);
    ThreadPool pool(1);
    const GptIndices built =
        build_indices(request, plan, round, Lengths(std::as_bytes(std::span(lengths))), pool,
                      [](std::string_view, const IntegerArray&) {});
    const auto rows = built.sample.values<int32_t>();
    ASSERT_EQ(std::vector(rows.begin(), rows.end()),
              plain_rows(request, plan, built.document, lengths))
        << round;
  }
}

}  // namespace
}  // namespace megatron::data
