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

  Work make(GroupCall c, Stream& stream) override {
    const CallTime time(seconds_);
    check_call(c, size());
    stream.synchronize();
    if (c.operation == Operation::send) {
      shared_->send(rank_, c.peer, c.in, c.name, record_.sent(*progress_, c.peer));
    } else if (c.operation == Operation::recv) {
      CallHeader header = header_of(c);
      const OpenCall open(record_, *progress_, header, c.peer);
      shared_->receive(c.peer, rank_, c.in, header);
    } else {
      Entry& mine = enter(header_of(c, std::move(shared_->entry(rank_).call)));
      mine.data = host_data(c.in);
      const OpenCall open(record_, *progress_, mine);
      meet([&] { make_share(c, stream.pool()); });
    }
    return {Event(), c.tensors()};
  }

  void barrier(std::string_view call) override {
    const CallTime time(seconds_);
    const OpenCall open(record_, *progress_, enter({"barrier", std::string(call)}));
    meet([] {});
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const CallTime time(seconds_);
    Entry& mine = enter({"split", "split"});
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

  Entry& enter(CallHeader header) {
    Entry& mine = shared_->entry(rank_);
    mine = Entry{std::move(header)};
    return mine;
  }

  // This rank's share of a collective, once the entries of all are there.
  void make_share(const GroupCall& c, ThreadPool& pool) {
    switch (c.operation) {
      case Operation::all_reduce: return reduce_slice(c, pool);
      case Operation::all_gather: return gather(c);
      case Operation::reduce_scatter: return reduce_block(c, pool);
      case Operation::all_to_all: return take_rows(c);
      default: copy(host_data(c.in), shared_->entry(c.peer).data, c.in.bytes());
    }
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

  void reduce_slice(const GroupCall& c, ThreadPool& pool) {
    find_sources(0);
    const int64_t n = c.in.elements();
    const int64_t share = (n / size() / kSliceUnit + 1) * kSliceUnit;
    const int64_t begin = std::min(n, rank_ * share);
    destinations_.clear();
    for (int r = 0; r < size(); ++r) destinations_.push_back(shared_->entry(r).data);
    // The last rank's slice ends at n, since size * share >= n.
    reduce(sources_, destinations_, c.in.dtype(), c.op, begin, std::min(n, begin + share), pool);
  }

  void reduce_block(const GroupCall& c, ThreadPool& pool) {
    find_sources(rank_ * c.out.bytes());
    void* const to = host_data(c.out);
    reduce(sources_, {&to, 1}, c.out.dtype(), c.op, 0, c.out.elements(), pool);
  }

  void gather(const GroupCall& c) {
    const int64_t bytes = c.in.bytes();
    std::byte* const to = host_data(c.out);
    for (int r = 0; r < size(); ++r) copy(to + r * bytes, shared_->entry(r).data, bytes);
  }

  void take_rows(const GroupCall& c) {
    const int64_t row = row_bytes(c.in);
    std::byte* to = host_data(c.out);
    for (int r = 0; r < size(); ++r) {
      const Entry& theirs = shared_->entry(r);
      int64_t before = 0;
      for (int i = 0; i < rank_; ++i) before += theirs.send_counts[static_cast<size_t>(i)];
      const int64_t bytes = c.receive_counts[static_cast<size_t>(r)] * row;
      copy(to, theirs.data + before * row, bytes);
      to += bytes;
    }
  }

  // The ranks' data from this byte on.
  void find_sources(int64_t offset) {
    sources_.clear();
    for (int r = 0; r < size(); ++r) sources_.push_back(shared_->entry(r).data + offset);
  }

  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

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
  MG_CHECK(ranks >= 1, "{} ranks were requested; at least 1 is needed", ranks);
  if (ranks == 1) return body(*single());

  const auto world = std::make_shared<World>(ranks);
  const auto shared = std::make_shared<SharedGroup>(world, all_ranks(ranks), kWorldId);
  world->add(shared);

  const Watchdog watchdog(*world, limits);
  std::vector<std::thread> threads;
  try {
    for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { run_rank(shared, r, body); });
  } catch (const std::system_error& error) {
    const std::string text = fmt::format(
        "cannot start thread {} of {} ranks: {}; use fewer --ranks, or raise the process limit "
        "(ulimit -u, pids.max of the cgroup)",
        threads.size(), ranks, error.what());
    world->fail(0, std::make_exception_ptr(Error(text)), text);
  }
  for (std::thread& thread : threads) thread.join();
  world->rethrow();
}

}  // namespace megatron::comm
