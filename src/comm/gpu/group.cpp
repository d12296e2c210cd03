#include "comm/gpu/group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/divide.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "comm/arguments.h"
#include "comm/call_time.h"
#include "comm/gpu/rank.h"
#include "comm/gpu/staged.h"
#include "comm/wrapped_group.h"
#include "device/cuda_library.h"
#include "device/cuda_plugin.h"

namespace megatron::comm {
namespace {

constexpr int64_t kChunk = int64_t{64}
                           << 20;  // bytes that a reduction in rank order processes at a time
// Up to this number of bytes of all ranks together, every rank receives everything and reduces it
// itself: one exchange instead of two.
constexpr int64_t kSmall = int64_t{64} << 10;
constexpr int64_t kSliceUnit = 64;  // elements; slices begin at multiples of it

bool is_exact(DType type) { return size_of(type) != 2 && !is_floating(type); }
// True if NCCL's own reduction gives the requested result; its maximum drops NaNs.
bool is_nccls(DType type, Reduce op) {
  return is_exact(type) || (op == Reduce::sum && (type == DType::f32 || type == DType::f64));
}

Tensor of_id(const CommunicatorId& id, Stream& host) {
  const Tensor tensor = Tensor::empty(host.scratch(), Shape{static_cast<int64_t>(id.bytes.size())},
                                      DType::u8, "name of a NCCL communicator");
  copy_bytes_from(tensor, std::as_bytes(std::span(id.bytes)));
  return tensor;
}

CommunicatorId id_of(const Tensor& tensor) {
  CommunicatorId id;
  copy_bytes_to(tensor, std::as_writable_bytes(std::span(id.bytes)));
  return id;
}

// Messages to one rank. Their communicator is made when the receiver first wants a message, without
// anyone waiting for it; until then messages are queued here.
class Outbox {
 public:
  Outbox(std::shared_ptr<GpuRank> rank, const CommunicatorId& id)
      : state_(std::make_shared<State>(std::move(rank))),
        thread_([state = state_, id] { state->open(id); }) {}

  // Returns once the receiver has come or the run has failed.
  ~Outbox() {
    thread_.join();
    state_->lane.reset();
  }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  Arena& arena() { return *state_->arena; }
  // copied: reached when `letter` has its bytes.
  void post(Tensor letter, Event copied) { state_->post({std::move(letter), std::move(copied)}); }

 private:
  struct Letter {
    Tensor tensor;
    Event copied;
  };

  struct State {
    explicit State(std::shared_ptr<GpuRank> rank)
        : rank(std::move(rank)),
          arena(Arena::make(this->rank->device(), MemoryClass::communication)) {}

    void open(const CommunicatorId& id) {
      try {
        auto communicator = rank->join(id, 0, 2);
        const std::lock_guard lock(mutex);
        lane = std::make_unique<GpuLane>(rank, std::move(communicator));
        rank->nccl().set_aside(lane->stream());
        for (Letter& letter : waiting) send(std::move(letter));
        waiting.clear();
      } catch (const std::exception& error) {
        rank->give_up(error.what());
      }
    }

    void post(Letter letter) {
      const std::lock_guard lock(mutex);
      if (lane == nullptr) return waiting.push_back(std::move(letter));
      send(std::move(letter));
    }

    void send(Letter letter) {
      lane->release_completed();
      Stream& stream = lane->stream();
      stream.wait(letter.copied);
      lane->communicator().send(letter.tensor.address(), letter.tensor.bytes(), 1, stream);
      lane->add(stream.record(), nullptr, std::move(letter.tensor));
    }

    const std::shared_ptr<GpuRank> rank;
    const std::shared_ptr<Arena> arena;
    std::mutex mutex;
    std::vector<Letter> waiting;
    std::unique_ptr<GpuLane> lane;
  };

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

class GpuGroup final : public WrappedGroup {
 public:
  GpuGroup(Group& host, std::shared_ptr<GpuRank> rank)
      : WrappedGroup(host), common_(std::move(rank)) {}
  GpuGroup(std::unique_ptr<Group> host, std::shared_ptr<GpuRank> rank)
      : WrappedGroup(std::move(host)), common_(std::move(rank)) {}

  ~GpuGroup() override {
    if (std::uncaught_exceptions() > exceptions_)
      common_->give_up(fmt::format("rank {} failed", rank()));
    const auto call = call_of({"end", "NCCL communicators"}, -1);
    // Communicators are destroyed by all their ranks together, so all ranks use the same order.
    lane_.reset();
    while (!inboxes_.empty() || !outboxes_.empty()) {
      const bool in = outboxes_.empty() ||
                      (!inboxes_.empty() && std::pair(inboxes_.begin()->first, rank()) <
                                                std::pair(rank(), outboxes_.begin()->first));
      if (in) inboxes_.erase(inboxes_.begin());
      else outboxes_.erase(outboxes_.begin());
    }
  }

  Work make(GroupCall c, Stream& stream) override {
    if (c.in.device().kind != DeviceKind::cuda) return group_.make(std::move(c), stream);
    check_call(c, size());
    switch (c.operation) {
      case Operation::send: return send(c, stream);
      case Operation::recv: return receive(c, stream);
      default: return queue(c, stream);
    }
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    auto part = group_.split(color, key, members);
    if (part->size() == 1) return staged(std::move(part));
    return std::make_unique<GpuGroup>(std::move(part), common_);
  }

  void set_name(std::string_view name) override {
    if (lane_ != nullptr) {  // calls in flight are reported by their original name
      lane_->stream().synchronize();
      lane_->release_completed();
    }
    group_.set_name(name);
  }
  double seconds() const override { return seconds_ + group_.seconds(); }
  bool queued() const override { return true; }
  void queued_again(Stream& stream, std::string_view call) override {
    if (lane_ == nullptr) return;
    begin(stream, call);
    lane_->release_completed();
    lane_->add(stream.record(), call_of({"CUDA graph", std::string(call)}, -1), {});
  }
  void give_up() override {
    group_.give_up();
    common_->give_up(fmt::format("rank {} failed", rank()));
  }

 private:
  struct Numbers {
    std::byte* data;
    int64_t count;
    DType type;
    int64_t bytes() const { return count * size_of(type); }
  };
  using Pieces = std::vector<Communicator::Piece>;

  static std::byte* data(const Tensor& t) { return static_cast<std::byte*>(t.address()); }

  // Header that outlives the call.
  static CallHeader kept_header_of(const GroupCall& c) {
    CallHeader header = header_of(c);
    header.send_counts = header.receive_counts = {};
    return header;
  }

  Work send(const GroupCall& c, Stream& stream) {
    const CallTime time(seconds_);
    MG_ASSERT(c.peer != rank() && !stream.recording());
    begin(stream, c.name);
    member()->record().sent(*member()->progress(), c.peer);
    const Tensor& t = c.in;
    if (t.bytes() == 0) return {{}, {t}};
    Outbox& box = outbox(c.peer);
    const Tensor letter = Tensor::empty(box.arena(), t.shape(), t.dtype(), "message");
    cuda_plugin().copy(letter.address(), t.address(), t.bytes(), stream);
    const Event copied = stream.record();
    box.post(letter, copied);
    return {copied, {t}};
  }

  Work receive(const GroupCall& c, Stream& stream) {
    const CallTime time(seconds_);
    MG_ASSERT(c.peer != rank() && !stream.recording());
    begin(stream, c.name);
    if (c.in.bytes() == 0) return {{}, {c.in}};
    auto open = call_of(kept_header_of(c), c.peer);
    return queue_on(inbox(c.peer), std::move(open), stream, c.tensors(), [&](GpuLane& lane) {
      lane.communicator().receive(c.in.address(), c.in.bytes(), 0, lane.stream());
    });
  }

  void make_on(GpuLane& lane, const GroupCall& c) {
    Communicator& all = lane.communicator();
    Stream& stream = lane.stream();
    const Tensor &in = c.in, &out = c.out;
    switch (c.operation) {
      case Operation::all_reduce:
        if (!is_nccls(in.dtype(), c.op)) return all_reduce_in_order(lane, in, c.op);
        return all.all_reduce(in.address(), in.elements(), in.dtype(), c.op, stream);
      case Operation::all_gather:
        return all.all_gather(in.address(), out.address(), in.bytes(), stream);
      case Operation::reduce_scatter:
        if (!is_nccls(in.dtype(), c.op)) return reduce_scatter_in_order(lane, in, out, c.op);
        return all.reduce_scatter(in.address(), out.address(), out.elements(), in.dtype(), c.op,
                                  stream);
      case Operation::all_to_all:
        return all.exchange(rows_of(in, c.send_counts), rows_of(out, c.receive_counts), stream);
      default: all.broadcast(in.address(), in.bytes(), c.peer, stream);
    }
  }

  static Pieces rows_of(const Tensor& t, std::span<const int64_t> counts) {
    const int64_t row = row_bytes(t);
    Pieces pieces;
    std::byte* at = data(t);
    for (const int64_t count : counts) {
      pieces.push_back({at, count * row});
      at += count * row;
    }
    return pieces;
  }

  // From now on the caller's stream may wait for other ranks.
  void begin(Stream& stream, std::string_view call) {
    common_->check(call);
    common_->nccl().on_wait(
        stream, common_.get(),
        [common = std::weak_ptr(common_), exceptions = std::uncaught_exceptions()](bool ends) {
          const auto rank = common.lock();
          if (rank == nullptr) return;
          if (!ends) return rank->check("what the stream waits for");
          if (std::uncaught_exceptions() > exceptions) rank->give_up("this rank failed");
        });
  }

  Work queue(const GroupCall& c, Stream& stream) {
    const CallTime time(seconds_);
    const bool nothing = c.in.elements() == 0 && (!c.out.defined() || c.out.elements() == 0);
    // In all_to_all a rank without rows still takes part.
    if (nothing && c.operation != Operation::all_to_all) return {{}, c.tensors()};
    begin(stream, c.name);
    auto open_call = call_of(kept_header_of(c), -1);
    if (lane_ == nullptr) {
      MG_ASSERT(!stream.recording());
      lane_ = open();
    }
    return queue_on(*lane_, std::move(open_call), stream, c.tensors(),
                    [&](GpuLane& lane) { make_on(lane, c); });
  }

  std::unique_ptr<GpuCall> call_of(CallHeader header, int peer) {
    return std::make_unique<GpuCall>(std::move(header), *group_.member(), peer);
  }

  Work queue_on(GpuLane& lane, std::unique_ptr<GpuCall> call, Stream& stream,
                std::vector<Tensor> tensors, FunctionRef<void(GpuLane&)> work) {
    const bool recorded = stream.recording();  // a stream that is recorded must not be queried
    if (!recorded) lane.release_completed();
    lane.stream().wait(stream.record());
    try {
      work(lane);
    } catch (const Error&) {
      common_->check(call->name());
      throw;
    }
    Event done = lane.stream().record();
    if (!recorded) lane.add(done, std::move(call), {});
    return {std::move(done), std::move(tensors)};
  }

  std::unique_ptr<GpuLane> open() {
    const Tensor name =
        of_id(rank() == 0 ? common_->nccl().make_id() : CommunicatorId{}, common_->host());
    group_.broadcast(name, 0, common_->host(), "NCCL communicator").wait(common_->host());
    return std::make_unique<GpuLane>(common_, common_->join(id_of(name), rank(), size()));
  }

  Outbox& outbox(int to) {
    auto& box = outboxes_[to];
    if (box != nullptr) return *box;
    const CommunicatorId id = common_->nccl().make_id();
    group_
        .send(of_id(id, common_->host()), to, common_->host(),
              "NCCL communicator for "
              "point-to-point messages")
        .wait(common_->host());
    box = std::make_unique<Outbox>(common_, id);
    return *box;
  }

  GpuLane& inbox(int from) {
    auto& box = inboxes_[from];
    if (box != nullptr) return *box;
    const Tensor name = of_id({}, common_->host());
    group_.recv(name, from, common_->host(), "NCCL communicator for point-to-point messages")
        .wait(common_->host());
    box = std::make_unique<GpuLane>(common_, common_->join(id_of(name), 1, 2));
    return *box;
  }

  // --- Reductions in rank order.

  // Bytes for one part of every rank; released at once, since only the lane's stream uses them.
  Tensor room(GpuLane& lane, const Numbers& part) const {
    return Tensor::empty(lane.arena(), Shape{size() * round_up(part.count, kSliceUnit)}, part.type,
                         "parts of all ranks");
  }

  void all_reduce_in_order(GpuLane& lane, const Tensor& t, Reduce op) {
    const int64_t element = size_of(t.dtype()), chunk = round_up(kChunk / element, kSliceUnit);
    for (int64_t at = 0; at < t.elements(); at += chunk) {
      const Numbers part{data(t) + at * element, std::min(chunk, t.elements() - at), t.dtype()};
      if (part.bytes() * size() <= kSmall) reduce_all(lane, part, op);
      else reduce_slices(lane, part, op);
    }
  }

  void reduce_scatter_in_order(GpuLane& lane, const Tensor& in, const Tensor& out, Reduce op) {
    const int64_t n = out.elements(), element = size_of(in.dtype());
    const int64_t chunk = round_up(kChunk / element / size(), kSliceUnit);
    for (int64_t at = 0; at < n; at += chunk) {
      const int64_t here = std::min(chunk, n - at);
      const auto block = [&](int r) {
        return Communicator::Piece{data(in) + (r * n + at) * element, here * element};
      };
      reduce_blocks(lane, block, {data(out) + at * element, here, in.dtype()}, op);
    }
  }

  // sum = the reduction of block(r) over all ranks; this rank gives block(r) to rank r.
  void reduce_blocks(GpuLane& lane, FunctionRef<Communicator::Piece(int)> block, Numbers sum,
                     Reduce op) {
    const Tensor parts = room(lane, sum);
    const int64_t stride = round_up(sum.count, kSliceUnit);
    Pieces out, in;
    for (int r = 0; r < size(); ++r) {
      out.push_back(block(r));
      in.push_back({data(parts) + r * stride * size_of(sum.type), sum.bytes()});
    }
    lane.communicator().exchange(out, in, lane.stream());
    common_->nccl().reduce(parts.address(), stride, size(), sum.data, sum.count, sum.type, op,
                           lane.stream());
  }

  void reduce_all(GpuLane& lane, Numbers t, Reduce op) {
    const Tensor parts = room(lane, t);
    lane.communicator().all_gather(t.data, parts.address(), t.bytes(), lane.stream());
    common_->nccl().reduce(parts.address(), t.count, size(), t.data, t.count, t.type, op,
                           lane.stream());
  }

  // Rank r reduces slice r and sends it to the others.
  void reduce_slices(GpuLane& lane, Numbers t, Reduce op) {
    const int64_t element = size_of(t.type),
                  share = round_up(ceil_div(t.count, size()), kSliceUnit);
    const auto slice = [&](int r) {
      const int64_t begin = std::min(t.count, r * share), end = std::min(t.count, begin + share);
      return Communicator::Piece{t.data + begin * element, (end - begin) * element};
    };
    const Communicator::Piece mine = slice(rank());
    reduce_blocks(lane, slice, {static_cast<std::byte*>(mine.data), mine.bytes / element, t.type},
                  op);
    const Pieces out(static_cast<size_t>(size()), mine);
    Pieces in;
    for (int r = 0; r < size(); ++r) in.push_back(slice(r));
    lane.communicator().exchange(out, in, lane.stream());
  }

  const std::shared_ptr<GpuRank> common_;
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<GpuLane> lane_;
  std::map<int, std::unique_ptr<Outbox>> outboxes_;  // by destination rank
  std::map<int, std::unique_ptr<GpuLane>> inboxes_;
};

// Identifies this machine: its host name and its boot.
int64_t machine_number() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  for (const char c : name.data() + boot)
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<int64_t>(hash);
}

// Data that the ranks exchange before they choose NCCL.
struct GpuOfRank {
  int64_t machine = 0, gpu = 0;
};
struct NcclOfRank {
  bool usable = false;
  std::array<char, 360> words{};  // version, or why it cannot be used; null-terminated
};

// Gathers one value from every rank.
template <class T>
std::vector<T> all_of(Group& host, const T& mine) {
  ThreadPool pool(1);
  const auto arena = Arena::make({DeviceKind::cpu, 0}, MemoryClass::communication);
  HostStream stream({DeviceKind::cpu, 0}, pool, *arena, Stream::Target{DeviceKind::cpu, 1});
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  const Tensor own = Tensor::empty(*arena, Shape{kBytes}, DType::u8, "a rank's GPU"),
               all =
                   Tensor::empty(*arena, Shape{kBytes * host.size()}, DType::u8, "the ranks' GPUs");
  copy_bytes_from(own, std::as_bytes(std::span(&mine, 1)));
  host.all_gather(own, all, stream, "GPUs of the ranks").wait(stream);
  std::vector<T> ranks(static_cast<size_t>(host.size()));
  std::memcpy(ranks.data(), all.address(), ranks.size() * sizeof(T));
  return ranks;
}

}  // namespace

std::string shared_gpu(Group& host, Device device) {
  const auto ranks = all_of(host, GpuOfRank{machine_number(), nccl().place_of(device)});
  std::map<std::pair<int64_t, int64_t>, int> seen;
  for (int r = 0; r < host.size(); ++r) {
    const GpuOfRank& rank = ranks[static_cast<size_t>(r)];
    const auto [first, is_new] = seen.try_emplace({rank.machine, rank.gpu}, r);
    if (!is_new) return fmt::format("ranks {} and {} share a GPU", first->second, r);
  }
  return "";
}

std::string unusable_nccl(Group& host) {
  const CudaLibrary library = cuda_library("NCCL");
  NcclOfRank mine;
  mine.usable = library.why_not.empty();
  const std::string& words = mine.usable ? library.version : library.why_not;
  std::copy_n(words.data(), std::min(words.size(), mine.words.size() - 1), mine.words.data());
  const std::vector<NcclOfRank> ranks = all_of(host, mine);
  for (int r = 0; r < host.size(); ++r) {
    const NcclOfRank& rank = ranks[static_cast<size_t>(r)];
    if (!rank.usable) return fmt::format("rank {} has no NCCL: {}", r, rank.words.data());
    if (rank.words != ranks[0].words)
      return fmt::format(
          "rank 0 has NCCL {}, but rank {} has {}; install the same version on all machines",
          ranks[0].words.data(), r, rank.words.data());
  }
  return "";
}

std::unique_ptr<Group> gpu_group(Group& host, Device device) {
  MG_ASSERT(host.member() != nullptr && host.size() > 1);
  return std::make_unique<GpuGroup>(host, std::make_shared<GpuRank>(device, *host.member()));
}

}  // namespace megatron::comm
