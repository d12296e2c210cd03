#include "comm/gpu/staged.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/arguments.h"
#include "comm/wrapped_group.h"
#include "device/cuda_plugin.h"

namespace megatron::comm {
namespace {

// Copy of a tensor in host memory.
Tensor on_host(const Tensor& t, Arena& arena, bool filled) {
  Tensor copy = Tensor::empty(arena, t.shape(), t.dtype(), "staged");
  if (filled && t.bytes() > 0)
    cuda_plugin().copy_now(copy.raw(), t.address(), t.bytes(), t.device());
  return copy;
}

void to_device(const Tensor& copy, const Tensor& t) {
  if (t.bytes() > 0) cuda_plugin().copy_now(t.address(), copy.raw(), t.bytes(), t.device());
}

class Staged final : public WrappedGroup {
 public:
  using WrappedGroup::WrappedGroup;

  Work make(GroupCall c, Stream& stream) override {
    if (c.in.device().kind != DeviceKind::cuda) return group_.make(std::move(c), stream);
    check_call(c, size());
    const bool sends = c.operation == Operation::send, receives = c.operation == Operation::recv;
    if (size() == 1 && !sends && !receives) return alone(c, stream);
    const bool is_root = c.operation == Operation::broadcast && rank() == c.peer;
    const bool gives = c.operation != Operation::broadcast ? !receives : is_root;
    GroupCall copy = c;
    copy.in = on_host(c.in, *arena_, gives);
    if (c.out.defined()) copy.out = on_host(c.out, *arena_, false);
    group_.make(copy, stream).done.wait_on_host();
    if (c.out.defined()) {
      to_device(copy.out, c.out);
    } else if (!sends && !is_root) {
      to_device(copy.in, c.in);
    }
    return {{}, c.tensors()};
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    return staged(group_.split(color, key, members));
  }

 private:
  static Work alone(const GroupCall& c, Stream& stream) {
    if (c.out.defined() && c.in.bytes() > 0 && c.in.address() != c.out.address())
      cuda_plugin().copy(c.out.address(), c.in.address(), c.in.bytes(), stream);
    return {{}, c.tensors()};
  }

  const std::shared_ptr<Arena> arena_ =
      Arena::make({DeviceKind::cpu, 0}, MemoryClass::communication);
};

}  // namespace

std::unique_ptr<Group> staged(Group& group) { return std::make_unique<Staged>(group); }
std::unique_ptr<Group> staged(std::unique_ptr<Group> group) {
  return std::make_unique<Staged>(std::move(group));
}

Group& for_device(Group& group, Device device, std::unique_ptr<Group>& made, GpuBackend backend) {
  if (device.kind != DeviceKind::cuda) return group;
  bool apart = false;
  if (group.size() > 1 && group.member() != nullptr && backend != GpuBackend::gloo) {
    const std::string shared = shared_gpu(group, device);
    const std::string unusable = shared.empty() ? unusable_nccl(group) : "";
    apart = shared.empty() && unusable.empty();
    MG_CHECK(
        apart || backend == GpuBackend::automatic,
        "--distributed-backend nccl cannot be used: {}, or --distributed-backend gloo, which "
        "communicates through host memory",
        shared.empty() ? unusable : shared + ", and NCCL needs one for each rank; use fewer ranks");
    if (!unusable.empty() && group.rank() == 0)
      log::warning("the ranks communicate through host memory, which is slower than NCCL: {}",
                   unusable);
  }
  made = apart ? gpu_group(group, device) : staged(group);
  return *made;
}

}  // namespace megatron::comm
