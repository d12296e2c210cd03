#include "kernels/together.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

const TogetherTable& cuda_launches() {
  using Launches = const TogetherTable* (*)();
  static const TogetherTable& own =
      *reinterpret_cast<Launches>(cuda_symbol("megatron_cuda_together"))();
  return own;
}

// True if the arguments that one launch shares between all calls are equal.
bool alike(const AdamArgs& a, const AdamArgs& b) {
  return a.step.address() == b.step.address() && a.scale.address() == b.scale.address() &&
         a.beta1 == b.beta1 && a.beta2 == b.beta2;
}
bool alike(const SgdArgs& a, const SgdArgs& b) {
  return a.step.address() == b.step.address() && a.scale.address() == b.scale.address() &&
         a.momentum == b.momentum;
}
bool alike(const LionArgs& a, const LionArgs& b) {
  return a.scale.address() == b.scale.address() && a.beta1 == b.beta1 && a.beta2 == b.beta2;
}
bool alike(const CopyArgs& a, const CopyArgs&) {
  return a.x.dtype() == DType::f32 && a.x.is_contiguous() && a.out.is_contiguous();
}
bool alike(const SumOfSquaresArgs&, const SumOfSquaresArgs&) { return true; }

template <class Args>
std::vector<DType> types_of(Args args) {
  std::vector<DType> types;
  visit(args, [&](std::string_view, Access, const Tensor& t) {
    if (t.defined()) types.push_back(t.dtype());
  });
  return types;
}

template <auto entry, auto at_once, class Args>
class Calls final : public Together {
 public:
  Calls(std::vector<Args> calls, Arena& arena, Stream& stream) : calls_(std::move(calls)) {
    if (calls_.empty() || stream.target().kind != DeviceKind::cuda) return;
    const std::vector<DType> types = types_of(calls_[0]);
    for (const Args& call : calls_) MG_ASSERT(alike(call, calls_[0]) && types_of(call) == types);
    table_ = Tensor::empty(arena, {together_bytes(calls_.size())}, DType::u8, "together");
    if (stream.device().kind == DeviceKind::cuda)
      launch_ = (cuda_launches().*at_once)(calls_, table_);
  }
  void run(Stream& stream) override {
    if (launch_ != nullptr && stream.watcher() == nullptr) return launch_->run(stream);
    const Table& one_by_one = table(stream);
    for (const Args& call : calls_) (one_by_one.*entry)(call, stream);
  }

 private:
  std::vector<Args> calls_;
  Tensor table_;
  std::unique_ptr<Together> launch_;
};

class Lists final : public Together {
 public:
  void add(std::unique_ptr<Together> list) { lists_.push_back(std::move(list)); }
  void run(Stream& stream) override {
    for (const auto& list : lists_) list->run(stream);
  }

 private:
  std::vector<std::unique_ptr<Together>> lists_;
};

// A list of the calls of each combination of types: a model may have parameters of two.
template <auto entry, auto at_once, class Args>
std::unique_ptr<Together> listed(std::vector<Args> calls, Arena& arena, Stream& stream) {
  auto lists = std::make_unique<Lists>();
  for (auto rest = calls.begin(); rest != calls.end();) {
    const auto end = std::stable_partition(
        rest, calls.end(),
        [types = types_of(*rest)](const Args& call) { return types_of(call) == types; });
    lists->add(
        std::make_unique<Calls<entry, at_once, Args>>(std::vector<Args>(rest, end), arena, stream));
    rest = end;
  }
  return lists;
}

}  // namespace

std::unique_ptr<Together> together(std::vector<AdamArgs> calls, Arena& arena, Stream& stream) {
  return listed<&Table::adam, &TogetherTable::adam>(std::move(calls), arena, stream);
}
std::unique_ptr<Together> together(std::vector<SgdArgs> calls, Arena& arena, Stream& stream) {
  return listed<&Table::sgd, &TogetherTable::sgd>(std::move(calls), arena, stream);
}
std::unique_ptr<Together> together(std::vector<LionArgs> calls, Arena& arena, Stream& stream) {
  return listed<&Table::lion, &TogetherTable::lion>(std::move(calls), arena, stream);
}
std::unique_ptr<Together> together(std::vector<CopyArgs> calls, Arena& arena, Stream& stream) {
  return listed<&Table::copy, &TogetherTable::copy>(std::move(calls), arena, stream);
}
std::unique_ptr<Together> together(std::vector<SumOfSquaresArgs> calls, Arena& arena,
                                   Stream& stream) {
  return listed<&Table::sum_of_squares, &TogetherTable::sum_of_squares>(std::move(calls), arena,
                                                                        stream);
}

}  // namespace megatron::kernels
