#include "plan/recorder.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace megatron::plan {
namespace {

template <class T>
void put(std::string& key, const T& value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  key.append(bytes, sizeof(T));
}

// Index of the first operand of the call with the same storage.
int storage_of(std::span<const kernels::Operand> operands, size_t index) {
  size_t first = 0;
  while (!operands[first].tensor.same_storage(operands[index].tensor)) ++first;
  return static_cast<int>(first);
}

int64_t offset_of(const Tensor& t) { return t.offset() * size_of(t.dtype()); }

std::vector<OperandForm> forms_of(std::span<const kernels::Operand> operands) {
  std::vector<OperandForm> forms;
  std::vector<int64_t> begins(operands.size(), INT64_MAX);  // by storage
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto& [name, access, tensor] = operands[i];
    OperandForm form{.name = name,
                     .access = access,
                     .shape = tensor.shape(),
                     .type = tensor.dtype(),
                     .storage = storage_of(operands, i),
                     .offset = offset_of(tensor)};
    for (int d = 0; d < tensor.rank(); ++d) form.strides[static_cast<size_t>(d)] = tensor.stride(d);
    int64_t& begin = begins[static_cast<size_t>(form.storage)];
    begin = std::min(begin, form.offset);
    forms.push_back(form);
  }
  for (OperandForm& form : forms) form.offset -= begins[static_cast<size_t>(form.storage)];
  return forms;
}

// Appends the fields of OperandForm as bytes.
void put_operands(std::string& key, std::span<const kernels::Operand> operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto& [name, access, tensor] = operands[i];
    const int storage = storage_of(operands, i);
    key += name;
    put(key, access);
    put(key, tensor.dtype());
    put(key, storage);
    put(key, offset_of(tensor) - offset_of(operands[static_cast<size_t>(storage)].tensor));
    for (int d = 0; d < tensor.rank(); ++d) {
      put(key, tensor.size(d));
      put(key, tensor.stride(d));
    }
  }
}

DType type_of(const WorkItem& item) {
  for (const OperandForm& operand : item.operands)
    if (is_floating(operand.type)) return operand.type;
  return item.operands.empty() ? DType::f32 : item.operands[0].type;
}

}  // namespace

const OperandForm* WorkItem::find(std::string_view name) const {
  const auto found = std::ranges::find(operands, name, &OperandForm::name);
  return found == operands.end() ? nullptr : &*found;
}

const OperandForm& WorkItem::operand(std::string_view name) const {
  const OperandForm* found = find(name);
  MG_ASSERT(found != nullptr);
  return *found;
}

int64_t OperandForm::end() const {
  if (shape.elements() == 0) return offset;
  int64_t last = 0;
  for (int d = 0; d < shape.rank(); ++d) last += (shape[d] - 1) * strides[static_cast<size_t>(d)];
  return offset + (last + 1) * size_of(type);
}

void Recorder::after(const kernels::Call& call) {
  key_.assign(call.kernel);
  put(key_, call.form);
  put_operands(key_, call.operands);
  const auto [found, is_new] = kernels_.try_emplace(key_, work_.kernels.size());
  if (is_new) {
    work_.kernels.push_back({.kernel = call.kernel,
                             .form = call.form,
                             .cost = call.cost,
                             .operands = forms_of(call.operands),
                             .again = call.again()});
  }
  ++work_.kernels[found->second].calls;
}

void Recorder::communicated(const comm::Traffic& traffic) {
  if (traffic.ranks == 1) return;
  key_.assign(traffic.collective);
  key_ += traffic.call;
  put(key_, traffic.ranks);
  put(key_, traffic.bytes);
  put(key_, traffic.to_others);
  put(key_, traffic.overlaps);
  const auto [found, is_new] = collectives_.try_emplace(key_, work_.collectives.size());
  if (is_new) {
    work_.collectives.push_back({.collective = std::string(traffic.collective),
                                 .call = std::string(traffic.call),
                                 .ranks = traffic.ranks,
                                 .bytes = traffic.bytes,
                                 .to_others = traffic.to_others,
                                 .overlaps = traffic.overlaps});
  }
  ++work_.collectives[found->second].calls;
}

StepWork Recorder::take() {
  StepWork taken = work_;
  for (WorkItem& item : work_.kernels) item.calls = 0;
  for (CollectiveItem& item : work_.collectives) item.calls = 0;
  return taken;
}

StepWork extended(const StepWork& of_less, const StepWork& of_more, int64_t less, int64_t more,
                  int64_t n) {
  MG_ASSERT(less < more && more <= n && (n - more) % (more - less) == 0);
  MG_ASSERT(of_less.kernels.size() <= of_more.kernels.size());
  StepWork work = of_more;
  const int64_t times = (n - more) / (more - less);
  const auto extend = [times](auto& items, const auto& before) {
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t earlier = i < before.size() ? before[i].calls : 0;
      items[i].calls += times * (items[i].calls - earlier);
    }
  };
  extend(work.kernels, of_less.kernels);
  extend(work.collectives, of_less.collectives);
  return work;
}

void add(StepWork& work, const StepWork& more) {
  const auto sum = [](auto& items, const auto& others) {
    for (size_t i = 0; i < others.size(); ++i) {
      if (i < items.size()) items[i].calls += others[i].calls;
      else items.push_back(others[i]);
    }
  };
  sum(work.kernels, more.kernels);
  sum(work.collectives, more.collectives);
}

double CollectiveItem::sent() const {
  return comm::sent_bytes({.collective = collective,
                           .call = call,
                           .ranks = ranks,
                           .bytes = bytes,
                           .to_others = to_others});
}

std::vector<KernelWork> kernel_work(const StepWork& work, std::span<const double> seconds) {
  std::vector<KernelWork> sums;
  for (const WorkItem& item : work.kernels) {
    if (item.calls == 0) continue;
    const DType type = type_of(item);
    auto found = std::ranges::find_if(
        sums, [&](const KernelWork& w) { return w.kernel == item.kernel && w.type == type; });
    if (found == sums.end())
      found = sums.insert(sums.end(), {.kernel = std::string(item.kernel), .type = type});
    const auto calls = static_cast<double>(item.calls);
    found->calls += item.calls;
    found->cost.flops += calls * item.cost.flops;
    found->cost.bytes += calls * item.cost.bytes;
    if (seconds.empty()) continue;
    const auto index = static_cast<size_t>(&item - work.kernels.data());
    found->seconds = found->seconds.value_or(0) + calls * seconds[index];
  }
  return sums;
}

std::vector<TrafficWork> traffic_work(const StepWork& work) {
  std::vector<TrafficWork> sums;
  for (const CollectiveItem& item : work.collectives) {
    if (item.calls == 0) continue;
    // Names may contain counters ("gradients, bucket 3"): the part after a comma is dropped.
    const std::string call = item.call.substr(0, item.call.find(','));
    auto found = std::ranges::find_if(sums, [&](const TrafficWork& w) {
      return w.collective == item.collective && w.call == call && w.ranks == item.ranks;
    });
    if (found == sums.end())
      found = sums.insert(sums.end(),
                          {.collective = item.collective, .call = call, .ranks = item.ranks});
    const auto calls = static_cast<double>(item.calls);
    found->calls += item.calls;
    found->bytes += calls * static_cast<double>(item.bytes);
    found->sent += calls * item.sent();
  }
  return sums;
}

}  // namespace megatron::plan
