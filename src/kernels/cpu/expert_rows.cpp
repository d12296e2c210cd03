#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/scratch.h"

namespace megatron::kernels::cpu {

namespace {

int64_t segment_slots(const ExpertRowsArgs& args) {
  return (args.segment > 0 ? args.segment : args.experts.size(0)) * args.experts.size(1);
}
bool keeps_largest(const ExpertRowsArgs& args) {
  return args.capacity > 0 && args.kept == KeptRows::largest;
}

// Counting sort on the calling thread. It reads one number per slot two or three times, which is
// cheap compared with moving a row.
template <class Weight>
class CountingSort {
 public:
  CountingSort(const ExpertRowsArgs& args, int32_t* scratch)
      : args_(args),
        experts_(args.experts.data<int32_t>()),
        slots_(args.slots.data<int32_t>()),
        rows_(args.rows.data<int32_t>()),
        all_(args.experts.elements()),
        segment_(segment_slots(args)),
        groups_(args.offsets.size(0) - 1),
        most_(args.slots.size(0)),
        counts_(scratch),
        next_(scratch + groups_),
        begins_(scratch + 2 * groups_),
        by_group_(scratch + 3 * groups_) {}

  void run() {
    place_groups();
    std::fill_n(slots_, most_, -1);
    for (int64_t begin = 0; begin < all_; begin += segment_) {
      const int64_t end = begin + segment_;
      const int64_t capacity = capacity_of(begin, end);
      if (keeps_largest(args_)) drop_smallest(begin, end, capacity);
      std::fill_n(counts_, groups_, 0);
      for (int64_t s = begin; s < end; ++s) place(s, capacity);
    }
  }

 private:
  int64_t group_of(int64_t slot) const {
    const int64_t group = experts_[slot] - args_.first;
    return group < groups_ ? group : -1;  // negative group: below `first`
  }
  // Rows per expert of the segment of slots [begin, end); 0: any number.
  int64_t capacity_of(int64_t begin, int64_t end) const {
    if (args_.factor == 0) return args_.capacity;
    const int64_t choices = args_.experts.size(1);
    int64_t real = 0;
    for (int64_t s = begin; s < end; s += choices) real += experts_[s] >= 0 ? 1 : 0;
    return capacity_rows(real, choices, args_.all_experts, args_.factor);
  }
  // Counts the slots of each group in [begin, end) into counts_.
  void count(int64_t begin, int64_t end) {
    std::fill_n(counts_, groups_, 0);
    for (int64_t s = begin; s < end; ++s)
      if (const int64_t g = group_of(s); g >= 0) ++counts_[g];
  }

  // Computes the offsets and the next row of each group.
  void place_groups() {
    const int64_t segments = all_ == 0 ? 1 : all_ / segment_;
    std::fill_n(next_, groups_, 0);
    for (int64_t k = 0; k < segments && !args_.padded && all_ > 0; ++k) {
      const int64_t begin = k * segment_, end = begin + segment_,
                    capacity = capacity_of(begin, end);
      count(begin, end);
      for (int64_t g = 0; g < groups_; ++g)
        next_[g] += static_cast<int32_t>(capacity > 0 ? std::min<int64_t>(counts_[g], capacity)
                                                      : counts_[g]);
    }
    int32_t* offsets = args_.offsets.data<int32_t>();
    const int64_t room =
        args_.capacity * (args_.segment > 0 ? args_.experts.size(0) / args_.segment : 1);
    int64_t row = 0;
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t height = args_.padded ? room : next_[g];
      next_[g] = offsets[g] = static_cast<int32_t>(std::min(row, most_));
      row += height;
    }
    offsets[groups_] = static_cast<int32_t>(std::min(row, most_));
  }

  // Assigns the next row of its group to a slot; -1 marks dropped slots.
  void place(int64_t slot, int64_t capacity) {
    const int64_t g = group_of(slot);
    const bool dropped = keeps_largest(args_) && rows_[slot] < 0;
    const bool full = g >= 0 && capacity > 0 && counts_[g] >= capacity;
    rows_[slot] = -1;
    if (g < 0 || dropped || full) return;
    ++counts_[g];
    if (next_[g] >= most_) return;
    slots_[next_[g]] = static_cast<int32_t>(slot);
    rows_[slot] = next_[g]++;
  }

  // Marks dropped slots among [begin, end): the smallest weights of groups beyond the capacity.
  // Sorts the slots by group first.
  void drop_smallest(int64_t begin, int64_t end, int64_t capacity) {
    const Weight* weights = args_.weights.data<Weight>();
    const auto weight = [&](int32_t s) {
      return std::isnan(weights[s]) ? -std::numeric_limits<Weight>::infinity() : weights[s];
    };
    count(begin, end);
    for (int32_t g = 0, at = 0; g < groups_; ++g) {
      begins_[g] = at;
      at += counts_[g];
    }
    for (int64_t s = begin; s < end; ++s) {
      rows_[s] = 0;
      if (const int64_t g = group_of(s); g >= 0) by_group_[begins_[g]++] = static_cast<int32_t>(s);
    }
    for (int64_t g = 0; g < groups_; ++g) {  // begins_[g] is now the group's end
      if (counts_[g] <= capacity) continue;
      int32_t* last = by_group_ + begins_[g];
      int32_t* first = last - counts_[g];
      int32_t* cut = first + capacity;
      std::nth_element(first, cut, last, [&](int32_t a, int32_t b) {
        return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
      });
      for (; cut < last; ++cut) rows_[*cut] = -1;
    }
  }

  const ExpertRowsArgs& args_;
  const int32_t* experts_;
  int32_t *slots_, *rows_;
  int64_t all_, segment_, groups_, most_;
  int32_t *counts_, *next_, *begins_;  // per group
  int32_t* by_group_;                  // slots of one segment by group
};

}  // namespace

Tensor expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream) {
  const int64_t slots = keeps_largest(args) ? segment_slots(args) : 0;
  return Tensor::empty(stream.scratch(), {3 * (args.offsets.size(0) - 1) + slots + 1}, DType::i32,
                       "counts of experts");
}

void expert_rows(const ExpertRowsArgs& args, Stream& stream) {
  const Tensor scratch = expert_rows_scratch(args, stream);
  if (args.weights.defined() && args.weights.dtype() == DType::f64)
    return CountingSort<double>(args, scratch.data<int32_t>()).run();
  CountingSort<float>(args, scratch.data<int32_t>()).run();
}

}  // namespace megatron::kernels::cpu
