// How a stage's parameters lie in buckets, and each bucket in equal shards.
#pragma once

#include <span>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::parallel {

// Of a group that may be missing, which is one of this rank alone.
inline int size_of(const comm::Group* group) { return group == nullptr ? 1 : group->size(); }
inline int rank_in(const comm::Group* group) { return group == nullptr ? 0 : group->rank(); }

// Parameters that lie together and are reduced and gathered by one call. All are trainable or none,
// experts' or none, and all are of one type.
struct Bucket {
  struct Entry {
    ParameterSpec* placed = nullptr;
    size_t index = 0;   // among the parameters
    int64_t begin = 0;  // elements, from the bucket's begin
    int64_t room = 0;   // elements that are kept for it: as many as any rank of its groups needs

    int64_t size() const { return placed->parameter.value.elements(); }
  };
  DType type() const { return entries.at(0).placed->parameter.value.dtype(); }
  int64_t elements() const { return shards * shard; }

  // Elements of entries that are ParameterSpec::partial over that group.
  struct Partial {
    RankGroup group = RankGroup::tensor;
    int64_t begin = 0, end = 0;
  };

  std::vector<Entry> entries;
  int shards = 1;
  int64_t shard = 0;  // elements of each shard
  std::vector<Partial> partials;
  bool trainable = true;
  bool expert = false;         // its replicas are those of experts
  bool shared = false;         // of a parameter with several uses or spans, or tied across stages
  std::vector<int> spans;      // that name some of its parameters
  bool outside_spans = false;  // some of its parameters are in none
};

struct BucketRules {
  int shards = 1, expert_shards = 1;
  int64_t unit = 16;            // elements; parameters begin at multiples of it
  int64_t bucket_elements = 0;  // a bucket is closed once it has so many; 0: never
  bool by_span = false;         // every span is a bucket
  bool shared_apart = false;    // a parameter of several uses or spans is a bucket by itself
};

// Buckets in the reverse of the order given, and so their entries, but for partial ones, which lie
// at the end of their bucket. One of parameters tied across stages comes last. Borders of shards
// cut a parameter only where its blocks of kernels::kNormBlock elements end. Buckets are the same on
// all ranks that share the modules, whose slices may differ in size: the partial gradients of a
// bucket over one group are summed by one call.
std::vector<Bucket> lay_out(std::span<ParameterSpec* const> parameters,
                            std::span<const Span* const> spans, const BucketRules& rules);

}  // namespace megatron::parallel
