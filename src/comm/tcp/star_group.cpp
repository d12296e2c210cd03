#include "comm/tcp/star_group.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/call_time.h"
#include "comm/member.h"
#include "comm/tcp/star_frames.h"

namespace megatron::comm {
namespace {

using star::Call;
using star::Kind;
using Operation = Call::Operation;

constexpr double kConnectSeconds = 30;  // rank 0 is already running
constexpr Device kHost{DeviceKind::cpu, 0};

std::string_view text_of(const Tensor& t) {
  return {static_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes())};
}

// Header that a split sends to a rank: numbers, in this order, followed by the members.
struct PartHead {
  int64_t part = 0, id = 0, place = 0, members = 0;
};

class StarGroup final : public Group, public Member {
 public:
  StarGroup(std::shared_ptr<Home> home, int64_t part, uint64_t id, std::string_view name, int place,
            std::vector<int> members)
      : home_(std::move(home)),
        line_(home_->connect(part, kConnectSeconds)),
        place_(place),
        size_(static_cast<int>(members.size())),
        progress_(home_->record().add_group(id, name, std::move(members))) {}

  int rank() const override { return place_; }
  int size() const override { return size_; }

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    MG_ASSERT(t.is_contiguous());
    Call c = call_of(Operation::all_reduce, call, t, t);
    c.op = op;
    return moved("all_reduce", c, t, t, stream);
  }
  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    check_all_gather(in, out, size());
    return moved("all_gather", call_of(Operation::all_gather, call, in, out), in, out, stream);
  }
  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    check_reduce_scatter(in, out, size());
    Call c = call_of(Operation::reduce_scatter, call, in, out);
    c.op = op;
    return moved("reduce_scatter", c, in, out, stream);
  }
  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    check_all_to_all(in, out, send_counts, receive_counts, size());
    Call c = call_of(Operation::all_to_all, call, in, out);
    c.row = std::max<int64_t>(1, row_bytes(in) / size_of(in.dtype()));
    c.send_counts.assign(send_counts.begin(), send_counts.end());
    c.receive_counts.assign(receive_counts.begin(), receive_counts.end());
    return moved("all_to_all", c, in, out, stream);
  }
  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    MG_ASSERT(t.is_contiguous() && root >= 0 && root < size());
    Call c = call_of(Operation::broadcast, call, t, t);
    c.peer = root;
    return moved("broadcast", c, t, t, stream);
  }
  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    MG_ASSERT(t.is_contiguous() && to >= 0 && to < size());
    Call c = call_of(Operation::send, call, t, {});
    c.peer = to;
    home_->record().sent(*progress_, to);
    return moved("send", c, t, {}, stream);
  }
  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    MG_ASSERT(t.is_contiguous() && from >= 0 && from < size());
    Call c = call_of(Operation::recv, call, {}, t);
    c.type = t.dtype();
    c.peer = from;
    return moved("recv", c, {}, t, stream);
  }

  void barrier(std::string_view call) override {
    const CallTime time(seconds_);
    Call c;
    c.name = call;
    make("barrier", c, "");
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const CallTime time(seconds_);
    Call c;
    c.operation = Operation::split;
    c.name = "split";
    c.color = color;
    c.key = key;
    c.members = members;
    const std::string reply = make("split", c, "");
    PartHead head;
    MG_CHECK(reply.size() >= sizeof head, "rank 0 sent bytes that are not a valid reply");
    std::memcpy(&head, reply.data(), sizeof head);
    if (head.part == 0) return single();
    std::vector<int> ranks(static_cast<size_t>(head.members));
    MG_CHECK(reply.size() == sizeof head + ranks.size() * sizeof(int),
             "rank 0 sent bytes that are not a valid reply");
    std::memcpy(ranks.data(), reply.data() + sizeof head, ranks.size() * sizeof(int));
    return star_group(home_, head.part, static_cast<uint64_t>(head.id), progress_->name,
                      static_cast<int>(head.place), std::move(ranks));
  }

  void set_name(std::string_view name) override {
    home_->record().set_name(*progress_, name);
    Call c;
    c.operation = Operation::name;
    c.name = name;
    exchange(c, "");
  }
  void give_up() override {
    home_->fail(fmt::format("rank {} failed", home_->rank()));
    line_.shut();
  }
  Doing* doing() override { return &home_->record().doing(); }
  Member* member() override { return this; }

  RankRecord& record() override { return home_->record(); }
  const std::shared_ptr<GroupRecord>& progress() override { return progress_; }
  std::string failure() const override { return home_->failure(); }

 private:
  static Call call_of(Operation operation, std::string_view name, const Tensor& in,
                      const Tensor& out) {
    Call c;
    c.operation = operation;
    c.name = name;
    if (in.defined()) c.type = in.dtype();
    if (out.defined()) c.out_bytes = out.bytes();
    return c;
  }

  Work moved(std::string_view operation, const Call& c, Tensor in, Tensor out, Stream& stream) {
    const CallTime time(seconds_);
    stream.synchronize();
    const bool has_data = (in.defined() ? in : out).device().has_data();
    MG_ASSERT(has_data);
    const std::string reply = make(operation, c, in.defined() ? text_of(in) : "");
    if (out.defined() && out.bytes() > 0) std::memcpy(out.raw(), reply.data(), reply.size());
    std::vector<Tensor> keep;
    for (Tensor& t : {std::ref(in), std::ref(out)})
      if (t.defined()) keep.push_back(std::move(t));
    return {Event(), std::move(keep)};
  }

  std::string make(std::string_view operation, const Call& c, std::string_view data) {
    CallHeader header = {operation, c.name, c.type, c.out_bytes};
    header.op = c.op;
    if (c.operation == Operation::send) return exchange(c, data);
    const OpenCall open(home_->record(), *progress_, header,
                        c.operation == Operation::recv ? c.peer : -1);
    return exchange(c, data);
  }

  std::string exchange(Call c, std::string_view data) {
    c.doing = home_->record().doing().state();
    if (const std::string why = home_->failure(); !why.empty())
      fail("'{}' was aborted: {}", c.name, why);
    line_.send(number(Kind::call), star::packed(c, data));
    auto frame = line_.receive(star::kMaxCall);
    if (!frame) {
      const std::string why = home_->failure();
      fail("'{}' was aborted: {}", c.name, why.empty() ? "rank 0 has exited" : why);
    }
    MG_CHECK(frame->kind != number(Kind::error), "{}", frame->bytes);
    const bool sized =
        c.operation == Operation::split || static_cast<int64_t>(frame->bytes.size()) == c.out_bytes;
    MG_CHECK(frame->kind == number(Kind::reply) && sized,
             "rank 0 sent bytes that are not a "
             "valid reply");
    return std::move(frame->bytes);
  }

  const std::shared_ptr<Home> home_;
  Line line_;
  const int place_, size_;
  const std::shared_ptr<GroupRecord> progress_;
};

// --- At rank 0.

class Server {
 public:
  Server(std::unique_ptr<Group> group, const PartMaker& keep)
      : group_(std::move(group)), keep_(keep) {}

  std::string make(const Call& c) {
    if (Doing* doing = group_->doing()) tell(*doing, c.doing);
    const int64_t element = size_of(c.type);
    const int64_t n = static_cast<int64_t>(c.data.size()) / element, m = c.out_bytes / element;
    const bool in_place = c.operation == Operation::all_reduce ||
                          c.operation == Operation::broadcast || c.operation == Operation::send;
    check(c, n, m);
    const Tensor in =
        empty(c.operation == Operation::all_to_all ? Shape{n / c.row, c.row} : Shape{n}, c.type);
    const Tensor out =
        in_place ? in
                 : empty(c.operation == Operation::all_to_all ? Shape{m / c.row, c.row} : Shape{m},
                         c.type);
    if (n > 0) std::memcpy(in.raw(), c.data.data(), c.data.size());
    switch (c.operation) {
      case Operation::all_reduce: group_->all_reduce(in, c.op, stream_, c.name); break;
      case Operation::all_gather: group_->all_gather(in, out, stream_, c.name); break;
      case Operation::reduce_scatter: group_->reduce_scatter(in, out, c.op, stream_, c.name); break;
      case Operation::all_to_all:
        group_->all_to_all(in, out, c.send_counts, c.receive_counts, stream_, c.name);
        break;
      case Operation::broadcast: group_->broadcast(in, c.peer, stream_, c.name); break;
      case Operation::send: group_->send(in, c.peer, stream_, c.name); return "";
      case Operation::recv: group_->recv(out, c.peer, stream_, c.name); break;
      case Operation::barrier: group_->barrier(c.name); return "";
      case Operation::split: return split(c);
      case Operation::name: group_->set_name(c.name); return "";
    }
    return std::string(text_of(out));
  }

 private:
  Tensor empty(const Shape& shape, DType type) const {
    return Tensor::empty(*arena_, shape, type, "call of another process");
  }

  static void tell(Doing& doing, const Doing::State& state) {
    if (state.step >= 0) doing.step(state.step);
    if (!state.phase.empty() || state.may_be_long) doing.phase(state.phase, state.may_be_long);
    if (!state.layer.empty()) doing.layer(state.layer);
    if (state.micro_batch >= 0) doing.micro_batch(state.micro_batch);
  }

  // Rejects calls that a correct process cannot send; the group detects sizes that differ between
  // ranks.
  void check(const Call& c, int64_t n, int64_t m) const {
    const bool peer = c.peer >= 0 && c.peer < group_->size();
    const auto size = static_cast<size_t>(group_->size());
    bool right = peer;
    if (c.operation == Operation::all_gather) right = m == n * group_->size();
    if (c.operation == Operation::reduce_scatter) right = n == m * group_->size();
    const auto within = [](const std::vector<int64_t>& counts, int64_t most) {
      return std::ranges::all_of(counts, [most](int64_t k) { return k >= 0 && k <= most; });
    };
    if (c.operation == Operation::all_to_all)
      right = c.send_counts.size() == size && c.receive_counts.size() == size && n % c.row == 0 &&
              m % c.row == 0 && within(c.send_counts, n / c.row) &&
              within(c.receive_counts, m / c.row);
    MG_CHECK(right, "a process of this run sent bytes that are not a valid call");
  }

  std::string split(const Call& c) {
    auto group = group_->split(c.color, c.key, c.members);
    PartHead head;
    std::vector<int> members;
    if (group->size() > 1) {
      const GroupRecord& progress = *group->member()->progress();
      members = progress.members;
      head = {0, static_cast<int64_t>(progress.id), group->rank(),
              static_cast<int64_t>(members.size())};
      head.part = keep_(std::move(group));
    }
    std::string reply(reinterpret_cast<const char*>(&head), sizeof head);
    reply.append(reinterpret_cast<const char*>(members.data()), members.size() * sizeof(int));
    return reply;
  }

  const std::unique_ptr<Group> group_;
  const PartMaker& keep_;
  ThreadPool pool_{1};
  const std::shared_ptr<Arena> arena_ = Arena::make(kHost, MemoryClass::communication);
  HostStream stream_{kHost, pool_, *arena_, Stream::Target{DeviceKind::cpu, 1}};
};

}  // namespace

Line Home::connect(int64_t part, double seconds) const {
  Line line = connect_to(place_, seconds);
  const star::Hello hello = star::hello_of(rank_, size_, part, place_.run);
  line.send(number(Kind::hello), {reinterpret_cast<const char*>(&hello), sizeof hello});
  return line;
}

void Home::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_.empty()) reason_ = reason;
}

std::string Home::failure() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::unique_ptr<Group> star_group(std::shared_ptr<Home> home, int64_t part, uint64_t id,
                                  std::string_view name, int place, std::vector<int> members) {
  return std::make_unique<StarGroup>(std::move(home), part, id, name, place, std::move(members));
}

void serve_calls(Line& line, std::unique_ptr<Group> group, const PartMaker& keep) {
  Server server(std::move(group), keep);
  while (const auto frame = line.receive(star::kMaxCall)) {
    if (frame->kind != number(Kind::call)) return;
    const Call call = star::unpacked(frame->bytes);
    std::string reply;
    try {
      reply = server.make(call);
    } catch (const std::exception& error) {
      // Caused by the caller's bytes, or by this host's memory.
      line.send(number(Kind::error), error.what());
      continue;
    }
    line.send(number(Kind::reply), reply);
  }
}

}  // namespace megatron::comm
