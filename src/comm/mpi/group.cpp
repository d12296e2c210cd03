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

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous());
    CallHeader header = header_of("all_reduce", call, t, t.bytes());
    header.op = op;
    const OpenCall open(record_, *progress_, header);
    agree(header, stream);
    std::byte* const data = host_data(t);
    if (data == nullptr) return done({std::move(t)});
    const int64_t element = size_of(t.dtype()), n = t.elements();
    const int64_t chunk = round_up(kChunk / element, kSliceUnit);
    for (int64_t at = 0; at < n; at += chunk) {
      const int64_t here = std::min(chunk, n - at);
      const Numbers numbers = {data + at * element, here, t.dtype()};
      if (here * element * size() <= kSmall) {
        reduce_all(numbers, op, stream);
      } else {
        reduce_slices(numbers, op, stream);
      }
    }
    return done({std::move(t)});
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    check_all_gather(in, out, size());
    CallHeader header = header_of("all_gather", call, in, in.bytes());
    const OpenCall open(record_, *progress_, header);
    agree(header, stream);
    std::byte *const from = host_data(in), *const to = host_data(out);
    const int64_t block = in.bytes();
    if (from != nullptr) {
      copy(to + rank() * block, from, block);
      transport_->exchange([&](int) { return bytes(from, block); },
                           [&](int r) { return bytes(to + r * block, block); });
    }
    return done({std::move(in), std::move(out)});
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    const CallTime time(seconds_);
    check_reduce_scatter(in, out, size());
    CallHeader header = header_of("reduce_scatter", call, in, out.bytes());
    header.op = op;
    const OpenCall open(record_, *progress_, header);
    agree(header, stream);
    std::byte *const from = host_data(in), *const to = host_data(out);
    const int64_t element = size_of(in.dtype()), n = out.elements();
    const int64_t chunk = round_up(kChunk / element / size(), kSliceUnit);
    for (int64_t at = 0; at < n && from != nullptr; at += chunk) {
      const int64_t here = std::min(chunk, n - at);
      const auto part = [&](int r) { return from + (r * n + at) * element; };
      collect({part(rank()), here, in.dtype()},
              [&](int r) { return bytes(part(r), here * element); });
      void* const sum = to + at * element;
      reduce(sources_, {&sum, 1}, in.dtype(), op, 0, here, stream.pool());
    }
    return done({std::move(in), std::move(out)});
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    const CallTime time(seconds_);
    check_all_to_all(in, out, send_counts, receive_counts, size());
    const int64_t row = row_bytes(in);
    CallHeader header = header_of("all_to_all", call, in, row);
    header.send_counts = send_counts;
    header.receive_counts = receive_counts;
    const OpenCall open(record_, *progress_, header);
    agree(header, stream);
    std::byte *const from = host_data(in), *const to = host_data(out);
    if (from == nullptr && to == nullptr) return done({std::move(in), std::move(out)});
    const auto block = [&](std::byte* data, std::span<const int64_t> counts, int r) {
      const auto before = counts.first(static_cast<size_t>(r));
      const int64_t rows = std::accumulate(before.begin(), before.end(), int64_t{0});
      return bytes(data + rows * row, counts[static_cast<size_t>(r)] * row);
    };
    const Bytes own = block(from, send_counts, rank());
    copy(block(to, receive_counts, rank()).data(), own.data(), static_cast<int64_t>(own.size()));
    transport_->exchange([&](int r) { return block(from, send_counts, r); },
                         [&](int r) { return block(to, receive_counts, r); });
    return done({std::move(in), std::move(out)});
  }

  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous() && root >= 0 && root < size());
    CallHeader header = header_of("broadcast", call, t, t.bytes());
    header.root = root;
    const OpenCall open(record_, *progress_, header);
    agree(header, stream);
    if (std::byte* const data = host_data(t); data != nullptr)
      transport_->broadcast(bytes(data, t.bytes()), root);
    return done({std::move(t)});
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous() && to >= 0 && to < size());
    stream.synchronize();
    transport_->send(t, to, call, record_.sent(*progress_, to));
    return done({std::move(t)});
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(t.is_contiguous() && from >= 0 && from < size());
    stream.synchronize();
    CallHeader header = header_of("recv", call, t, t.bytes());
    const OpenCall open(record_, *progress_, header, from);
    transport_->receive(t, from, header);
    return done({std::move(t)});
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

  static CallHeader header_of(std::string_view operation, std::string_view call,
                              const Tensor& tensor, int64_t bytes) {
    CallHeader header = {operation, std::string(call), tensor.dtype(), bytes};
    header.has_data = tensor.device().has_data();
    return header;
  }

  void agree(const CallHeader& header, Stream& stream) {
    stream.synchronize();
    transport_->agree(header);
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

  void reduce_all(Numbers t, Reduce op, Stream& stream) {
    collect(t, [&](int) { return bytes(t.data, t.count * size_of(t.type)); });
    void* const sum = t.data;
    reduce(sources_, {&sum, 1}, t.type, op, 0, t.count, stream.pool());
  }

  // Rank r reduces slice r and sends it to the others.
  void reduce_slices(Numbers t, Reduce op, Stream& stream) {
    const int64_t share = round_up(ceil_div(t.count, size()), kSliceUnit);
    const auto slice = [&](int r) {
      const int64_t begin = std::min(t.count, r * share), end = std::min(t.count, begin + share);
      return bytes(t.at(begin), (end - begin) * size_of(t.type));
    };
    const Bytes mine = slice(rank());
    const int64_t count = static_cast<int64_t>(mine.size()) / size_of(t.type);
    collect({mine.data(), count, t.type}, slice);
    void* const sum = mine.data();
    reduce(sources_, {&sum, 1}, t.type, op, 0, count, stream.pool());
    transport_->exchange([&](int) { return mine; }, slice);
  }

  static Bytes bytes(std::byte* data, int64_t n) { return {data, static_cast<size_t>(n)}; }

  static void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  static Work done(std::vector<Tensor> keep) { return {Event(), std::move(keep)}; }

  std::unique_ptr<Transport> transport_;
  RankRecord& record_;
  std::shared_ptr<GroupRecord> progress_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> sources_;
};

}  // namespace

std::unique_ptr<Group> mpi_world(std::shared_ptr<Session> session, int64_t largest_message) {
  std::vector<int> members(static_cast<size_t>(session->size()));
  std::iota(members.begin(), members.end(), 0);
  const int rank = session->rank();
  const MPI_Comm world = session->world();
  return std::make_unique<MpiGroup>(
      std::make_unique<Transport>(std::move(session), world, std::move(members), rank,
                                  largest_message),
      kWorldId, "world");
}

}  // namespace megatron::comm
