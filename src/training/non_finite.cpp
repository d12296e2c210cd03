#include "training/non_finite.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"
#include "comm/values.h"
#include "kernels/observer.h"
#include "tensor/finite.h"

namespace megatron::training {
namespace {

bool within(const Tensor& part, const Tensor& whole) {
  if (!whole.defined() || !part.same_storage(whole)) return false;
  const auto* begin = static_cast<const std::byte*>(whole.address());
  const auto* at = static_cast<const std::byte*>(part.address());
  return at >= begin && at < begin + whole.bytes();
}

// The parameter that a tensor is, or of which it is the gradient; null: neither.
struct Owner {
  const Parameter* parameter = nullptr;
  bool gradient = false;
};

Owner owner_of(const Tensor& tensor, const TrainStep& step) {
  for (const parallel::Shard& shard : step.shards()) {
    const Parameter& p = shard.placed->parameter;
    if (within(tensor, p.value) || within(tensor, shard.value)) return {&p};
    bool gradient = within(tensor, shard.gradient);
    for (const Parameter::Use& use : p.uses) gradient = gradient || within(tensor, use.grad);
    if (gradient) return {&p, true};
  }
  return {};
}

std::string described(const Tensor& t, const TrainStep& step) {
  const Owner owner = owner_of(t, step);
  const std::string text = fmt::format("{} {}", t.shape().str(), name(t.dtype()));
  if (owner.parameter == nullptr) return text;
  return fmt::format("{} = {}{}", text, owner.gradient ? "the gradient of " : "",
                     owner.parameter->name);
}

// Formats "inf at [3, 7], 12 elements in all". The tensor t holds the elements from `begin` on of a
// tensor of shape `shape`.
std::string described(const NonFinite& found, const Tensor& t, const Shape& shape, int64_t begin) {
  const double value = element_at(t, found.first);
  return fmt::format("{} at {}{}", unsigned_nan(value), place_of(shape, begin + found.first),
                     found.count == 1 ? "" : fmt::format(", {} elements in all", found.count));
}

std::string described(const NonFinite& found, const Tensor& t) {
  return described(found, t, t.shape(), 0);
}

// Position of a finding in the order in which a single rank would reach it; the smallest one is
// reported.
using Place = std::array<int64_t, 5>;

// The finding of a rank, or the earliest of several ranks. Without a place, nothing was found.
struct Finding {
  std::optional<Place> place;
  std::string text;
};

// Inspects every kernel call until the first one that writes a value that is not finite.
class Search final : public kernels::Observer, public StepListener {
 public:
  Search(const TrainStep& step, std::span<const corpus::HostBatch> micro_batches, int rank,
         ThreadPool& pool)
      : step_(step), micro_batches_(micro_batches), rank_(rank), pool_(pool) {}

  const Finding& found() const { return found_; }
  void is_norm() { norm_ = true; }

  void enter(const Span& span, Pass pass) override { spans_.push_back({span.name, pass}); }
  void leave(const Span& span, Pass pass) override {
    std::erase_if(spans_,
                  [&](const Open& open) { return open.name == span.name && open.pass == pass; });
  }

  // A call may overwrite its inputs, so they are inspected before it.
  void before(const kernels::Call& call) override {
    if (found_.place) return;
    ++calls_;
    bad_inputs_.clear();
    received_ = false;
    for (const kernels::Operand& operand : call.operands) {
      if (operand.access == kernels::Access::write) continue;
      if (const NonFinite bad = look(operand)) {
        const Owner owner = owner_of(operand.tensor, step_);
        received_ = received_ || owner.parameter == nullptr || owner.gradient;
        bad_inputs_ +=
            fmt::format("{}its {} {} was already {}", bad_inputs_.empty() ? "" : "; ", operand.name,
                        described(operand.tensor, step_), described(bad, operand.tensor));
      }
    }
  }

  void after(const kernels::Call& call) override {
    if (found_.place) return;
    for (const kernels::Operand& operand : call.operands) {
      if (operand.access == kernels::Access::read) continue;
      const NonFinite bad = look(operand);
      if (!bad) continue;
      found_ = {place(),
                fmt::format("{} {} wrote to {} {} {}; {}", call.kernel, where(), operand.name,
                            described(operand.tensor, step_), described(bad, operand.tensor),
                            bad_inputs_.empty() ? inputs(call) : bad_inputs_)};
      return;
    }
  }

 private:
  struct Open {
    std::string name;
    Pass pass;
  };

  NonFinite look(const kernels::Operand& operand) const {
    const bool may_be_none = operand.name == "lse" || operand.name == "stats";
    return find_non_finite(operand.tensor, may_be_none, pool_);
  }

  // Sorts values received from other ranks last, since those ranks produced them. The rest is in
  // the order of execution on a single rank: micro-batches one after another, each with forward,
  // backward and deferred weight gradients, through the virtual stages of the model and back; then
  // the sums over ranks and the norm.
  Place place() const {
    const parallel::Ranks& ranks = step_.ranks();
    const std::optional<parallel::Action>& action = step_.action();
    if (!action)
      return {received_, static_cast<int64_t>(micro_batches_.size()), 0, ranks.stage(), calls_};
    const int virtual_stage = ranks.pipeline().virtual_stage(ranks.stage(), action->chunk);
    const bool forward = action->kind == parallel::Action::Kind::forward;
    return {received_, action->micro_batch, static_cast<int64_t>(action->kind),
            forward ? virtual_stage : -virtual_stage, calls_};
  }

  // "in layers.1 (backward of micro-batch 0, samples 8 to 9, rank 1)"
  std::string where() const {
    if (norm_) return fmt::format("of the gradient norm (rank {})", rank_);
    if (!step_.action()) return fmt::format("of the reduction of gradients (rank {})", rank_);
    const int micro_batch = step_.micro_batch();
    std::string samples;
    if (!micro_batches_[static_cast<size_t>(micro_batch)].sample_ids.empty()) {
      const auto& all = micro_batches_[static_cast<size_t>(micro_batch)].sample_ids;
      const auto [low, high] = std::ranges::minmax(all);
      samples = low == high ? fmt::format(", sample {}", low)
                            : fmt::format(", samples {} to {}", low, high);
    }
    // If the passes of two micro-batches take turns, the one that continues is still in its
    // previous layer.
    const bool forward = step_.action()->kind == parallel::Action::Kind::forward;
    const auto open = std::find_if(spans_.rbegin(), spans_.rend(), [&](const Open& span) {
      return (span.pass == Pass::forward) == forward;
    });
    if (open == spans_.rend())
      return fmt::format("outside all layers (micro-batch {}{}, rank {})", micro_batch, samples,
                         rank_);
    return fmt::format("in {} ({} of micro-batch {}{}, rank {})", open->name, name(open->pass),
                       micro_batch, samples, rank_);
  }

  // Describes the inputs of a call with finite inputs; those that it has overwritten are lost.
  std::string inputs(const kernels::Call& call) const {
    std::string text;
    for (const kernels::Operand& operand : call.operands) {
      if (operand.access != kernels::Access::read || !is_floating(operand.tensor.dtype())) continue;
      const bool gone = std::ranges::any_of(call.operands, [&](const kernels::Operand& other) {
        return other.access != kernels::Access::read && within(operand.tensor, other.tensor);
      });
      text += fmt::format("{}{} {}", text.empty() ? "it read " : ", ", operand.name,
                          described(operand.tensor, step_));
      if (!gone) text += fmt::format(" up to {:.3g}", largest_finite(operand.tensor));
    }
    return text.empty() ? "it has no floating-point inputs" : text + ", all finite";
  }

  const TrainStep& step_;
  std::span<const corpus::HostBatch> micro_batches_;
  int rank_;
  ThreadPool& pool_;
  std::vector<Open> spans_;
  int64_t calls_ = 0;
  bool norm_ = false;
  std::string bad_inputs_;
  bool received_ = false;  // true if a bad input is not a parameter: another rank produced it
  Finding found_;
};

// During its lifetime, a step and its stream report to a search.
class Listening {
 public:
  Listening(TrainStep& step, Stream& stream, Search& search)
      : step_(step), stream_(stream), watcher_(stream.watcher()), listener_(step.listen(&search)) {
    stream_.watch(&search);
  }
  ~Listening() {
    stream_.watch(watcher_);
    step_.listen(listener_);
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  TrainStep& step_;
  Stream& stream_;
  StreamWatcher* watcher_;
  StepListener* listener_;
};

// The earliest finding of all ranks. If several ranks have it, the text is the lowest rank's, and
// `others` is the number of the others.
struct First : Finding {
  int others = 0;
};
First first_of(const Finding& mine, comm::Group& ranks, Stream& stream) {
  constexpr size_t kWidth = 1 + Place().size();  // per rank: 1 if it has a finding, then its place
  const double kNone = std::numeric_limits<double>::lowest();
  std::vector<double> all(static_cast<size_t>(ranks.size()) * kWidth, kNone);
  if (mine.place) {
    double* const at = &all[static_cast<size_t>(ranks.rank()) * kWidth];
    at[0] = 1;
    std::ranges::transform(*mine.place, at + 1,
                           [](int64_t value) { return static_cast<double>(value); });
  }
  comm::largest(ranks, stream, all, "non-finite.places");
  First first;
  int rank = 0;
  for (int r = 0; r < ranks.size(); ++r) {
    const double* const at = &all[static_cast<size_t>(r) * kWidth];
    if (at[0] != 1) continue;
    if (first.place) ++first.others;
    Place place;
    std::transform(at + 1, at + kWidth, place.begin(),
                   [](double value) { return static_cast<int64_t>(value); });
    if (first.place && *first.place <= place) continue;
    first.place = place;
    rank = r;
  }
  if (!first.place) return first;
  first.text = mine.text;
  comm::broadcast(ranks, stream, first.text, rank, "non-finite.text");
  return first;
}

// Position in the model of a step's shard.
Place place_in_model(const TrainStep& step, size_t shard) {
  size_t end = 0;
  for (size_t chunk = 0; chunk < step.chunks().size(); ++chunk) {
    end += step.chunks()[chunk]->parameters().size();
    const parallel::Ranks& ranks = step.ranks();
    const int virtual_stage =
        ranks.pipeline().virtual_stage(ranks.stage(), static_cast<int>(chunk));
    if (shard < end) return {virtual_stage, static_cast<int64_t>(shard)};
  }
  MG_ASSERT(false);
}

// "layers.0.mlp.up.weight [96, 32]", followed by the rank if there are several.
std::string text_of(const parallel::Shard& shard, const comm::Group& ranks) {
  const Parameter& p = shard.placed->parameter;
  const std::string text = fmt::format("{} {}", p.name, p.value.shape().str());
  return ranks.size() == 1 ? text : fmt::format("{} of rank {}", text, ranks.rank());
}

std::string described(const NonFinite& found, const Tensor& t, const parallel::Shard& shard) {
  return described(found, t, shard.placed->parameter.value.shape(), shard.begin);
}

// Searches the parameters with which a step began, as far as this rank stores them.
Finding bad_parameters(const TrainStep& step, const comm::Group& ranks, ThreadPool& pool) {
  Finding found;
  int more = 0;
  for (size_t i = 0; i < step.shards().size(); ++i) {
    const parallel::Shard& shard = step.shards()[i];
    if (shard.size() == 0) continue;
    const NonFinite bad = find_non_finite(shard.value, false, pool);
    if (!bad) continue;
    if (found.place) {
      ++more;
      continue;
    }
    found = {place_in_model(step, i),
             fmt::format("the parameter {} was {} before the step", text_of(shard, ranks),
                         described(bad, shard.value, shard))};
  }
  if (more > 0) found.text += fmt::format(", and {} parameters after it", more);
  return found;
}

// Searches for a sum over ranks that overflowed.
Finding bad_sum(const TrainStep& step, const comm::Group& ranks, ThreadPool& pool) {
  for (size_t i = 0; i < step.shards().size(); ++i) {
    const parallel::Shard& shard = step.shards()[i];
    if (!shard.gradient.defined() || shard.size() == 0) continue;
    if (const NonFinite bad = find_non_finite(shard.gradient, false, pool))
      return {place_in_model(step, i),
              fmt::format("the reduction of gradients: {} and those of the other ranks are "
                          "finite, but the sum over ranks is {}",
                          text_of(shard, ranks), described(bad, shard.gradient, shard))};
  }
  return {};
}

}  // namespace

std::string first_non_finite(TrainStep& step, std::span<const corpus::HostBatch> micro_batches,
                             comm::Group& ranks, Runtime& runtime) {
  Stream& stream = runtime.stream();
  const Finding parameters = bad_parameters(step, ranks, runtime.pool());
  Search search(step, micro_batches, ranks.rank(), runtime.pool());
  const Listening listening(step, stream, search);
  double divisor = 1;
  const StepReport report = step.accumulate(micro_batches, divisor);
  First first = first_of(search.found(), ranks, stream);
  // A place that begins with 1: every rank's first finding was computed from values of other ranks,
  // and none of their kernels had produced it.
  if (first.place && first.place->front() != 0)
    first.text += ranks.size() == 1 ? "; no kernel produced it: it already existed before the step"
                                    : "; no kernel of any rank produced it: a reduction over "
                                      "ranks or a transfer between them did";
  if (!first.place) first = first_of(bad_sum(step, ranks, runtime.pool()), ranks, stream);
  if (!first.place) {
    search.is_norm();
    step.optimizer().find_norm(divisor);
    first = first_of(search.found(), ranks, stream);
  }
  if (!first.place)
    return fmt::format(
        "the same micro-batches, computed again, gave a finite loss of {} and finite gradients: "
        "such a difference indicates faulty hardware (memory, or an overclocked processor)",
        report.loss);
  const First bad = first_of(parameters, ranks, stream);
  if (bad.place) first.text += "; " + bad.text;
  if (bad.others > 0)
    first.text += fmt::format("; {} other ranks also have such parameters", bad.others);
  return first.text;
}

}  // namespace megatron::training
