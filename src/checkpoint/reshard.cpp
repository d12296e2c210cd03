#include "checkpoint/reshard.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <tuple>

#include "base/error.h"
#include "checkpoint/agreement.h"
#include "checkpoint/exchange.h"
#include "checkpoint/name_list.h"
#include "checkpoint/region.h"
#include "checkpoint/tensor_copy.h"

namespace megatron::checkpoint {
namespace {

constexpr int64_t kTask = int64_t{1} << 20;  // bytes that a thread copies at a time
constexpr size_t kNumbersOfClaim = 5;

// A piece that a rank holds, as reported to the tensor's writer.
struct Claim {
  size_t tensor = 0;
  Region region;
  int rank = 0;
  int64_t index = 0;  // among everything that the rank reported
};

// A piece in flight. At its sender: its source; at its writer: its destination.
struct Transfer {
  size_t tensor = 0;
  const Piece* piece = nullptr;
  Region region;
  int64_t elements = 0;
};

// Elements [first, first + n) of a transfer, at offset `at` in a round's buffer.
struct Task {
  const Transfer* transfer = nullptr;
  int64_t first = 0, n = 0, at = 0;
};

// All transfers from one rank to another, in order. Both ends split them into the same rounds.
class Lane {
 public:
  void add(Transfer transfer, int64_t element_bytes) {
    bytes_ += transfer.elements * element_bytes;
    transfers_.push_back({transfer, element_bytes});
  }
  bool done() const { return next_ == transfers_.size(); }
  int64_t bytes() const { return bytes_; }  // of the whole tensor

  // Takes at most `limit` >= 8 bytes, placed from `at` on. Returns their number.
  int64_t take(int64_t limit, int64_t at, std::vector<Task>* tasks) {
    const int64_t begin = at;
    for (; !done(); ++next_, first_ = 0) {
      const auto& [transfer, size] = transfers_[next_];
      while (first_ < transfer.elements) {
        const int64_t room = std::min(limit - (at - begin), kTask) / size;
        const int64_t n = std::min(room, transfer.elements - first_);
        if (n == 0) return at - begin;
        if (tasks != nullptr) tasks->push_back({&transfer, first_, n, at});
        first_ += n;
        at += n * size;
      }
    }
    return at - begin;
  }
  int64_t rounds(int64_t limit) const {
    Lane rest = *this;
    int64_t rounds = 0;
    for (; !rest.done(); ++rounds) rest.take(limit, 0, nullptr);
    return rounds;
  }

 private:
  std::vector<std::pair<Transfer, int64_t>> transfers_;
  size_t next_ = 0;
  int64_t first_ = 0, bytes_ = 0;
};

// Copies elements [first, first + n) of a region from contiguous memory.
void unpack(const Region& region, int64_t first, int64_t n, const std::byte* from, std::byte* to,
            int64_t size) {
  for (int64_t done = 0; done < n;) {
    const int64_t row = (first + done) / region.run, column = (first + done) % region.run;
    const int64_t length = std::min(region.run - column, n - done);
    std::memcpy(to + (region.begin + row * region.stride + column) * size, from + done * size,
                static_cast<size_t>(length * size));
    done += length;
  }
}

class Resharding {
 public:
  Resharding(std::span<PlannedTensor* const> tensors, comm::Group& ranks, Stream& stream,
             int64_t round_bytes, int64_t least_of_rank)
      : tensors_(tensors),
        ranks_(ranks),
        stream_(stream),
        limit_(std::max(round_bytes / ranks.size(), least_of_rank)),
        offers_(static_cast<size_t>(ranks.size())),
        asked_(static_cast<size_t>(ranks.size())),
        requests_(static_cast<size_t>(ranks.size())),
        incoming_(static_cast<size_t>(ranks.size())),
        outgoing_(static_cast<size_t>(ranks.size())) {}

  std::vector<Bytes> run();

 private:
  struct Distinct {  // a region that one or more ranks hold
    Region region;
    std::span<const Claim> holders;
    const Claim* own = nullptr;  // this rank's
  };

  std::vector<Claim> exchange_claims();
  void choose(const std::vector<Claim>& claims);
  void choose_sources(size_t tensor, std::span<const Claim> claims);
  void choose_source(size_t tensor, const Distinct& distinct);
  void receive_requests();
  int64_t prepare();
  Tensor buffer(std::span<const Lane> lanes, std::string_view label) const;
  void move(int64_t rounds);
  void one_round();
  Numbers take(std::vector<Lane>& lanes, std::vector<Task>& tasks) const;

  int64_t element_bytes(size_t tensor) const { return size_of(tensors_[tensor]->dtype); }

  std::span<PlannedTensor* const> tensors_;
  comm::Group& ranks_;
  Stream& stream_;
  int64_t limit_;                              // bytes from one rank to another per round
  std::vector<std::vector<Transfer>> offers_;  // to each writer, in the writer's order
  std::vector<int64_t> asked_;                 // bytes that this writer requests from each rank
  std::vector<Numbers> requests_;              // to each rank: indices of its offers
  std::vector<Lane> incoming_, outgoing_;      // per other rank
  std::vector<Transfer> own_;                  // held here, for tensors that are assembled here
  std::vector<size_t> assembled_;              // indices of tensors
  std::vector<std::string> problems_;
  bool overlap_ = false;  // whether ranks with different cuts hold some element twice
  std::vector<Bytes> result_;
  Tensor in_, out_;
};

// Sends each writer this rank's pieces of its tensors, and receives what the others send.
std::vector<Claim> Resharding::exchange_claims() {
  std::vector<Numbers> lists(offers_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t writer = static_cast<size_t>(tensors_[i]->writer);
    for (const Piece& piece : tensors_[i]->pieces) {
      const Region region = region_of(piece.block);
      if (region.elements() == 0) continue;
      offers_[writer].push_back({i, &piece, region, region.elements()});
      lists[writer].insert(lists[writer].end(), {static_cast<int64_t>(i), region.begin,
                                                 region.count, region.stride, region.run});
    }
  }
  const std::vector<Numbers> received = exchange(ranks_, stream_, lists, "checkpoint: pieces held");
  std::vector<Claim> claims;
  for (size_t rank = 0; rank < received.size(); ++rank) {
    const Numbers& n = received[rank];
    for (size_t at = 0; at + kNumbersOfClaim <= n.size(); at += kNumbersOfClaim)
      claims.push_back({static_cast<size_t>(n[at]),
                        {n[at + 1], n[at + 2], n[at + 3], n[at + 4]},
                        static_cast<int>(rank),
                        static_cast<int64_t>(at / kNumbersOfClaim)});
  }
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
    return std::tie(a.tensor, a.region, a.rank) < std::tie(b.tensor, b.region, b.rank);
  });
  return claims;
}

void Resharding::choose(const std::vector<Claim>& claims) {
  auto at = claims.begin();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i]->writer != ranks_.rank()) continue;
    const auto begin = at;
    while (at != claims.end() && at->tensor == i) ++at;
    choose_sources(i, {begin, at});
  }
  MG_ASSERT(at == claims.end());
}

// Chooses the pieces of a tensor to receive, and their sources.
void Resharding::choose_sources(size_t tensor, std::span<const Claim> claims) {
  std::vector<Distinct> distinct;
  std::vector<HeldRegion> held;
  int64_t elements = 0;
  for (size_t begin = 0, end = 0; begin < claims.size(); begin = end) {
    while (end < claims.size() && claims[end].region == claims[begin].region) ++end;
    Distinct& d = distinct.emplace_back(claims[begin].region, claims.subspan(begin, end - begin));
    for (const Claim& claim : d.holders) {
      if (claim.rank == ranks_.rank()) d.own = &claim;
    }
    held.push_back({d.region, static_cast<int64_t>(end - begin)});
    elements += d.region.elements();
  }
  const int64_t wanted = tensors_[tensor]->shape.elements();
  const Coverage covered = coverage(held, wanted);
  if (!covered.even()) {
    problems_.push_back(
        fmt::format("tensor '{}': {}", tensors_[tensor]->name, covered.text(wanted)));
    return;
  }
  if (tensors_[tensor]->whole) return;
  assembled_.push_back(tensor);
  std::stable_partition(distinct.begin(), distinct.end(),
                        [](const Distinct& d) { return d.own != nullptr; });
  const bool overlap = elements != wanted;
  overlap_ = overlap_ || overlap;
  Intervals chosen;
  for (const Distinct& d : distinct) {
    if (!overlap || chosen.add(d.region)) choose_source(tensor, d);
  }
}

void Resharding::choose_source(size_t tensor, const Distinct& distinct) {
  const size_t me = static_cast<size_t>(ranks_.rank()), size = offers_.size();
  if (distinct.own != nullptr) {
    own_.push_back(offers_[me][static_cast<size_t>(distinct.own->index)]);
    return;
  }
  // Among ranks with equal load, prefers the one after this rank, so that writers start with
  // different ranks.
  const auto cost = [&](const Claim& claim) {
    const size_t rank = static_cast<size_t>(claim.rank);
    return std::pair(asked_[rank], (rank + size - me) % size);
  };
  const Claim& source = *std::ranges::min_element(distinct.holders, {}, cost);
  const size_t rank = static_cast<size_t>(source.rank);
  const int64_t elements = distinct.region.elements(), bytes = element_bytes(tensor);
  asked_[rank] += elements * bytes;
  requests_[rank].push_back(source.index);
  incoming_[rank].add({tensor, nullptr, distinct.region, elements}, bytes);
}

void Resharding::receive_requests() {
  const std::vector<Numbers> received =
      exchange(ranks_, stream_, requests_, "checkpoint: pieces wanted");
  for (size_t writer = 0; writer < received.size(); ++writer) {
    for (const int64_t index : received[writer]) {
      const Transfer& offer = offers_[writer].at(static_cast<size_t>(index));
      outgoing_[writer].add(offer, element_bytes(offer.tensor));
    }
  }
}

Tensor Resharding::buffer(std::span<const Lane> lanes, std::string_view label) const {
  int64_t bytes = 0;
  for (const Lane& lane : lanes) bytes += std::min(lane.bytes(), limit_);
  const Device device = stream_.device();
  const auto arena = Arena::make(device.has_data() ? Device{DeviceKind::cpu, 0} : device,
                                 MemoryClass::communication);
  return Tensor::empty(*arena, Shape{bytes}, DType::u8, label);
}

// Allocates memory for all tensors and copies the pieces held here. Returns the number of rounds of
// this rank.
int64_t Resharding::prepare() {
  for (const size_t i : assembled_)
    result_[i] =
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(tensors_[i]->bytes()));
  in_ = buffer(outgoing_, "pieces sent");
  out_ = buffer(incoming_, "pieces received");
  stream_.synchronize();
  for (const Transfer& t : own_) {
    const PlannedTensor& tensor = *tensors_[t.tensor];
    write_block(t.piece->block, t.piece->value,
                {result_[t.tensor].get(), static_cast<size_t>(tensor.bytes())}, tensor.dtype);
  }
  int64_t rounds = 0;
  for (const Lane& lane : incoming_) rounds = std::max(rounds, lane.rounds(limit_));
  return rounds;
}

Numbers Resharding::take(std::vector<Lane>& lanes, std::vector<Task>& tasks) const {
  Numbers counts;
  int64_t at = 0;
  for (Lane& lane : lanes) {
    counts.push_back(lane.take(limit_, at, &tasks));
    at += counts.back();
  }
  return counts;
}

void Resharding::one_round() {
  std::vector<Task> sent, received;
  const Numbers send_counts = take(outgoing_, sent), receive_counts = take(incoming_, received);
  const auto total = [](const Numbers& counts) {
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    return sum;
  };
  const Tensor in = in_.slice(0, 0, total(send_counts));
  const Tensor out = out_.slice(0, 0, total(receive_counts));
  stream_.pool().parallel_for(static_cast<int64_t>(sent.size()), [&](int64_t block, int) {
    const Task& task = sent[static_cast<size_t>(block)];
    const Piece& piece = *task.transfer->piece;
    pack_block(piece.block, piece.value, task.first, task.n,
               static_cast<std::byte*>(in.raw()) + task.at, tensors_[task.transfer->tensor]->dtype);
  });
  ranks_.all_to_all(in, out, send_counts, receive_counts, stream_, "checkpoint: pieces")
      .wait(stream_);
  stream_.synchronize();
  const auto put = [&](const Task& task) {
    const Transfer& t = *task.transfer;
    unpack(t.region, task.first, task.n, static_cast<const std::byte*>(out.raw()) + task.at,
           result_[t.tensor].get(), element_bytes(t.tensor));
  };
  if (overlap_) {  // the same bytes may arrive twice, so a single thread writes them
    std::ranges::for_each(received, put);
    return;
  }
  stream_.pool().parallel_for(static_cast<int64_t>(received.size()), [&](int64_t block, int) {
    put(received[static_cast<size_t>(block)]);
  });
}

std::vector<Bytes> Resharding::run() {
  result_.resize(tensors_.size());
  const std::vector<Claim> claims = exchange_claims();
  choose(claims);
  receive_requests();
  std::string error;
  int64_t rounds = 0;
  try {
    MG_CHECK(problems_.empty(), "cannot assemble the tensors from the ranks: {}",
             counted(problems_));
    rounds = prepare();
  } catch (const std::bad_alloc&) {
    error =
        "not enough memory to assemble this rank's share of the sharded tensors for writing; use "
        "more ranks";
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  agree(ranks_, stream_, error, 0, "checkpoint: pieces found");
  const Numbers all = gather(ranks_, stream_, {&rounds, 1}, "checkpoint: rounds");
  for (int64_t left = std::ranges::max(all); left > 0; --left) one_round();
  return std::move(result_);
}

}  // namespace

std::vector<Bytes> reshard(std::span<PlannedTensor* const> tensors, comm::Group& ranks,
                           Stream& stream, int64_t round_bytes, int64_t least_of_rank) {
  MG_ASSERT(least_of_rank >= 8);
  return Resharding(tensors, ranks, stream, round_bytes, least_of_rank).run();
}

}  // namespace megatron::checkpoint
