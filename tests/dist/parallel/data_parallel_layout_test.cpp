// Layout of parameters in buckets and shards.
#include "dist/parallel/toy_stage.h"
#include "parallel/bucket_layout.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {
namespace {

using testing::toy_parameters;
using testing::ToyStage;

TEST(DataParallelLayout, NoBorderCutsABlock) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  for (int shards = 1; shards <= 9; ++shards) {
    for (const int64_t elements : {int64_t{0}, int64_t{1}, int64_t{20000}}) {
      for (const bool by_span : {false, true}) {
        ToyStage stage(runtime, toy_parameters());
        const std::vector<Bucket> buckets = lay_out(stage.placed(), stage.spans(),
                                                    {.shards = shards,
                                                     .bucket_elements = elements,
                                                     .by_span = by_span,
                                                     .shared_apart = by_span});
        size_t entries = 0;
        for (const Bucket& bucket : buckets) {
          int64_t end = 0, used = 0;
          for (const Bucket::Entry& entry : bucket.entries) {
            ++entries;
            EXPECT_GE(entry.begin, end);
            EXPECT_EQ(entry.begin % 16, 0);
            end = entry.begin + entry.size();
            used += entry.size();
            for (int64_t border = bucket.shard; border < shards * bucket.shard;
                 border += bucket.shard) {
              if (border <= entry.begin || border >= end) continue;
              EXPECT_EQ((border - entry.begin) % kernels::kNormBlock, 0);
            }
            ASSERT_LE(bucket.partials.size(), 1u);
            const Bucket::Partial partial =
                bucket.partials.empty() ? Bucket::Partial() : bucket.partials[0];
            EXPECT_EQ(entry.placed->partial.has_value(),
                      entry.begin >= partial.begin && entry.begin < partial.end);
            EXPECT_EQ(entry.placed->parameter.trainable, bucket.trainable);
          }
          EXPECT_LE(end, shards * bucket.shard);
          EXPECT_LE(bucket.shard, used / shards + 2 * kernels::kNormBlock);
        }
        EXPECT_EQ(entries, stage.size());
      }
    }
  }
}

TEST(DataParallelLayout, SpansAndSharedParametersAreBuckets) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ToyStage stage(runtime, toy_parameters());
  const std::vector<Bucket> buckets =
      lay_out(stage.placed(), stage.spans(), {.shards = 2, .by_span = true, .shared_apart = true});
  std::vector<std::vector<size_t>> indices;
  for (const Bucket& bucket : buckets) {
    indices.emplace_back();
    for (const Bucket::Entry& entry : bucket.entries) indices.back().push_back(entry.index);
  }
  EXPECT_EQ(indices,
            (std::vector<std::vector<size_t>>{{11}, {9, 8, 10}, {7}, {5, 6}, {4, 2, 3}, {1}, {0}}));
  EXPECT_TRUE(buckets.back().shared);
  EXPECT_EQ(buckets.back().spans, (std::vector{0, 4}));
}

// A bucket is closed by the parameter that fills it. A parameter with a bucket of its own does not
// close the open one. Trainable and frozen parameters never share a bucket.
TEST(DataParallelLayout, ABucketIsClosedOnceItIsFull) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ToyStage stage(runtime, {{"a.weight", {100}, {0}},
                           {"frozen.weight", {40}, {0}, 1, false},
                           {"shared.weight", {300}, {0, 1}},
                           {"b.weight", {60}, {1}},
                           {"c.weight", {60}, {1}},
                           {"d.weight", {500}, {2}},
                           {"e.weight", {20}, {2}}});
  std::vector<std::vector<size_t>> indices;
  for (const Bucket& bucket :
       lay_out(stage.placed(), stage.spans(),
               {.shards = 2, .bucket_elements = 128, .shared_apart = true})) {
    indices.emplace_back();
    for (const Bucket::Entry& entry : bucket.entries) indices.back().push_back(entry.index);
  }
  EXPECT_EQ(indices, (std::vector<std::vector<size_t>>{{6, 5}, {4, 3, 0}, {2}, {1}}));
}

// Sums over tensor-parallel ranks are made one bucket at a time. A bucket must therefore have the
// same parameters at the same offsets on all ranks, although slices differ in size.
TEST(DataParallelLayout, TensorRanksHaveTheSameBuckets) {
  constexpr int kRanks = 4;
  struct Place {
    size_t bucket, index;
    int64_t begin, shard;
    bool operator==(const Place&) const = default;
  };
  for (int shards = 1; shards <= 5; ++shards) {
    for (const int64_t elements : {500, 0}) {
      std::vector<Place> first;
      for (int rank = 0; rank < kRanks; ++rank) {
        Runtime runtime({DeviceKind::cpu, 0}, 1);
        const int64_t rows = share_of(61, kRanks, rank).size;
        ToyStage stage(runtime, {{"position.weight", {10, 32}, {0}, 1, true, true},
                                 {"norm.weight", {64}, {0}, 1, true, true},
                                 {"small.weight", {32, 15}, {1}},
                                 {"table.weight", {rows, 32}, {2}}});
        ParameterSpec& table = *stage.placed()[3];
        table.whole = {61, 32};
        table.divisions = {{.axis = 0, .blocks = {61}, .ranks = kRanks, .rank = rank}};
        const std::vector<Bucket> buckets =
            lay_out(stage.placed(), stage.spans(), {.shards = shards, .bucket_elements = elements});
        std::vector<Place> places;
        for (size_t b = 0; b < buckets.size(); ++b)
          for (const Bucket::Entry& entry : buckets[b].entries)
            places.push_back({b, entry.index, entry.begin, buckets[b].shard});
        if (rank == 0) first = places;
        EXPECT_TRUE(places == first) << shards << " shards, rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::parallel
