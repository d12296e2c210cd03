// Work of a step, recorded on a meta run: the kernels, how often each is called with which
// operands, and the communication between ranks.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/traffic.h"
#include "kernels/observer.h"
#include "plan/plan.h"

namespace megatron::plan {

// Description of an operand without its memory.
struct OperandForm {
  std::string_view name;
  kernels::Access access = kernels::Access::read;
  Shape shape;
  std::array<int64_t, kMaxRank> strides{};
  DType type = DType::f32;
  int storage = 0;     // operands of a call with equal numbers share memory
  int64_t offset = 0;  // bytes from the first byte of that memory that the call uses

  int64_t bytes() const { return shape.elements() * size_of(type); }
  int64_t end() const;  // bytes from the same origin to the end of the last element
  bool operator==(const OperandForm&) const = default;
};

// Calls of a kernel that do the same work: operands of the same shapes, strides, types and sharing
// of memory.
struct WorkItem {
  std::string_view kernel;
  int form = 0;        // kernels::form_of() of the arguments
  kernels::Cost cost;  // per call
  std::vector<OperandForm> operands;
  kernels::Call::Again again;
  int64_t calls = 0;

  const OperandForm* find(std::string_view name) const;  // null if the calls have none
  const OperandForm& operand(std::string_view name) const;
};

struct CollectiveItem {
  std::string collective, call;
  int ranks = 1;
  int64_t bytes = 0;
  int64_t calls = 0;
  int64_t to_others = 0;  // see comm/traffic.h
  bool overlaps = false;

  double sent() const;  // per call
};

struct StepWork {
  std::vector<WorkItem> kernels;  // in the order of first calls
  std::vector<CollectiveItem> collectives;
};

// A step of `n` micro-batches, extrapolated from one of `less` and one of `more`: the work that the
// latter adds to the former is repeated for each further more - less micro-batches. n - more must
// be a multiple of more - less.
StepWork extended(const StepWork& of_less, const StepWork& of_more, int64_t less, int64_t more,
                  int64_t n);

// Adds the calls of `more`, which must come from the same recorder, to `work`.
void add(StepWork& work, const StepWork& more);

// Sums by kernel and type, and by collective and name. seconds: of a call, by item; empty: unknown.
std::vector<KernelWork> kernel_work(const StepWork& work, std::span<const double> seconds = {});
std::vector<TrafficWork> traffic_work(const StepWork& work);

// Keeps no tensor, so memory is released as it would be without a recorder.
class Recorder final : public kernels::Observer, public comm::TrafficListener {
 public:
  void after(const kernels::Call& call) override;
  void communicated(const comm::Traffic& traffic) override;
  // Returns what was recorded since the last take(). Items keep their positions: an item seen
  // before but not since has 0 calls.
  StepWork take();

 private:
  StepWork work_;
  std::unordered_map<std::string, size_t> kernels_, collectives_;
  std::string key_;  // reused to avoid allocation
};

}  // namespace megatron::plan
