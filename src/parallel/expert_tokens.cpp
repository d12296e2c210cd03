// n ranks, T tokens of each, N values per token
#include "parallel/expert_tokens.h"

#include <fmt/core.h>

#include "base/error.h"
#include "parallel/collectives.h"

namespace megatron::parallel {
namespace detail {

// A call and its context. Forward and backward each make one, one after the other.
struct Transit {
  ExpertRanks ranks;
  std::shared_ptr<const TokenRoutes> routes;
  std::string_view name;
  bool back = false;  // true if it belongs to send_back()
  comm::Work work;
  Tensor arriving;
};

}  // namespace detail

namespace {

using detail::Transit;
using Shared = std::shared_ptr<Transit>;

comm::Group& group_of(const ExpertRanks& ranks) {
  return ranks.async != nullptr ? *ranks.async : *ranks.group;
}

Tensor buffer(Tape& tape, int64_t rows, const Tensor& like, std::string_view label) {
  return tape.empty({rows, like.size(1)}, like.dtype(), label);
}

// The first `rows` of a buffer that is large enough for any choices, so that its address does not
// depend on them and the memory that a plan finds is enough.
Tensor traveling(Tape& tape, int64_t rows, int64_t most, const Tensor& like,
                 std::string_view label) {
  return buffer(tape, most, like, label).slice(0, 0, rows);
}

Tensor taken(Tape& tape, const Tensor& x, const Tensor& index, int64_t share, int64_t most,
             std::string_view label) {
  const Tensor out = traveling(tape, index.size(0), most, x, label);
  tape.kernels().take_rows({.x = x, .index = index, .share = share, .out = out}, tape.stream());
  return out;
}

void begun(Tape& tape, Transit& t, comm::Work work, Tensor arriving) {
  t.work = std::move(work);
  t.arriving = std::move(arriving);
  if (t.ranks.async == nullptr) std::exchange(t.work, {}).wait(tape.stream());
}

// Begins to send rows of this rank's tokens to all ranks.
void begin_spread(Tape& tape, Transit& t, const Tensor& x, std::string_view call) {
  comm::Group& group = group_of(t.ranks);
  if (t.routes == nullptr) {
    Tensor all = buffer(tape, group.size() * x.size(0), x, call);
    return begun(tape, t, group.all_gather(contiguous(tape, x, call), all, tape.stream(), call),
                 all);
  }
  const TokenRoutes& r = *t.routes;
  const int64_t most = r.most();
  const Tensor rows = taken(tape, contiguous(tape, x, call), r.sent, group.size(), most, call),
               received = traveling(tape, r.received.size(0), most, x, call);
  begun(tape, t,
        group.all_to_all(rows, received, r.send_counts, r.receive_counts, tape.stream(), call),
        received);
}

// Begins to collect all ranks' rows for this rank's tokens, to be summed.
void begin_collect(Tape& tape, Transit& t, const Tensor& partial, std::string_view call) {
  comm::Group& group = group_of(t.ranks);
  if (t.routes == nullptr) {
    MG_ASSERT(partial.size(0) % group.size() == 0);
    Tensor own = buffer(tape, partial.size(0) / group.size(), partial, call);
    return begun(tape, t,
                 group.reduce_scatter(contiguous(tape, partial, call), own, comm::Reduce::sum,
                                      tape.stream(), call),
                 own);
  }
  const TokenRoutes& r = *t.routes;
  const int64_t most = r.most();
  const Tensor rows = taken(tape, contiguous(tape, partial, call), r.received, 1, most, call),
               back = traveling(tape, r.sent.size(0), most, partial, call);
  begun(tape, t, group.all_to_all(rows, back, r.receive_counts, r.send_counts, tape.stream(), call),
        back);
}

Tensor end_call(Tape& tape, Transit& t, bool spread) {
  std::exchange(t.work, {}).wait(tape.stream());
  const Tensor arrived = std::exchange(t.arriving, {});
  if (t.routes == nullptr) return arrived;
  if (spread) return taken(tape, arrived, t.routes->received_rows, 1, t.routes->most(), t.name);
  Tensor sum = buffer(tape, t.routes->sent_rows.size(0), arrived, t.name);
  tape.kernels().sum_rows({.x = arrived, .index = t.routes->sent_rows, .out = sum}, tape.stream());
  return sum;
}

// Backward of InTransit::end(): begins the call of the gradient.
void end_dgrad(Backward& backward) {
  Transit& t = *backward.attributes<Shared>();
  const std::string call = fmt::format("{}, gradient", t.name);
  const Tensor& dout = backward.gradient(0);
  if (t.back) begin_spread(backward.tape(), t, dout, call);
  else begin_collect(backward.tape(), t, dout, call);
  backward.set(0, t.arriving);
}

// Backward of InTransit::begin(): ends the call of the gradient.
void begin_dgrad(Backward& backward) {
  Transit& t = *backward.attributes<Shared>();
  Tensor gradient = end_call(backward.tape(), t, t.back);
  if (backward.needs(0)) backward.set(0, std::move(gradient));
}

// Sums the gradients of tokens that all ranks hold alike over the ranks.
void sum_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Transit& t = *backward.attributes<Shared>();
  const Tensor& dout = backward.gradient(0);
  if (t.back) return backward.set(0, dout);
  Tape& tape = backward.tape();
  const std::string call = fmt::format("{}, gradient", t.name);
  Tensor sum = tape.empty(dout.shape(), dout.dtype(), call);
  tape.kernels().copy({.x = dout, .out = sum}, tape.stream());
  sum_in_place(tape, sum, *t.ranks.group, call);
  backward.set(0, std::move(sum));
}

Var recorded(Tape& tape, const Var& x, Tensor value, const Shared& state,
             void (*dgrad)(Backward&)) {
  Node node{.name = state->name, .inputs = {x.id}, .dgrad = dgrad};
  node.attributes = state;
  return tape.record_one(std::move(node), std::move(value));
}

// Experts [first, first + size) that one of `ranks` holds.
Slice held_by(int rank, int64_t experts, const ExpertRanks& ranks) {
  return share_of(experts, ranks.group->size() / ranks.width, rank / ranks.width);
}

bool chooses(std::span<const int32_t> choices, const Slice& held) {
  for (const int32_t expert : choices)
    if (expert >= held.global_begin && expert < held.global_begin + held.size) return true;
  return false;
}

// Unfilled routes with the maximum number of rows: each of `all` tokens goes to every rank.
TokenRoutes routes_to_all(Tape& tape, int64_t all, int ranks) {
  const auto integers = [&] { return tape.empty({all}, DType::i32, "expert routes"); };
  const std::vector<int64_t> counts(static_cast<size_t>(ranks), all / ranks);
  return {.send_counts = counts,
          .receive_counts = counts,
          .sent = integers(),
          .sent_rows = integers().view({all / ranks, ranks}),
          .received = integers(),
          .received_rows = integers()};
}

void fill(Tensor& tensor, const std::vector<int32_t>& values) {
  copy_bytes_from(tensor, std::as_bytes(std::span(values)));
}

// Fills the first elements with these values.
void fill_first(Tensor& tensor, const std::vector<int32_t>& values) {
  tensor = tensor.slice(0, 0, static_cast<int64_t>(values.size()));
  fill(tensor, values);
}

}  // namespace

std::shared_ptr<const TokenRoutes> token_routes(Tape& tape, const Tensor& choices, int64_t experts,
                                                const ExpertRanks& ranks) {
  const Device device = choices.device();
  if (!ranks.gathers() || ranks.dispatcher != TokenDispatcher::alltoall) return nullptr;
  if (device.has_data() && !device.is_host()) return nullptr;
  auto routes =
      std::make_shared<TokenRoutes>(routes_to_all(tape, choices.size(0), ranks.group->size()));
  if (!device.has_data()) return routes;
  tape.stream().synchronize();
  const int n = ranks.group->size(), self = ranks.group->rank();
  const int64_t k = choices.size(1), tokens = choices.size(0) / n;
  const auto of = [all = std::span<const int32_t>(choices.span<int32_t>()), k](int64_t token) {
    return all.subspan(static_cast<size_t>(token * k), static_cast<size_t>(k));
  };
  std::vector<int32_t> sent, received;
  std::vector<int32_t> sent_rows(static_cast<size_t>(tokens * n), -1),
      received_rows(static_cast<size_t>(choices.size(0)), -1);
  const Slice own = held_by(self, experts, ranks);
  for (int rank = 0; rank < n; ++rank) {
    const Slice theirs = held_by(rank, experts, ranks);
    const size_t sent_before = sent.size(), received_before = received.size();
    for (int64_t t = 0; t < tokens; ++t) {
      if (chooses(of(self * tokens + t), theirs)) {
        sent_rows[static_cast<size_t>(t * n + rank)] = static_cast<int32_t>(sent.size());
        sent.push_back(static_cast<int32_t>(t * n + rank));
      }
      const int64_t there = rank * tokens + t;
      if (chooses(of(there), own)) {
        received_rows[static_cast<size_t>(there)] = static_cast<int32_t>(received.size());
        received.push_back(static_cast<int32_t>(there));
      }
    }
    const auto r = static_cast<size_t>(rank);
    routes->send_counts[r] = static_cast<int64_t>(sent.size() - sent_before);
    routes->receive_counts[r] = static_cast<int64_t>(received.size() - received_before);
  }
  fill_first(routes->sent, sent);
  fill(routes->sent_rows, sent_rows);
  fill_first(routes->received, received);
  fill(routes->received_rows, received_rows);
  return routes;
}

// x: tokens to send, or (back) partial results, which are overwritten by the sum if the ranks have
// the same tokens.
InTransit InTransit::begin(Tape& tape, const Var& x, const ExpertRanks& ranks,
                           const std::shared_ptr<const TokenRoutes>& routes, std::string_view name,
                           bool back) {
  InTransit sent;
  sent.var_ = x;
  if (ranks.group == nullptr) return sent;
  const auto state = std::make_shared<Transit>(Transit{
      .ranks = ranks, .routes = routes, .name = name, .back = back, .work = {}, .arriving = {}});
  if (!ranks.gathers()) {
    if (back) sum_in_place(tape, x.value, *ranks.group, name);
    sent.var_ = recorded(tape, x, x.value, state, sum_dgrad);
    return sent;
  }
  if (back) begin_collect(tape, *state, x.value, name);
  else begin_spread(tape, *state, x.value, name);
  sent.var_ = recorded(tape, x, state->arriving, state, begin_dgrad);
  sent.state_ = state;
  return sent;
}

InTransit send_to_expert_ranks(Tape& tape, const Var& x, const ExpertRanks& ranks,
                               const std::shared_ptr<const TokenRoutes>& routes,
                               std::string_view name) {
  return InTransit::begin(tape, x, ranks, routes, name, false);
}

InTransit send_back(Tape& tape, const Var& partial, const ExpertRanks& ranks,
                    const std::shared_ptr<const TokenRoutes>& routes, std::string_view name) {
  return InTransit::begin(tape, partial, ranks, routes, name, true);
}

Var InTransit::end(Tape& tape) {
  if (state_ == nullptr) return std::exchange(var_, {});
  var_.value = {};  // end_call() provides the rows that arrived
  return recorded(tape, var_, end_call(tape, *state_, !state_->back), state_, end_dgrad);
}

ChoicesInTransit send_to_expert_ranks(Tape& tape, const Tensor& x, const ExpertRanks& ranks,
                                      std::string_view name) {
  if (!ranks.gathers()) return {.work = {}, .all = x};
  comm::Group& group = group_of(ranks);
  Tensor all = buffer(tape, group.size() * x.size(0), x, name);
  comm::Work work = group.all_gather(contiguous(tape, x, name), all, tape.stream(), name);
  if (ranks.async == nullptr) std::exchange(work, {}).wait(tape.stream());
  return {.work = std::move(work), .all = all};
}

Tensor ChoicesInTransit::end(Tape& tape) const {
  work.wait(tape.stream());
  return all;
}

}  // namespace megatron::parallel
