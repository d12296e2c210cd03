#include "comm/tcp/star_group.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/call_time.h"
#include "comm/member.h"
#include "comm/tcp/star_frames.h"

namespace megatron::comm {
namespace {

using star::Call;
using star::Kind;
using Asked = Call::Operation;
static_assert(static_cast<uint32_t>(Asked::recv) == static_cast<uint32_t>(Operation::recv));

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

  Work make(GroupCall c, Stream& stream) override {
    const CallTime time(seconds_);
    check_call(c, size());
    MG_ASSERT(c.in.device().has_data());
    stream.synchronize();
    const bool sends = c.operation == Operation::send, receives = c.operation == Operation::recv;
    if (sends) home_->record().sent(*progress_, c.peer);
    const Tensor& out = c.out.defined() ? c.out : c.in;
    const std::string reply =
        ask(name(c.operation), call_of(c, sends ? 0 : out.bytes()), receives ? "" : text_of(c.in));
    if (!sends && out.bytes() > 0) std::memcpy(out.raw(), reply.data(), reply.size());
    return {Event(), c.tensors()};
  }

  void barrier(std::string_view call) override {
    const CallTime time(seconds_);
    Call c;
    c.name = call;
    ask("barrier", c, "");
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const CallTime time(seconds_);
    Call c;
    c.operation = Asked::split;
    c.name = "split";
    c.color = color;
    c.key = key;
    c.members = members;
    const std::string reply = ask("split", c, "");
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
    c.operation = Asked::name;
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
  static Call call_of(const GroupCall& c, int64_t out_bytes) {
    Call call;
    call.operation = static_cast<Asked>(c.operation);
    call.type = c.in.dtype();
    call.op = c.op;
    call.out_bytes = out_bytes;
    if (c.peer >= 0) call.peer = c.peer;
    if (c.operation == Operation::all_to_all)
      call.row = std::max<int64_t>(1, row_bytes(c.in) / size_of(c.in.dtype()));
    call.send_counts.assign(c.send_counts.begin(), c.send_counts.end());
    call.receive_counts.assign(c.receive_counts.begin(), c.receive_counts.end());
    call.name = c.name;
    return call;
  }

  std::string ask(std::string_view operation, const Call& c, std::string_view data) {
    CallHeader header = {operation, c.name, c.type, c.out_bytes};
    header.op = c.op;
    if (c.operation == Asked::send) return exchange(c, data);
    const OpenCall open(home_->record(), *progress_, header,
                        c.operation == Asked::recv ? c.peer : -1);
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
        c.operation == Asked::split || static_cast<int64_t>(frame->bytes.size()) == c.out_bytes;
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
    switch (c.operation) {
      case Asked::barrier: group_->barrier(c.name); return "";
      case Asked::split: return split(c);
      case Asked::name: group_->set_name(c.name); return "";
      default: return make_call(c);
    }
  }

 private:
  std::string make_call(const Call& c) {
    const int64_t element = size_of(c.type);
    const int64_t n = static_cast<int64_t>(c.data.size()) / element, m = c.out_bytes / element;
    check(c, n, m);
    const auto tensor = [&](int64_t elements) {
      const bool rows = c.operation == Asked::all_to_all;
      return Tensor::empty(*arena_, rows ? Shape{elements / c.row, c.row} : Shape{elements}, c.type,
                           "call of another process");
    };
    const bool receives = c.operation == Asked::recv,
               gives_other = c.operation == Asked::all_gather ||
                             c.operation == Asked::reduce_scatter ||
                             c.operation == Asked::all_to_all;
    GroupCall call{.operation = static_cast<Operation>(c.operation),
                   .name = c.name,
                   .in = tensor(receives ? m : n),
                   .op = c.op,
                   .peer = c.peer,
                   .send_counts = c.send_counts,
                   .receive_counts = c.receive_counts};
    if (gives_other) call.out = tensor(m);
    if (!receives && n > 0) std::memcpy(call.in.raw(), c.data.data(), c.data.size());
    group_->make(call, stream_);
    if (c.operation == Asked::send) return "";
    return std::string(text_of(gives_other ? call.out : call.in));
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
    if (c.operation == Asked::all_gather) right = m == n * group_->size();
    if (c.operation == Asked::reduce_scatter) right = n == m * group_->size();
    const auto within = [](const std::vector<int64_t>& counts, int64_t most) {
      return std::ranges::all_of(counts, [most](int64_t k) { return k >= 0 && k <= most; });
    };
    if (c.operation == Asked::all_to_all)
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
