#include "comm/mpi/group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "comm/arguments.h"
#include "comm/call_time.h"
#include "comm/member.h"
#include "comm/mpi/transport.h"
#include "comm/reduce.h"

namespace megatron::comm {

namespace {

// Bytes of a tensor that a reduction moves and adds at a time, which bounds its additional memory
// and keeps it in the caches.
constexpr int64_t kChunk = int64_t{16} << 20;
// Up to this number of bytes of all ranks together, every rank receives everything and reduces it
// itself: one exchange instead of two.
constexpr int64_t kSmall = int64_t{32} << 10;
constexpr int64_t kSliceUnit = 64;  // elements; slices begin at multiples of it

class MpiGroup final : public Group, public Member {
 public:
  using Bytes = Transport::Bytes;

  MpiGroup(std::unique_ptr<Transport> transport, uint64_t id, std::string_view name)
      : transport_(std::move(transport)),
        record_(transport_->session().record()),
        progress_(record_.add_group(id, name, transport_->members())) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }

  Work make(GroupCall c, Stream& stream) override {
    const CallTime time(seconds_);
    check_call(c, size());
    if (c.operation == Operation::send) {
      stream.synchronize();
      transport_->send(c.in, c.peer, c.name, record_.sent(*progress_, c.peer));
      return {Event(), c.tensors()};
    }
    CallHeader header = header_of(c);
    const bool receives = c.operation == Operation::recv;
    const OpenCall open(record_, *progress_, header, receives ? c.peer : -1);
    stream.synchronize();
    if (receives) {
      transport_->receive(c.in, c.peer, header);
      return {Event(), c.tensors()};
    }
    transport_->agree(header);
    if (header.has_data) move(c, stream.pool());
    return {Event(), c.tensors()};
  }

  void barrier(std::string_view call) override {
    const CallTime time(seconds_);
    CallHeader header = {"barrier", std::string(call)};
    const OpenCall open(record_, *progress_, header);
    transport_->agree(header);
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const CallTime time(seconds_);
    CallHeader header = {"split", "split"};
    const OpenCall open(record_, *progress_, header);
    transport_->agree(header);
    const int mine[] = {color, key};
    const std::vector<int> all = transport_->gather(mine);
    std::vector<int> part;  // ranks of this group, in their new order
    for (int r = 0; r < size(); ++r) {
      if (all[static_cast<size_t>(2 * r)] == color) part.push_back(r);
    }
    std::stable_sort(part.begin(), part.end(), [&](int a, int b) {
      return all[static_cast<size_t>(2 * a + 1)] < all[static_cast<size_t>(2 * b + 1)];
    });
    MG_ASSERT(static_cast<int>(part.size()) == members);
    auto transport = transport_->part(part);
    if (transport == nullptr) return single();
    return std::make_unique<MpiGroup>(std::move(transport), progress_->id_of_part(color),
                                      progress_->name);
  }

  void set_name(std::string_view name) override { record_.set_name(*progress_, name); }
  void give_up() override {
    Session& session = transport_->session();
    session.give_up(fmt::format("rank {} failed", session.rank()));
  }
  Doing* doing() override { return &record_.doing(); }
  Member* member() override { return this; }

  RankRecord& record() override { return record_; }
  const std::shared_ptr<GroupRecord>& progress() override { return progress_; }
  std::string failure() const override {
    const Session& session = transport_->session();
    return session.given_up() ? session.reason() : "";
  }

 private:
  struct Numbers {
    std::byte* data;
    int64_t count;
    DType type;
    std::byte* at(int64_t element) const { return data + element * size_of(type); }
  };

  void move(const GroupCall& c, ThreadPool& pool) {
    switch (c.operation) {
      case Operation::all_reduce: return all_reduce_in_place(c, pool);
      case Operation::all_gather: return gather(c);
      case Operation::reduce_scatter: return scatter_sums(c, pool);
      case Operation::all_to_all: return exchange_rows(c);
      default: transport_->broadcast(bytes(host_data(c.in), c.in.bytes()), c.peer);
    }
  }

  void all_reduce_in_place(const GroupCall& c, ThreadPool& pool) {
    const int64_t element = size_of(c.in.dtype()), n = c.in.elements();
    const int64_t chunk = round_up(kChunk / element, kSliceUnit);
    for (int64_t at = 0; at < n; at += chunk) {
      const int64_t here = std::min(chunk, n - at);
      const Numbers numbers = {host_data(c.in) + at * element, here, c.in.dtype()};
      if (here * element * size() <= kSmall) {
        reduce_all(numbers, c.op, pool);
      } else {
        reduce_slices(numbers, c.op, pool);
      }
    }
  }

  void gather(const GroupCall& c) {
    std::byte *const from = host_data(c.in), *const to = host_data(c.out);
    const int64_t block = c.in.bytes();
    copy(to + rank() * block, from, block);
    transport_->exchange([&](int) { return bytes(from, block); },
                         [&](int r) { return bytes(to + r * block, block); });
  }

  void scatter_sums(const GroupCall& c, ThreadPool& pool) {
    std::byte *const from = host_data(c.in), *const to = host_data(c.out);
    const DType type = c.in.dtype();
    const int64_t element = size_of(type), n = c.out.elements();
    const int64_t chunk = round_up(kChunk / element / size(), kSliceUnit);
    for (int64_t at = 0; at < n; at += chunk) {
      const int64_t here = std::min(chunk, n - at);
      const auto part = [&](int r) { return from + (r * n + at) * element; };
      collect({part(rank()), here, type}, [&](int r) { return bytes(part(r), here * element); });
      void* const sum = to + at * element;
      reduce(sources_, {&sum, 1}, type, c.op, 0, here, pool);
    }
  }

  void exchange_rows(const GroupCall& c) {
    const auto block = [row = row_bytes(c.in)](const Tensor& t, std::span<const int64_t> counts,
                                               int r) {
      const auto before = counts.first(static_cast<size_t>(r));
      const int64_t rows = std::accumulate(before.begin(), before.end(), int64_t{0});
      return bytes(host_data(t) + rows * row, counts[static_cast<size_t>(r)] * row);
    };
    const Bytes own = block(c.in, c.send_counts, rank());
    copy(block(c.out, c.receive_counts, rank()).data(), own.data(),
         static_cast<int64_t>(own.size()));
    transport_->exchange([&](int r) { return block(c.in, c.send_counts, r); },
                         [&](int r) { return block(c.out, c.receive_counts, r); });
  }

  // Every rank receives out(r) of every rank r. sources_ then points to the ranks' numbers in rank
  // order: mine, and the others' in scratch_.
  void collect(Numbers mine, FunctionRef<Bytes(int rank)> out) {
    const int64_t stride = round_up(mine.count, kSliceUnit) * size_of(mine.type);
    const auto needed = static_cast<size_t>(stride * size());
    if (scratch_.size() < needed) scratch_.resize(needed);
    const int64_t length = mine.count * size_of(mine.type);
    transport_->exchange(out, [&](int r) { return bytes(scratch_.data() + r * stride, length); });
    sources_.clear();
    for (int r = 0; r < size(); ++r)
      sources_.push_back(r == rank() ? mine.data : scratch_.data() + r * stride);
  }

  void reduce_all(Numbers t, Reduce op, ThreadPool& pool) {
    collect(t, [&](int) { return bytes(t.data, t.count * size_of(t.type)); });
    void* const sum = t.data;
    reduce(sources_, {&sum, 1}, t.type, op, 0, t.count, pool);
  }

  // Rank r reduces slice r and sends it to the others.
  void reduce_slices(Numbers t, Reduce op, ThreadPool& pool) {
    const int64_t share = round_up(ceil_div(t.count, size()), kSliceUnit);
    const auto slice = [&](int r) {
      const int64_t begin = std::min(t.count, r * share), end = std::min(t.count, begin + share);
      return bytes(t.at(begin), (end - begin) * size_of(t.type));
    };
    const Bytes mine = slice(rank());
    const int64_t count = static_cast<int64_t>(mine.size()) / size_of(t.type);
    collect({mine.data(), count, t.type}, slice);
    void* const sum = mine.data();
    reduce(sources_, {&sum, 1}, t.type, op, 0, count, pool);
    transport_->exchange([&](int) { return mine; }, slice);
  }

  static Bytes bytes(std::byte* data, int64_t n) { return {data, static_cast<size_t>(n)}; }

  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  std::unique_ptr<Transport> transport_;
  RankRecord& record_;
  std::shared_ptr<GroupRecord> progress_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> sources_;
};

}  // namespace

std::unique_ptr<Group> mpi_world(std::shared_ptr<Session> session, int64_t largest_message) {
  std::vector<int> members = all_ranks(session->size());
  const int rank = session->rank();
  const MPI_Comm world = session->world();
  return std::make_unique<MpiGroup>(
      std::make_unique<Transport>(std::move(session), world, std::move(members), rank,
                                  largest_message),
      kWorldId, "world");
}

}  // namespace megatron::comm
