#include "parallel/bucket_layout.h"

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "parallel/weight_codes.h"

namespace megatron::parallel {
namespace {

constexpr int64_t kBlock = kernels::kNormBlock;

// True if n elements that begin at `begin` are cut only at ends of their blocks, with a shard
// border every `shard` elements.
bool is_place(int64_t begin, int64_t n, int64_t shard) {
  const int64_t border = (begin / shard + 1) * shard, end = begin + n;
  if (border >= end) return true;
  return (border - begin) % kBlock == 0 && (border + shard >= end || shard % kBlock == 0);
}

// First valid begin at or shortly after `from`; none if shards of this size allow no begin.
std::optional<int64_t> place_of(int64_t from, int64_t n, int64_t shard) {
  const int64_t border = (from / shard + 1) * shard;
  for (const int64_t begin : {from, border - (border - from) / kBlock * kBlock, border})
    if (is_place(begin, n, shard)) return begin;
  return std::nullopt;
}

// Places the entries in shards of this size and sets their begins. Returns false if they do not
// fit.
bool place(Bucket& bucket, int shards, int64_t shard, int64_t unit) {
  int64_t end = 0;
  for (Bucket::Entry& entry : bucket.entries) {
    const auto begin = place_of(end, entry.room, shard);
    if (!begin || *begin + entry.room > shards * shard) return false;
    entry.begin = *begin;
    end = round_up(*begin + entry.room, unit);
  }
  return true;
}

void place(Bucket& bucket, const BucketRules& rules) {
  std::ranges::stable_sort(bucket.entries, {}, [](const Bucket::Entry& e) {
    return e.placed->partial ? 1 + static_cast<int>(*e.placed->partial) : 0;
  });
  int64_t total = 0;
  for (const Bucket::Entry& entry : bucket.entries) total += round_up(entry.room, rules.unit);
  bucket.shard = round_up(ceil_div(total, bucket.shards), rules.unit);
  if (bucket.shard == 0) bucket.shard = rules.unit;
  while (!place(bucket, bucket.shards, bucket.shard, rules.unit)) bucket.shard += rules.unit;
  for (const Bucket::Entry& entry : bucket.entries) {
    if (!entry.placed->partial) continue;
    const RankGroup group = *entry.placed->partial;
    if (bucket.partials.empty() || bucket.partials.back().group != group)
      bucket.partials.push_back({.group = group, .begin = entry.begin});
    bucket.partials.back().end = entry.begin + entry.size();
  }
}

// Number of elements that the first ranks of its groups have of a parameter: no rank has more, and
// every rank computes the same number.
int64_t most_elements(const ParameterSpec& placed) {
  if (placed.divisions.empty()) return placed.parameter.value.elements();
  Shape shape = placed.whole;
  for (const Division& division : placed.divisions) shape.set(division.axis, division.length(0));
  return shape.elements();
}

// Tracks the open buckets, and assigns parameters to them.
class Filler {
 public:
  Filler(std::span<const Span* const> spans, const BucketRules& rules) : rules_(rules) {
    for (size_t s = 0; s < spans.size(); ++s)
      for (const Parameter* p : spans[s]->parameters) spans_of_[p].push_back(static_cast<int>(s));
  }

  void add(ParameterSpec& placed, size_t index) {
    const std::vector<int>& spans = spans_of_[&placed.parameter];
    const bool several = placed.parameter.uses.size() > 1 || spans.size() > 1;
    const bool tied = placed.tied_across_stages();
    const bool alone = rules_.shared_apart && several;
    const bool trainable = placed.parameter.trainable;
    const int span = !rules_.by_span || spans.empty() ? -1 : spans[0];
    const bool expert = placed.is_expert();
    const Key key{tied, trainable, expert, bits_of(placed, expert), placed.parameter.value.dtype(),
                  span};
    Open& open = alone ? begin(key) : find_or_begin(key);
    Bucket& bucket = open.bucket;
    const int64_t room = most_elements(placed);
    bucket.entries.push_back({.placed = &placed, .index = index, .room = room});
    bucket.shared = bucket.shared || alone || tied;
    bucket.outside_spans = bucket.outside_spans || spans.empty();
    for (const int s : spans) {
      if (open.spans.insert(s).second) bucket.spans.push_back(s);
    }
    open.elements += room;
    const bool full = rules_.bucket_elements > 0 && open.elements >= rules_.bucket_elements;
    if (full && !alone && !rules_.by_span) open_.erase(key);
  }

  std::vector<Bucket> take() {
    // Buckets of codes and others grow side by side; those that end sooner are reduced sooner.
    if (rules_.fp8_codes || rules_.fp4_codes)
      std::ranges::stable_sort(first_, std::ranges::greater(),
                               [](const Open& o) { return o.bucket.entries.back().index; });
    std::vector<Bucket> buckets;
    for (std::vector<Open>* list : {&first_, &last_})
      for (Open& o : *list) buckets.push_back(std::move(o.bucket));
    for (Bucket& bucket : buckets) place(bucket, rules_);
    return buckets;
  }

 private:
  struct Key {
    bool tied, trainable, expert;
    int code_bits;
    DType type;
    int span;  // or -1
    auto operator<=>(const Key&) const = default;
  };
  struct Open {
    Bucket bucket;
    std::unordered_set<int> spans;  // spans of the bucket
    int64_t elements = 0;
  };

  int bits_of(const ParameterSpec& placed, bool expert) const {
    const int bits = code_bits(placed.parameter);
    const bool asked = bits == 8 ? rules_.fp8_codes : rules_.fp4_codes;
    return asked && (expert ? rules_.expert_shards : rules_.shards) > 1 ? bits : 0;
  }

  Open& begin(const Key& key) {
    Open& open = (key.tied ? last_ : first_).emplace_back();
    open.bucket.trainable = key.trainable;
    open.bucket.expert = key.expert;
    open.bucket.code_bits = key.code_bits;
    if (key.trainable || rules_.divides_frozen)
      open.bucket.shards = key.expert ? rules_.expert_shards : rules_.shards;
    return open;
  }
  Open& find_or_begin(const Key& key) {
    std::vector<Open>& list = key.tied ? last_ : first_;
    const auto [place, is_new] = open_.try_emplace(key, list.size());
    return is_new ? begin(key) : list[place->second];
  }

  const BucketRules& rules_;
  std::unordered_map<const Parameter*, std::vector<int>> spans_of_;
  std::vector<Open> first_, last_;  // last_: buckets of parameters that are tied across stages
  std::map<Key, size_t> open_;      // index in its list of the bucket that still accepts parameters
};

}  // namespace

std::vector<Bucket> lay_out(std::span<ParameterSpec* const> parameters,
                            std::span<const Span* const> spans, const BucketRules& rules) {
  MG_ASSERT(rules.shards >= 1 && rules.expert_shards >= 1 && kBlock % rules.unit == 0);
  Filler filler(spans, rules);
  for (size_t i = parameters.size(); i-- > 0;) filler.add(*parameters[i], i);
  return filler.take();
}

}  // namespace megatron::parallel
