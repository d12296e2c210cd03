// Segments of a micro-batch's sequences on the host.
#include "corpus/batch.h"

#include <gtest/gtest.h>

namespace megatron::corpus {
namespace {

using Indices = std::vector<int32_t>;

// Sequences of one length, with these starts of documents.
HostBatch with_starts(int64_t sequences, int64_t length, Indices starts) {
  HostBatch batch{.layout = {.sequences = sequences, .length = length}};
  const auto tokens = static_cast<size_t>(sequences * length);
  batch.tokens.assign(tokens, 1);
  batch.positions = batch.labels = batch.tokens;
  batch.loss_mask.assign(tokens, 1);
  batch.sample_ids.assign(static_cast<size_t>(sequences), 0);
  batch.segment_starts = std::move(starts);
  return batch;
}

TEST(SegmentEnds, AreBeforeTheNextDocument) {
  HostBatch batch = with_starts(2, 6, {0, 0, 0, 3, 3, 5, 0, 1, 2, 2, 2, 2});
  set_segment_ends(batch);
  EXPECT_EQ(batch.segment_ends, (Indices{2, 2, 2, 4, 4, 5, 0, 1, 5, 5, 5, 5}));
}

TEST(SegmentEnds, AreTheEndsOfSequencesWithoutDocuments) {
  HostBatch batch = with_starts(2, 3, {});
  set_segment_ends(batch);
  EXPECT_EQ(batch.segment_ends, (Indices{2, 2, 2, 2, 2, 2}));
}

// The first document of a sequence may begin with the tokens of the sequence, whatever the last
// start of the sequence before is.
TEST(SegmentEnds, AreSetAnew) {
  HostBatch batch = with_starts(2, 4, {0, 0, 2, 3, 0, 0, 0, 0});
  batch.segment_ends = {3, 3, 3, 3, 3, 3, 3, 3};
  set_segment_ends(batch);
  EXPECT_EQ(batch.segment_ends, (Indices{1, 1, 2, 3, 3, 3, 3, 3}));
}

TEST(SegmentEnds, PaddingIsBehindThem) {
  HostBatch batch = with_starts(2, 3, {0, 0, 2, 0, 0, 0});
  pad_sequences(batch, 4);
  EXPECT_EQ(batch.segment_ends, (Indices{1, 1, 2, 3, 2, 2, 2, 3}));
  HostBatch whole = with_starts(1, 3, {});
  pad_sequences(whole, 5);
  EXPECT_EQ(whole.segment_ends, (Indices{2, 2, 2, 4, 4}));
}

TEST(SegmentEnds, GoWithTheirTokens) {
  HostBatch batch = with_starts(2, 8, {0, 0, 0, 0, 0, 0, 6, 6, 0, 1, 1, 1, 1, 1, 1, 1});
  set_segment_ends(batch);
  EXPECT_EQ(sequence_of(batch, 1).segment_ends, (Indices{0, 7, 7, 7, 7, 7, 7, 7}));
  for (int rank = 0; rank < 2; ++rank) {
    HostBatch part = batch;
    keep_tokens(part, {.sequences = 2, .length = 8, .rank = rank, .ranks = 2});
    ASSERT_EQ(part.segment_ends.size(), 8u);
    for (size_t i = 0; i < part.segment_ends.size(); ++i) {
      const size_t at = i / 4 * 8 + static_cast<size_t>(part.indices()[i]);
      EXPECT_EQ(part.segment_ends[i], batch.segment_ends[at]) << rank << " " << i;
    }
    EXPECT_EQ(part.whole().segment_ends, batch.segment_ends);
  }
}

}  // namespace
}  // namespace megatron::corpus
