#include "comm/threads.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/function_ref.h"
#include "comm/arguments.h"
#include "comm/call_time.h"
#include "comm/member.h"
#include "comm/rank_record.h"
#include "comm/reduce.h"
#include "comm/shared_group.h"
#include "comm/watchdog.h"

namespace megatron::comm {

namespace {

// Unit in elements. Slices of ranks begin at its multiples, so that ranks do not write the same
// cache line.
constexpr int64_t kSliceUnit = 64;

class ThreadGroup final : public Group, public Member {
 public:
  ThreadGroup(std::shared_ptr<SharedGroup> shared, int rank, std::string_view name)
      : shared_(std::move(shared)),
        rank_(rank),
        record_(shared_->world().record(rank_of_world())),
        progress_(record_.add_group(shared_->id(), name, shared_->members())) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_->size(); }

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous());
    Entry& mine = enter("all_reduce", call, t, t.bytes());
    mine.op = op;
    mine.out = host_data(t);
    meet(stream, [&] {
      pointers();
      const int64_t n = t.elements();
      const int64_t share = (n / size() / kSliceUnit + 1) * kSliceUnit;
      const int64_t begin = std::min(n, rank_ * share);
      // The last rank's slice ends at n, since size * share >= n.
      reduce(sources_, destinations_, t.dtype(), op, begin, std::min(n, begin + share),
             stream.pool());
    });
    return done({std::move(t)});
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    check_all_gather(in, out, size());
    Entry& mine = enter("all_gather", call, in, in.bytes());
    mine.in = host_data(in);
    std::byte* to = host_data(out);
    meet(stream, [&] {
      for (int r = 0; r < size(); ++r) copy(to + r * in.bytes(), shared_->entry(r).in, in.bytes());
    });
    return done({std::move(in), std::move(out)});
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    const CallTime time(seconds_);
    check_reduce_scatter(in, out, size());
    Entry& mine = enter("reduce_scatter", call, in, out.bytes());
    mine.op = op;
    mine.out = host_data(in);  // only this rank's block is read
    meet(stream, [&] {
      pointers();
      for (auto& source : sources_)
        source = static_cast<const std::byte*>(source) + rank_ * out.bytes();
      void* const to = host_data(out);
      reduce(sources_, {&to, 1}, out.dtype(), op, 0, out.elements(), stream.pool());
    });
    return done({std::move(in), std::move(out)});
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    const CallTime time(seconds_);
    check_all_to_all(in, out, send_counts, receive_counts, size());
    const int64_t row = row_bytes(in);
    Entry& mine = enter("all_to_all", call, in, row);
    mine.in = host_data(in);
    mine.send_counts = send_counts;
    mine.receive_counts = receive_counts;
    std::byte* to = host_data(out);
    meet(stream, [&] {
      for (int r = 0; r < size(); ++r) {
        const Entry& theirs = shared_->entry(r);
        int64_t before = 0;
        for (int i = 0; i < rank_; ++i) before += theirs.send_counts[static_cast<size_t>(i)];
        const int64_t bytes = receive_counts[static_cast<size_t>(r)] * row;
        copy(to, theirs.in + before * row, bytes);
        to += bytes;
      }
    });
    return done({std::move(in), std::move(out)});
  }

  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous() && root >= 0 && root < size());
    Entry& mine = enter("broadcast", call, t, t.bytes());
    mine.root = root;
    mine.in = host_data(t);
    meet(stream, [&] { copy(host_data(t), shared_->entry(root).in, t.bytes()); });
    return done({std::move(t)});
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous() && to >= 0 && to < size());
    stream.synchronize();
    shared_->send(rank_, to, t, call, record_.sent(*progress_, to));
    return done({std::move(t)});
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous() && from >= 0 && from < size());
    stream.synchronize();
    CallHeader header = {"recv", std::string(call), t.dtype(), t.bytes()};
    header.has_data = t.device().has_data();
    const OpenCall open(record_, *progress_, header, from);
    shared_->receive(from, rank_, t, header);
    return done({std::move(t)});
  }

  void barrier(std::string_view call) override {
    const CallTime time(seconds_);
    const OpenCall open(record_, *progress_, enter("barrier", call));
    meet([] {});
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const CallTime time(seconds_);
    Entry& mine = enter("split", "split");
    mine.color = color;
    mine.key = key;
    const OpenCall open(record_, *progress_, mine);
    std::vector<int> part;  // ranks of this group, in their new order
    meet([&] {
      for (int r = 0; r < size(); ++r) {
        if (shared_->entry(r).color == color) part.push_back(r);
      }
      std::stable_sort(part.begin(), part.end(), [this](int a, int b) {
        return shared_->entry(a).key < shared_->entry(b).key;
      });
      if (part[0] != rank_ || part.size() == 1) return;
      std::vector<int> of_world;
      for (const int r : part) of_world.push_back(shared_->members()[static_cast<size_t>(r)]);
      mine.part = std::make_shared<SharedGroup>(shared_->shared_world(), std::move(of_world),
                                                progress_->id_of_part(color));
      shared_->world().add(mine.part);
    });
    // A second meeting, so that nobody's next call overwrites an entry that others still read.
    std::shared_ptr<SharedGroup> shared;
    meet([&] { shared = shared_->entry(part[0]).part; });
    mine.part = nullptr;
    MG_ASSERT(static_cast<int>(part.size()) == members);
    if (part.size() == 1) return single();
    const auto place = std::find(part.begin(), part.end(), rank_) - part.begin();
    return std::make_unique<ThreadGroup>(std::move(shared), static_cast<int>(place),
                                         progress_->name);
  }

  void set_name(std::string_view name) override { record_.set_name(*progress_, name); }
  void give_up() override { shared_->world().leave(rank_of_world()); }
  Doing* doing() override { return &record_.doing(); }
  Member* member() override { return this; }

  RankRecord& record() override { return record_; }
  const std::shared_ptr<GroupRecord>& progress() override { return progress_; }
  std::string failure() const override {
    World& world = shared_->world();
    return world.failed() ? world.reason() : "";
  }

 private:
  int rank_of_world() const { return shared_->members()[static_cast<size_t>(rank_)]; }

  Entry& enter(std::string_view operation, std::string_view call) {
    Entry& mine = shared_->entry(rank_);
    std::string text = std::move(mine.call);  // the call's memory is reused
    text.assign(call);
    mine = Entry();
    mine.operation = operation;
    mine.call = std::move(text);
    return mine;
  }

  Entry& enter(std::string_view operation, std::string_view call, const Tensor& tensor,
               int64_t bytes) {
    Entry& mine = enter(operation, call);
    mine.type = tensor.dtype();
    mine.bytes = bytes;
    mine.has_data = tensor.device().has_data();
    return mine;
  }

  // Runs this rank's share once all have arrived and agree.
  void meet(FunctionRef<void()> share) {
    shared_->begin(rank_);
    const std::string wrong = shared_->disagreement();
    std::exception_ptr failure;
    try {
      if (wrong.empty() && shared_->entry(rank_).has_data) share();
    } catch (...) {
      failure = std::current_exception();
    }
    shared_->end(rank_);
    if (failure != nullptr) std::rethrow_exception(failure);
    MG_CHECK(wrong.empty(), "{}", wrong);
  }

  void meet(Stream& stream, FunctionRef<void()> share) {
    stream.synchronize();
    const OpenCall open(record_, *progress_, shared_->entry(rank_));
    meet(share);
  }

  // Collects the pointers that the ranks have put in `out`.
  void pointers() {
    sources_.clear();
    destinations_.clear();
    for (int r = 0; r < size(); ++r) {
      sources_.push_back(shared_->entry(r).out);
      destinations_.push_back(shared_->entry(r).out);
    }
  }

  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  static Work done(std::vector<Tensor> keep) { return {Event(), std::move(keep)}; }

  std::shared_ptr<SharedGroup> shared_;
  int rank_;
  RankRecord& record_;
  std::shared_ptr<GroupRecord> progress_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

// Formats "rank 3 failed", and what it was doing.
std::string failure_of(RankRecord& record, int rank) {
  const Doing::State doing = record.doing().state();
  return fmt::format("rank {} failed{}", rank, doing.known() ? " (" + describe(doing) + ")" : "");
}

void run_rank(const std::shared_ptr<SharedGroup>& shared, int rank,
              const std::function<void(Group& world)>& body) {
  World& world = shared->world();
  const auto failure = [&] { return failure_of(world.record(rank), rank); };
  try {
    ThreadGroup group(shared, rank, "world");
    body(group);
    world.end(rank);
  } catch (const Error& error) {
    // During a run the failure may be this rank's alone, so the rank is named with what it was
    // doing.
    const bool known = world.record(rank).doing().state().known();
    const std::string text = fmt::format("{}: {}", failure(), error.what());
    world.fail(rank, known ? std::make_exception_ptr(Error(text)) : std::current_exception(), text);
  } catch (const std::exception& error) {
    world.fail(rank, std::current_exception(), fmt::format("{}: {}", failure(), error.what()));
  } catch (...) {
    world.fail(rank, std::current_exception(), failure());
  }
  world.left(rank);
}

}  // namespace

std::unique_ptr<Group> thread_group(std::shared_ptr<SharedGroup> shared, int rank,
                                    std::string_view name) {
  return std::make_unique<ThreadGroup>(std::move(shared), rank, name);
}

void run_ranks(int ranks, const std::function<void(Group& world)>& body, WaitLimits limits) {
  MG_CHECK(ranks >= 1, "{} ranks were asked for; at least 1 is needed", ranks);
  if (ranks == 1) return body(*single());

  const auto world = std::make_shared<World>(ranks);
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  const auto shared = std::make_shared<SharedGroup>(world, std::move(members), kWorldId);
  world->add(shared);

  const Watchdog watchdog(*world, limits);
  std::vector<std::thread> threads;
  try {
    for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { run_rank(shared, r, body); });
  } catch (const std::system_error& error) {
    const std::string text = fmt::format(
        "cannot start thread {} of {} ranks: {}; use fewer --ranks, or raise the limit of "
        "processes (ulimit -u, pids.max of the cgroup)",
        threads.size(), ranks, error.what());
    world->fail(0, std::make_exception_ptr(Error(text)), text);
  }
  for (std::thread& thread : threads) thread.join();
  world->rethrow();
}

}  // namespace megatron::comm
