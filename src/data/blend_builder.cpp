#include "data/blend_builder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/function_ref.h"
#include "base/progress.h"
#include "data/extended_dataset.h"

namespace megatron::data {
namespace {

// Runs f(0) ... f(count - 1) on new threads. Of several errors the one with the lowest index is
// thrown; after an error nothing more is started.
void run_all(int64_t count, int64_t threads, const std::string& label,
             FunctionRef<void(int64_t)> f) {
  constexpr int64_t kWorthABar = 100;
  std::optional<Progress> progress;
  if (count >= kWorthABar) progress.emplace(label, count, "sets");
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  int64_t done = 0, failed_at = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) {
      std::exception_ptr mine;
      try {
        f(i);
      } catch (...) {
        mine = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      if (mine && i < failed_at) failed_at = i, failure = mine;
      if (mine) next = count;
      if (progress) progress->update(++done);
    }
  };
  std::vector<std::thread> helpers;
  for (int64_t t = 1; t < std::min(threads, count); ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

// A requested data set; parts that request the same one share it.
struct Wanted {
  std::string prefix;
  Split split = Split::train;
  std::optional<int64_t> samples;
  int64_t extended = 0;  // more if they are extended

  bool operator<(const Wanted& other) const {
    return std::tie(prefix, split, samples, extended) <
           std::tie(other.prefix, other.split, other.samples, other.extended);
  }
};

// Plan for one split.
struct SplitPlan {
  Split split = Split::train;
  std::optional<int64_t> samples;  // number that is served
  std::vector<double> shares;      // of a weighted blend
  std::vector<Wanted> parts;
  bool blended = true;  // false: the parts are concatenated
};

SplitPlan plan_split(const BlendRequest& request, const BlendList& list, Split split,
                     std::optional<int64_t> samples) {
  const int64_t extended = request.extended[static_cast<size_t>(split)];
  const bool extends = samples && extended > *samples;
  SplitPlan plan{.split = split,
                 .samples = extends ? std::optional(extended) : samples,
                 .shares = {},
                 .parts = {}};
  const bool apart = request.several_valid && split == Split::valid && list.prefixes.size() > 1;
  const bool single = list.prefixes.size() == 1 && (!list.weighted() || !request.all);
  plan.blended = !apart && !single;
  if (list.weighted() && !single) {
    MG_CHECK(!apart,
             "--multiple-validation-sets evaluates each validation set separately, so weights have "
             "no effect: give the prefixes without weights");
    MG_CHECK(samples.has_value(),
             "the {} set is read exactly once, but its blend has weights, which only apply to a "
             "given number of samples: give the prefixes without weights",
             name(split));
    plan.shares = normalized(list.weights);
  }
  for (size_t d = 0; d < list.prefixes.size(); ++d) {
    Wanted part{list.prefixes[d], split, {}};
    if (single) {
      part.samples = samples;
      if (extends) part.extended = extended;
    }
    if (!plan.shares.empty()) {
      MG_CHECK(plan.shares[d] > 0, "the weight {} of {} is too small compared with the others",
               list.weights[d], list.prefixes[d]);
      part.samples = share_of_blend(*samples, plan.shares[d], request.surplus);
      if (extends) part.extended = share_of_blend(extended, plan.shares[d], request.surplus);
    }
    plan.parts.push_back(std::move(part));
  }
  return plan;
}

std::shared_ptr<const Dataset> blend(const SplitPlan& plan,
                                     std::vector<BlendedDataset::Component> parts) {
  const std::string label(name(plan.split));
  if (!plan.shares.empty()) {
    int64_t size = 0;
    for (const double share : plan.shares) size += share_of_blend(*plan.samples, share, 0);
    return std::make_shared<BlendedDataset>(label, std::move(parts),
                                            blend_by_weight(plan.shares, size));
  }
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const BlendedDataset::Component& part : parts) {
    sizes.push_back(part.set->size());
    total += sizes.back();
    MG_CHECK(sizes.back() > 0,
             "{}: the {} split does not fill even one sample; leave the data set out of the "
             "blend, give the split a larger share (--split) or shorten --seq-length",
             part.name, label);
  }
  if (!plan.samples)
    return std::make_shared<BlendedDataset>(label, std::move(parts), blend_everything(sizes));
  const std::vector<double> weights(sizes.begin(), sizes.end());
  return std::make_shared<BlendedDataset>(
      label, std::move(parts),
      blend_by_weight(normalized(weights), std::min(*plan.samples, total)));
}

std::vector<SplitPlan> plan_splits(const BlendRequest& request,
                                   const std::optional<std::string>& shares,
                                   const std::array<std::optional<int64_t>, 3>& samples) {
  MG_CHECK(request.surplus >= 0 && request.surplus <= 1,
           "--mid-level-dataset-surplus is {}; it must lie in [0, 1]", request.surplus);
  std::vector<SplitPlan> plans;
  for (size_t i = 0; i < 3; ++i) {
    const auto split = static_cast<Split>(i);
    if (samples[i] == 0) continue;
    if (request.all) {
      if (shares && !parse_split(*shares)[i]) continue;
      plans.push_back(plan_split(request, *request.all, split, samples[i]));
    } else if (request.per_split[i]) {
      plans.push_back(plan_split(request, *request.per_split[i], split, samples[i]));
    }
  }
  return plans;
}

// Each data set maps two files, and three of the index cache for each split; the system limits the
// number of maps.
void check_maps(size_t sources, size_t sets) {
  constexpr const char* kLimit = "/proc/sys/vm/max_map_count";
  if (access(kLimit, R_OK) != 0) return;
  int64_t limit = 0;
  const std::string text = read_file(kLimit);
  std::from_chars(text.data(), text.data() + text.size(), limit);
  const auto maps = static_cast<int64_t>(2 * sources + 3 * sets);
  MG_CHECK(maps < limit - limit / 16,
           "{} data sets need {} memory-mapped files, but this system allows {} per process: "
           "raise the limit (sysctl vm.max_map_count={}), or merge data sets (megatron merge)",
           sources, maps, limit, 2 * maps);
}

const GptDataset& first_epochs(const Dataset& set) {
  const auto* extended = dynamic_cast<const ExtendedDataset*>(&set);
  return extended != nullptr ? extended->base() : dynamic_cast<const GptDataset&>(set);
}

bool same_epochs(const GptDataset& set, std::optional<int64_t> samples) {
  IndexRequest request = set.request();
  request.samples = samples;
  IndexPlan plan;
  try {
    plan = plan_index(request);
  } catch (const Error&) {  // too many to build
    return false;
  }
  const IndexPlan& now = set.plan();
  return plan.epochs == now.epochs && plan.separate_final_epoch == now.separate_final_epoch &&
         (!now.separate_final_epoch ||
          plan.samples_without_final_epoch == now.samples_without_final_epoch);
}

}  // namespace

bool keeps_order(const BlendRequest& request, Split split, const Dataset& set, int64_t samples) {
  const auto at = static_cast<size_t>(split);
  BlendRequest plain = request;
  plain.extended = {};
  const BlendList& list = request.all ? *request.all : request.per_split[at].value();
  const SplitPlan plan = plan_split(plain, list, split, samples);
  const auto* blended = dynamic_cast<const BlendedDataset*>(&set);
  for (size_t d = 0; d < plan.parts.size(); ++d) {
    const Dataset& part = blended != nullptr ? *blended->parts()[d].set : set;
    if (!same_epochs(first_epochs(part), plan.parts[d].samples)) return false;
  }
  return true;
}

void check_blends(const BlendRequest& request, const std::optional<std::string>& shares,
                  const std::array<std::optional<int64_t>, 3>& samples) {
  plan_splits(request, shares, samples);
}

BlendSets build_blends(const BlendRequest& request, const GptDatasetConfig& config,
                       const std::array<std::optional<int64_t>, 3>& samples,
                       const OpenSource& open) {
  const std::vector<SplitPlan> plans = plan_splits(request, config.split, samples);
  std::map<std::string, std::shared_ptr<const TokenSource>> sources;
  std::map<Wanted, std::shared_ptr<const Dataset>> built;
  std::vector<decltype(sources)::value_type*> to_open;
  std::vector<decltype(built)::value_type*> to_build;
  for (const SplitPlan& plan : plans) {
    for (const Wanted& part : plan.parts) {
      const auto [source, first_source] = sources.try_emplace(part.prefix);
      if (first_source) to_open.push_back(&*source);
      const auto [set, first_set] = built.try_emplace(part);
      if (first_set) to_build.push_back(&*set);
    }
  }
  check_maps(to_open.size(), to_build.size());
  run_all(static_cast<int64_t>(to_open.size()), request.threads, "opening data", [&](int64_t i) {
    auto& [prefix, source] = *to_open[static_cast<size_t>(i)];
    source = open(prefix);
  });
  run_all(static_cast<int64_t>(to_build.size()), request.threads, "indexing data", [&](int64_t i) {
    auto& [wanted, set] = *to_build[static_cast<size_t>(i)];
    GptDatasetConfig own = config;
    if (!request.all) own.split.reset();
    const auto& source = sources.find(wanted.prefix)->second;
    if (wanted.extended > wanted.samples.value_or(wanted.extended)) {
      set = std::make_shared<ExtendedDataset>(source, own, wanted.split, wanted.samples,
                                              wanted.extended);
    } else {
      set = std::make_shared<GptDataset>(source, std::move(own), wanted.split, wanted.samples);
    }
  });
  BlendSets result;
  for (const SplitPlan& plan : plans) {
    std::vector<BlendedDataset::Component> parts;
    for (const Wanted& part : plan.parts) parts.push_back({part.prefix, built.find(part)->second});
    auto& out = result.sets[static_cast<size_t>(plan.split)];
    if (plan.blended) {
      out.push_back({std::string(name(plan.split)), blend(plan, std::move(parts))});
    } else {
      out = std::move(parts);
    }
  }
  return result;
}

}  // namespace megatron::data
