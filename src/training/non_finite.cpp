#include "training/non_finite.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "comm/values.h"
#include "kernels/observer.h"
#include "training/finite.h"

namespace megatron::training {
namespace {

bool within(const Tensor& part, const Tensor& whole) {
  if (!whole.defined() || !part.same_storage(whole)) return false;
  const auto* begin = static_cast<const std::byte*>(whole.address());
  const auto* at = static_cast<const std::byte*>(part.address());
  return at >= begin && at < begin + whole.bytes();
}

// The parameter that a tensor is, or whose gradient; empty: neither.
std::string owner_of(const Tensor& tensor, const TrainStep& step) {
  for (const parallel::Shard& shard : step.shards()) {
    const Parameter& p = shard.placed->parameter;
    if (within(tensor, p.value) || within(tensor, shard.value)) return p.name;
    bool gradient = within(tensor, shard.gradient);
    for (const Parameter::Use& use : p.uses) gradient = gradient || within(tensor, use.grad);
    if (gradient) return "the gradient of " + p.name;
  }
  return "";
}

std::string described(const Tensor& t, const TrainStep& step) {
  const std::string owner = owner_of(t, step);
  return fmt::format("{} {}{}", t.shape().str(), name(t.dtype()),
                     owner.empty() ? "" : " = " + owner);
}

// "inf at [3, 7], 12 elements in all"
std::string described(const NonFinite& found, const Tensor& t) {
  const double value = element_at(t, found.first);
  return fmt::format("{} at {}{}", unsigned_nan(value), place_of(t.shape(), found.first),
                     found.count == 1 ? "" : fmt::format(", {} elements in all", found.count));
}

// Looks at every kernel call until the first one that writes what is not finite.
class Search final : public kernels::Observer, public StepListener {
 public:
  Search(const TrainStep& step, std::span<const HostBatch> micro_batches, int rank,
         ThreadPool& pool)
      : step_(step), micro_batches_(micro_batches), rank_(rank), pool_(pool) {}

  // Number of the call that was found; -1: none. A call that read what was not finite comes behind
  // every one that did not, for what it read may have come from another rank.
  int64_t call() const {
    if (found_.empty()) return -1;
    return bad_inputs_.empty() ? calls_ : calls_ + (int64_t{1} << 40);
  }
  const std::string& found() const { return found_; }
  void is_norm() { norm_ = true; }

  void enter(const Span& span, Pass pass) override { spans_.push_back({span.name, pass}); }
  void leave(const Span&, Pass) override { spans_.pop_back(); }

  // What a call reads may be overwritten by it, so it is looked at before.
  void before(const kernels::Call& call) override {
    if (!found_.empty()) return;
    ++calls_;
    bad_inputs_.clear();
    for (const kernels::Operand& operand : call.operands) {
      if (operand.access == kernels::Access::write) continue;
      if (const NonFinite bad = look(operand)) {
        bad_inputs_ +=
            fmt::format("{}its {} {} was already {}", bad_inputs_.empty() ? "" : "; ", operand.name,
                        described(operand.tensor, step_), described(bad, operand.tensor));
      }
    }
  }

  void after(const kernels::Call& call) override {
    if (!found_.empty()) return;
    for (const kernels::Operand& operand : call.operands) {
      if (operand.access == kernels::Access::read) continue;
      const NonFinite bad = look(operand);
      if (!bad) continue;
      found_ = fmt::format("{} {} wrote to {} {} {}; {}", call.kernel, where(), operand.name,
                           described(operand.tensor, step_), described(bad, operand.tensor),
                           bad_inputs_.empty() ? inputs(call) : bad_inputs_);
      return;
    }
  }

 private:
  struct Open {
    std::string name;
    Pass pass;
  };

  NonFinite look(const kernels::Operand& operand) const {
    return find_non_finite(operand.tensor, operand.name == "lse", pool_);
  }

  // "in layers.1 (backward of micro-batch 0, samples 8 to 9, rank 1)"
  std::string where() const {
    if (norm_) return fmt::format("of the gradient norm (rank {})", rank_);
    const int micro_batch = step_.micro_batch();
    std::string samples;
    if (micro_batch >= 0 && !micro_batches_[static_cast<size_t>(micro_batch)].samples.empty()) {
      const auto& all = micro_batches_[static_cast<size_t>(micro_batch)].samples;
      const auto [low, high] = std::ranges::minmax(all);
      samples = low == high ? fmt::format(", sample {}", low)
                            : fmt::format(", samples {} to {}", low, high);
    }
    if (spans_.empty())
      return fmt::format("outside of all layers (micro-batch {}{}, rank {})", micro_batch, samples,
                         rank_);
    return fmt::format("in {} ({} of micro-batch {}{}, rank {})", spans_.back().name,
                       name(spans_.back().pass), micro_batch, samples, rank_);
  }

  // Of a call whose inputs are finite; those that it has written over are gone.
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
    return text.empty() ? "it reads no other number" : text + ", all finite";
  }

  const TrainStep& step_;
  std::span<const HostBatch> micro_batches_;
  int rank_;
  ThreadPool& pool_;
  std::vector<Open> spans_;
  int64_t calls_ = 0;
  bool norm_ = false;
  std::string bad_inputs_, found_;
};

// While it lives, a step and its stream tell a search.
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

// The text of one rank, told to all.
std::string told_by(int rank, const std::string& text, comm::Group& ranks, Stream& stream) {
  if (ranks.size() == 1) return text;
  double length = ranks.rank() == rank ? static_cast<double>(text.size()) : 0;
  comm::largest(ranks, stream, {&length, 1}, "non-finite.length");
  Tensor bytes =
      Tensor::empty(stream.scratch(), {static_cast<int64_t>(length)}, DType::u8, "non-finite.text");
  if (ranks.rank() == rank) copy_bytes_from(bytes, std::as_bytes(std::span(text)));
  ranks.broadcast(bytes, rank, stream, "non-finite.text").wait(stream);
  stream.synchronize();
  std::string told(static_cast<size_t>(bytes.elements()), ' ');
  copy_bytes_to(bytes, std::as_writable_bytes(std::span(told)));
  return told;
}

// The rank with the earliest call; none: no rank found anything.
std::optional<int> earliest(int64_t call, comm::Group& ranks, Stream& stream) {
  std::vector<double> calls(static_cast<size_t>(ranks.size()), -1);
  calls[static_cast<size_t>(ranks.rank())] = static_cast<double>(call);
  comm::largest(ranks, stream, calls, "non-finite.calls");
  std::optional<int> first;
  for (int r = 0; r < ranks.size(); ++r) {
    const double mine = calls[static_cast<size_t>(r)];
    if (mine >= 0 && (!first || mine < calls[static_cast<size_t>(*first)])) first = r;
  }
  return first;
}

// "layers.0.mlp.up.weight [96, 32]", or a part of its elements.
std::string text_of(const parallel::Shard& shard) {
  const Parameter& p = shard.placed->parameter;
  const std::string text = fmt::format("{} {}", p.name, p.value.shape().str());
  if (shard.is_whole()) return text;
  return fmt::format("{}, elements {} to {}", text, shard.begin, shard.begin + shard.size() - 1);
}

// Parameters that a step began with, as far as this rank keeps them; empty: they are finite.
std::string bad_parameters(const TrainStep& step, ThreadPool& pool) {
  std::string text;
  int more = 0;
  for (const parallel::Shard& shard : step.shards()) {
    if (shard.size() == 0) continue;
    const NonFinite bad = find_non_finite(shard.value, false, pool);
    if (!bad) continue;
    if (!text.empty()) {
      ++more;
      continue;
    }
    text = fmt::format("the parameter {} was {} before the step", text_of(shard),
                       described(bad, shard.value));
  }
  return more == 0 ? text : fmt::format("{}, and {} parameters after it", text, more);
}

// A sum over ranks that overflowed; empty: none did.
std::string bad_sum(const TrainStep& step, const comm::Group& ranks, ThreadPool& pool) {
  for (const parallel::Shard& shard : step.shards()) {
    if (!shard.gradient.defined() || shard.size() == 0) continue;
    if (const NonFinite bad = find_non_finite(shard.gradient, false, pool))
      return fmt::format(
          "the reduction of gradients: of {}, each rank's own is finite, and the sum over {} ranks "
          "is {}",
          text_of(shard), ranks.size(), described(bad, shard.gradient));
  }
  return "";
}

}  // namespace

std::string first_non_finite(TrainStep& step, std::span<const HostBatch> micro_batches,
                             comm::Group& ranks, Runtime& runtime) {
  Stream& stream = runtime.stream();
  const std::string parameters = bad_parameters(step, runtime.pool());
  Search search(step, micro_batches, ranks.rank(), runtime.pool());
  const Listening listening(step, stream, search);
  double divisor = 1;
  const StepReport report = step.accumulate(micro_batches, divisor);
  std::optional<int> first = earliest(search.call(), ranks, stream);
  std::string found = search.found();
  if (!first) {
    found = bad_sum(step, ranks, runtime.pool());
    first = earliest(found.empty() ? -1 : 0, ranks, stream);
  }
  if (!first) {
    search.is_norm();
    step.optimizer().find_norm(divisor);
    first = earliest(search.call(), ranks, stream);
    found = search.found();
  }
  if (!first)
    return fmt::format(
        "the same micro-batches, made again, gave a finite loss of {} and finite gradients: such a "
        "difference comes from the machine (memory, or a processor that is clocked too high)",
        report.loss);
  if (!found.empty() && !parameters.empty()) found += "; " + parameters;
  return told_by(*first, found, ranks, stream);
}

}  // namespace megatron::training
