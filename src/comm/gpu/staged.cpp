#include "comm/gpu/staged.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/arguments.h"
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

class Staged final : public Group {
 public:
  explicit Staged(Group& group) : group_(group) {}
  explicit Staged(std::unique_ptr<Group> group) : own_(std::move(group)), group_(*own_) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    if (passes(t)) return group_.all_reduce(std::move(t), op, stream, call);
    if (size() == 1) return {{}, {std::move(t)}};
    const Tensor copy = on_host(t, *arena_, true);
    finish(group_.all_reduce(copy, op, stream, call));
    to_device(copy, t);
    return {{}, {std::move(t)}};
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    if (passes(in)) return group_.all_gather(std::move(in), std::move(out), stream, call);
    check_all_gather(in, out, size());
    if (size() == 1) return copied(std::move(in), std::move(out), stream);
    const Tensor from = on_host(in, *arena_, true), to = on_host(out, *arena_, false);
    finish(group_.all_gather(from, to, stream, call));
    to_device(to, out);
    return {{}, {std::move(in), std::move(out)}};
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    if (passes(in)) return group_.reduce_scatter(std::move(in), std::move(out), op, stream, call);
    check_reduce_scatter(in, out, size());
    if (size() == 1) return copied(std::move(in), std::move(out), stream);
    const Tensor from = on_host(in, *arena_, true), to = on_host(out, *arena_, false);
    finish(group_.reduce_scatter(from, to, op, stream, call));
    to_device(to, out);
    return {{}, {std::move(in), std::move(out)}};
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    if (passes(in))
      return group_.all_to_all(std::move(in), std::move(out), send_counts, receive_counts, stream,
                               call);
    check_all_to_all(in, out, send_counts, receive_counts, size());
    if (size() == 1) return copied(std::move(in), std::move(out), stream);
    const Tensor from = on_host(in, *arena_, true), to = on_host(out, *arena_, false);
    finish(group_.all_to_all(from, to, send_counts, receive_counts, stream, call));
    to_device(to, out);
    return {{}, {std::move(in), std::move(out)}};
  }

  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    if (passes(t)) return group_.broadcast(std::move(t), root, stream, call);
    if (size() == 1) return {{}, {std::move(t)}};
    const Tensor copy = on_host(t, *arena_, rank() == root);
    finish(group_.broadcast(copy, root, stream, call));
    if (rank() != root) to_device(copy, t);
    return {{}, {std::move(t)}};
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    if (passes(t)) return group_.send(std::move(t), to, stream, call);
    finish(group_.send(on_host(t, *arena_, true), to, stream, call));
    return {{}, {std::move(t)}};
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    if (passes(t)) return group_.recv(std::move(t), from, stream, call);
    const Tensor copy = on_host(t, *arena_, false);
    finish(group_.recv(copy, from, stream, call));
    to_device(copy, t);
    return {{}, {std::move(t)}};
  }

  void barrier(std::string_view call) override { group_.barrier(call); }
  std::unique_ptr<Group> split(int color, int key, int members) override {
    return staged(group_.split(color, key, members));
  }
  void set_name(std::string_view name) override { group_.set_name(name); }
  double seconds() const override { return group_.seconds(); }
  bool immediate() const override { return group_.immediate(); }
  void give_up() override { group_.give_up(); }
  Doing* doing() override { return group_.doing(); }
  Member* member() override { return group_.member(); }

 private:
  static bool passes(const Tensor& t) { return t.device().kind != DeviceKind::cuda; }
  static void finish(const Work& work) { work.done.wait_on_host(); }

  Work copied(Tensor in, Tensor out, Stream& stream) const {
    if (in.bytes() > 0 && in.address() != out.address())
      cuda_plugin().copy(out.address(), in.address(), in.bytes(), stream);
    return {{}, {std::move(in), std::move(out)}};
  }

  const std::unique_ptr<Group> own_;
  Group& group_;
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
        "--distributed-backend nccl: {}, or --distributed-backend gloo, which goes through host "
        "memory",
        shared.empty() ? unusable : shared + ", and NCCL needs one for each rank; use fewer ranks");
    if (!unusable.empty() && group.rank() == 0)
      log::warning("the ranks communicate through host memory, which is slower than NCCL: {}",
                   unusable);
  }
  made = apart ? gpu_group(group, device) : staged(group);
  return *made;
}

}  // namespace megatron::comm
