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

// Contiguous parameters that are reduced and gathered by one call. All have the same type, and they
// agree in whether they are trainable, belong to experts, and are gathered as codes of one size.
struct Bucket {
  struct Entry {
    ParameterSpec* placed = nullptr;
    size_t index = 0;   // index among the parameters
    int64_t begin = 0;  // first element, relative to the bucket
    int64_t room = 0;   // elements reserved for it: the largest size on any rank of its groups

    int64_t size() const { return placed->parameter.value.elements(); }
  };
  DType type() const { return entries.at(0).placed->parameter.value.dtype(); }
  int64_t elements() const { return shards * shard; }
  bool coded() const { return code_bits > 0; }
  // Bytes of the codes of `count` elements; count must be even.
  int64_t code_bytes(int64_t count) const { return count * code_bits / 8; }

  // Elements of entries that are ParameterSpec::partial over that group.
  struct Partial {
    RankGroup group = RankGroup::tensor;
    int64_t begin = 0, end = 0;
  };

  std::vector<Entry> entries;
  int shards = 1;
  int64_t shard = 0;  // elements per shard
  std::vector<Partial> partials;
  bool trainable = true;
  bool expert = false;     // its replicas are the expert replicas
  int code_bits = 0;       // bits of the codes that are gathered (weight_codes.h); 0: values are
  bool shared = false;     // contains a parameter with several uses or spans, or tied across stages
  std::vector<int> spans;  // spans that use some of its parameters
  bool outside_spans = false;  // some of its parameters are in no span
};

struct BucketRules {
  int shards = 1, expert_shards = 1;
  bool divides_frozen = false;  // divides frozen parameters into shards, too; else they have one
  int64_t unit = 16;            // elements; parameters begin at multiples of it
  int64_t bucket_elements = 0;  // a bucket is closed once it has this many elements; 0: never
  bool by_span = false;         // one bucket per span
  bool shared_apart = false;    // parameters with several uses or spans get their own bucket
  // Gather weights as 8-bit or 4-bit codes where possible; these are in separate buckets.
  bool fp8_codes = false, fp4_codes = false;
};

// Lays out buckets, and entries within them, in the reverse of the given order, except for partial
// entries, which are at the end of their bucket. The bucket of parameters tied across stages comes
// last. Shard borders cut a parameter only between its blocks of kernels::kNormBlock elements.
// Buckets are the same on all ranks that share the modules, even if their slices differ in size:
// the partial gradients of a bucket over one group are summed by one call.
std::vector<Bucket> lay_out(std::span<ParameterSpec* const> parameters,
                            std::span<const Span* const> spans, const BucketRules& rules);

}  // namespace megatron::parallel
