#include "training/profile/recorder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"

namespace megatron::training {
namespace {

std::string_view name(kernels::Access access) {
  switch (access) {
    case kernels::Access::read: return "read";
    case kernels::Access::write: return "written";
    case kernels::Access::update: return "updated";
  }
  MG_ASSERT(false);
}

// A rate in billions per second; "" if no time has passed.
std::string rate(std::string_view key, double amount, double seconds) {
  if (seconds <= 0 || amount <= 0) return "";
  return fmt::format(R"(,"{}":{:.3f})", key, amount / seconds * 1e-9);
}

}  // namespace

std::string_view name(Track track) {
  switch (track) {
    case Track::step: return "steps";
    case Track::data: return "data";
    case Track::span: return "layers";
    case Track::kernel: return "kernels";
    case Track::communication: return "communication";
  }
  MG_ASSERT(false);
}

void Recorder::start(double base, const TrainStep& step) {
  on_ = true;
  base_ = base;
  step_ = &step;
}

void Recorder::add(Track track, std::string name, double begin, std::string arguments) {
  if (!on_) return;
  events_.push_back({.track = track,
                     .name = std::move(name),
                     .begin = begin,
                     .end = now_seconds(),
                     .arguments = std::move(arguments)});
}

void Recorder::before(const kernels::Call&) { kernel_begin_ = now_seconds(); }

void Recorder::after(const kernels::Call& call) {
  const double end = now_seconds();
  if (!on_) return;
  Event event{.track = Track::kernel,
              .name = std::string(call.kernel),
              .begin = kernel_begin_,
              .end = end,
              .cost = call.cost};
  event.operands.reserve(call.operands.size());
  for (const kernels::Operand& o : call.operands)
    event.operands.push_back({o.name, o.access, o.tensor.dtype(), o.tensor.shape()});
  if (step_ != nullptr) event.micro_batch = step_->micro_batch();
  if (!spans_.empty()) event.inside = spans_.back().name;
  events_.push_back(std::move(event));
}

void Recorder::enter(const Span& span, Pass pass) {
  spans_.push_back({fmt::format("{} {}", megatron::name(pass), span.name), now_seconds()});
}

// Spans of two micro-batches may be open at once.
void Recorder::leave(const Span& span, Pass pass) {
  const std::string name = fmt::format("{} {}", megatron::name(pass), span.name);
  const auto found = std::find_if(spans_.rbegin(), spans_.rend(),
                                  [&](const Open& open) { return open.name == name; });
  MG_ASSERT(found != spans_.rend());
  const Open open = std::move(*found);
  spans_.erase(std::next(found).base());
  const int micro_batch = step_ == nullptr ? -1 : step_->micro_batch();
  add(Track::span, open.name, open.begin, fmt::format(R"({{"micro_batch":{}}})", micro_batch));
}

void Recorder::began(StepPart) { part_begin_ = now_seconds(); }
void Recorder::ended(StepPart part) {
  add(Track::step, std::string(training::name(part)), part_begin_);
}

void Recorder::communicated(const comm::Traffic& t) {
  if (!on_) return;
  const double seconds = t.ended - t.began, sent = comm::sent_bytes(t);
  add(Track::communication, fmt::format("{}: {}", t.collective, t.call), t.began,
      fmt::format(R"({{"collective":"{}","ranks":{},"bytes":{},"sent bytes":{}{}}})", t.collective,
                  t.ranks, t.bytes, json_number(sent), rate("GB/s", sent, seconds)));
  events_.back().end = t.ended;
}

std::string Recorder::arguments_of(const Event& e) {
  if (e.track != Track::kernel) return e.arguments;
  std::string text = "{";
  for (const Seen& o : e.operands)
    text += fmt::format(R"("{}":"{} {} {}",)", o.name, megatron::name(o.type), o.shape.str(),
                        name(o.access));
  const double seconds = e.end - e.begin;
  text +=
      fmt::format(R"("flops":{},"bytes":{})", json_number(e.cost.flops), json_number(e.cost.bytes));
  text += rate("GFLOP/s", e.cost.flops, seconds) + rate("GB/s", e.cost.bytes, seconds);
  if (!e.inside.empty()) text += fmt::format(R"(,"inside":{})", json_text(e.inside));
  if (e.micro_batch >= 0) text += fmt::format(R"(,"micro_batch":{})", e.micro_batch);
  return text + "}";
}

void Recorder::write(TraceFile& file, int rank) {
  // An event comes before those within it.
  std::ranges::stable_sort(events_, [](const Event& a, const Event& b) {
    if (a.track != b.track) return a.track < b.track;
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  const auto nanoseconds = [this](double time) {
    return std::max<int64_t>(0, std::llround((time - base_) * 1e9));
  };
  for (const Event& e : events_) {
    const std::string arguments = arguments_of(e);
    file.add({.name = e.name,
              .category = training::name(e.track),
              .process = rank,
              .thread = static_cast<int>(e.track),
              .begin = nanoseconds(e.begin),
              .end = nanoseconds(e.end),
              .arguments = arguments});
  }
  events_.clear();
}

}  // namespace megatron::training
