#include "data/blend_index.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "data/blend_list.h"

namespace megatron::data {
namespace {

// NumPy's pairwise summation of doubles.
double pairwise_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  double r[8];
  std::copy_n(values.begin(), 8, r);
  const size_t whole = n - n % 8;
  for (size_t i = 8; i < whole; i += 8)
    for (size_t j = 0; j < 8; ++j) r[j] += values[i + j];
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (size_t i = whole; i < n; ++i) sum += values[i];
  return sum;
}

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Among equal counts, the first set is chosen, so sets of equal weight (and size) are chosen in
// turn. A group of such sets is therefore a single candidate: its next member.
struct Group {
  double limit = 0;              // most samples of each member
  std::vector<int32_t> members;  // ascending
  size_t next = 0;
};

// Chooses sample after sample. A step over all groups would cost one operation per group; instead
// the steps are split into blocks, and a block considers only groups that can win in it. A computed
// error never falls while its group is not chosen, and a block of B steps chooses at most B groups,
// so one of the B + 1 greatest errors at its beginning remains throughout, and a group whose error
// would stay below the least of these even at the block's end cannot be chosen. Blocks are split
// further until few groups are left.
class Blender {
 public:
  // sizes: empty, or the number of samples of each set.
  Blender(std::span<const double> weights, std::span<const int64_t> sizes, int64_t samples) {
    group(weights, sizes);
    index_.set.reserve(static_cast<size_t>(samples));
    index_.sample.reserve(static_cast<size_t>(samples));
    index_.counts.resize(weights.size());
    std::vector<int32_t> all(groups_.size());
    std::iota(all.begin(), all.end(), 0);
    advance(all, 0, samples);
  }

  BlendIndex take() { return std::move(index_); }

 private:
  static constexpr size_t kFew = 48;
  static constexpr int64_t kCut = 12;  // cost ratio of scanned groups to steps of a block

  void group(std::span<const double> weights, std::span<const int64_t> sizes) {
    std::map<std::pair<double, double>, size_t> known;
    for (size_t d = 0; d < weights.size(); ++d) {
      const double limit = sizes.empty() ? HUGE_VAL : static_cast<double>(sizes[d]);
      const auto [found, fresh] = known.try_emplace({weights[d], limit}, groups_.size());
      if (fresh) {
        groups_.push_back({.limit = limit, .members = {}});
        weights_.push_back(weights[d]);
        counts_.push_back(0);
      }
      groups_[found->second].members.push_back(static_cast<int32_t>(d));
    }
  }

  static double place(int64_t step) { return static_cast<double>(std::max<int64_t>(step, 1)); }

  // Runs steps [begin, end) among these groups.
  void advance(const std::vector<int32_t>& groups, int64_t begin, int64_t end) {
    const auto count = static_cast<int64_t>(groups.size());
    if (groups.size() <= kFew || end - begin <= 2) return choose(groups, begin, end);
    const int64_t block = std::min(count / kCut, (end - begin + 1) / 2);
    std::vector<double> errors(groups.size()), latest(groups.size());
    std::vector<int32_t> able;
    for (int64_t at = begin; at < end; at += block) {
      const int64_t stop = std::min(at + block, end);
      const double first = place(at), last = place(stop - 1);
      for (size_t j = 0; j < groups.size(); ++j) {
        const auto g = static_cast<size_t>(groups[j]);
        errors[j] = weights_[g] * first - counts_[g];
        latest[j] = weights_[g] * last - counts_[g];
      }
      std::nth_element(errors.begin(), errors.begin() + (stop - at), errors.end(),
                       std::greater<>());
      // At least the lowest finite number, which excludes exhausted groups.
      const double least =
          std::max(errors[static_cast<size_t>(stop - at)], std::numeric_limits<double>::lowest());
      able.resize(groups.size());
      size_t kept = 0;
      for (size_t j = 0; j < groups.size(); ++j) {
        able[kept] = groups[j];
        kept += latest[j] >= least ? 1 : 0;
      }
      able.resize(kept);
      advance(able, at, stop);
    }
  }

  void choose(const std::vector<int32_t>& groups, int64_t begin, int64_t end) {
    weight_.clear();
    count_.clear();
    for (const int32_t g : groups) {
      weight_.push_back(weights_[static_cast<size_t>(g)]);
      count_.push_back(counts_[static_cast<size_t>(g)]);
    }
    error_.resize(groups.size());
    for (int64_t step = begin; step < end; ++step) {
      const double at = place(step);
      for (size_t j = 0; j < error_.size(); ++j) error_[j] = weight_[j] * at - count_[j];
      double most[4] = {kNever, kNever, kNever, kNever};
      size_t j = 0;
      for (; j + 4 <= error_.size(); j += 4)
        for (size_t l = 0; l < 4; ++l) most[l] = std::max(most[l], error_[j + l]);
      for (; j < error_.size(); ++j) most[0] = std::max(most[0], error_[j]);
      const double greatest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
      size_t best = groups.size();
      for (j = 0; j < error_.size(); ++j) {
        if (error_[j] == greatest &&
            (best == groups.size() || front(groups[j]) < front(groups[best])))
          best = j;
      }
      count_[best] = take_from(static_cast<size_t>(groups[best]));
    }
  }

  int32_t front(int32_t group) const {
    const Group& g = groups_[static_cast<size_t>(group)];
    return g.members[g.next];
  }

  // Takes a sample from the group's next member; returns the group's count after that.
  double take_from(size_t group) {
    Group& g = groups_[group];
    const int32_t set = g.members[g.next];
    index_.set.push_back(static_cast<int16_t>(set));
    index_.sample.push_back(index_.counts[static_cast<size_t>(set)]++);
    if (++g.next == g.members.size()) {
      g.next = 0;
      counts_[group] += 1;
      if (counts_[group] == g.limit) counts_[group] = HUGE_VAL;  // never chosen again
    }
    return counts_[group];
  }

  std::vector<Group> groups_;
  std::vector<double> weights_, counts_;  // weight of each group, and count of its next member
  std::vector<double> weight_, count_, error_;  // values of the candidates that choose() scans
  BlendIndex index_;
};

void check_size(size_t sets, int64_t samples) {
  MG_CHECK(sets > 0 && sets <= static_cast<size_t>(kMaxBlendedSets),
           "the blend has {} data sets; it must have 1 to {}", sets, kMaxBlendedSets);
  const double bytes = static_cast<double>(samples) * (sizeof(int16_t) + sizeof(int64_t));
  const auto memory = static_cast<double>(available_memory());
  MG_CHECK(bytes <= memory / 2,
           "the index of a blend of {} samples takes {}, more than half of the memory available "
           "to this process ({}): request fewer samples (--train-iters, --train-samples, "
           "--global-batch-size, --eval-iters)",
           samples, format_bytes(bytes), available_memory_text());
}

}  // namespace

std::vector<double> normalized(std::span<const double> weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) share /= sum;
  return shares;
}

int64_t share_of_blend(int64_t size, double weight, double surplus) {
  const double target = std::ceil(static_cast<double>(size) * weight);
  return static_cast<int64_t>(std::ceil(target * (1 + surplus)));
}

BlendIndex blend_by_weight(std::span<const double> weights, int64_t size) {
  check_size(weights.size(), size);
  return Blender(weights, {}, size).take();
}

BlendIndex blend_everything(std::span<const int64_t> sizes) {
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  check_size(sizes.size(), total);
  std::vector<double> weights;
  for (const int64_t size : sizes)
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return Blender(weights, sizes, total).take();
}

}  // namespace megatron::data
