// Layout of a stage's parameters in buckets, and of each bucket in equal shards.
#pragma once

#include <span>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::parallel {

// Size of a group; a null group contains only this rank.
inline int size_of(const comm::Group* group) { return group == nullptr ? 1 : group->size(); }
inline int rank_in(const comm::Group* group) { return group == nullptr ? 0 : group->rank(); }

// Contiguous parameters that are reduced and gathered by one call. Either all are trainable or
// none, either all belong to experts or none, and all have one type.
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

// Lays out buckets, and entries within them, in the reverse of the given order, except for partial
// entries, which are at the end of their bucket. The bucket of parameters tied across stages comes
// last. Shard borders cut a parameter only between its blocks of kernels::kNormBlock elements.
// Buckets are the same on all ranks that share the modules, even if their slices differ in size:
// the partial gradients of a bucket over one group are summed by one call.
std::vector<Bucket> lay_out(std::span<ParameterSpec* const> parameters,
                            std::span<const Span* const> spans, const BucketRules& rules);

}  // namespace megatron::parallel
