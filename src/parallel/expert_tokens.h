// Exchange of tokens among the ranks that together hold the experts of a layer, some experts each
// (expert parallelism; Lepikhin et al. 2021), and slices of each expert's matrices. Every rank
// receives the tokens that its experts may need, and the sum of all ranks' results for a token is
// returned to its rank. A call begins with a function below and ends with InTransit::end(); compute
// between the two is overlapped if the ranks have `async`. In backward the calls go in the opposite
// direction and overlap with the gradients of the same compute.
#pragma once

#include <memory>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"

namespace megatron::parallel {

// allgather: every rank receives all tokens. alltoall: on host devices a rank receives only the
// tokens that have an expert there, each once; the others are zeros. Other devices would have to
// copy the counts to the host, so they gather. The results have the same bits.
enum class TokenDispatcher { allgather, alltoall };

struct ExpertRanks {
  comm::Group* group =
      nullptr;  // borrowed; null: a single rank, for which every call is the identity
  // True if each rank has its own tokens; false if all have the same ones (tensor-parallel ranks
  // that do not divide them).
  bool own_tokens = true;
  comm::Group* async =
      nullptr;  // the same ranks, for calls that overlap with compute; null: calls block
  // True if a forward pass may pause while a call is in flight (models::ForwardInParts).
  bool stops = false;
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  int width = 1;  // consecutive ranks that share slices of the same experts
  // For plans on devices without data: this rank's expert rows relative to an even load; 0 plans
  // for the maximum.
  double planned_load = 0;

  bool gathers() const { return group != nullptr && own_tokens; }
};

// Routes of TokenDispatcher::alltoall: rows of this rank's tokens to each rank, one per token with
// an expert there, in the order of ranks and tokens; and the rows received from the others.
struct TokenRoutes {
  std::vector<int64_t> send_counts, receive_counts;  // rows to and from each rank
  Tensor sent;                                       // i32 [S]: token * n + rank of each row
  Tensor sent_rows;                                  // i32 [T,n]: its inverse, -1 if none
  Tensor received;                                   // i32 [R]: token index over all ranks [n T]
  Tensor received_rows;                              // i32 [n T]: its inverse, -1 if none

  int64_t most() const { return received_rows.size(0); }  // upper bound of S and R
};

namespace detail {
struct Transit;
}

// A call in flight.
class InTransit {
 public:
  InTransit() = default;
  // Waits and returns the received rows. Callable once.
  Var end(Tape& tape);

 private:
  friend InTransit send_to_expert_ranks(Tape&, const Var&, const ExpertRanks&,
                                        const std::shared_ptr<const TokenRoutes>&,
                                        std::string_view);
  friend InTransit send_back(Tape&, const Var&, const ExpertRanks&,
                             const std::shared_ptr<const TokenRoutes>&, std::string_view);
  static InTransit begin(Tape& tape, const Var& x, const ExpertRanks& ranks,
                         const std::shared_ptr<const TokenRoutes>& routes, std::string_view name,
                         bool back);

  Var var_;
  std::shared_ptr<detail::Transit> state_;  // null once var_ is complete
};

// Routes for all ranks' choices, i32 [n T, k] of `experts` experts, which are read on the host.
// Null: all tokens go to all ranks. For a plan on a device without data: as many rows as any
// choices could need.
std::shared_ptr<const TokenRoutes> token_routes(Tape& tape, const Tensor& choices, int64_t experts,
                                                const ExpertRanks& ranks);

// Gathers [n T, N], each rank's x [T,N] in rank order, with the same T on all; if all ranks have
// the same tokens, returns x. routes: of tokens; null: all. Backward: the sum over the ranks, of
// which each receives its rows. name: of the calls; must outlive the tape.
InTransit send_to_expert_ranks(Tape& tape, const Var& x, const ExpertRanks& ranks,
                               const std::shared_ptr<const TokenRoutes>& routes,
                               std::string_view name);
// The same for integers, always all of them, without gradient.
struct ChoicesInTransit {
  comm::Work work;
  Tensor all;
  Tensor end(Tape& tape) const;
};
ChoicesInTransit send_to_expert_ranks(Tape& tape, const Tensor& x, const ExpertRanks& ranks,
                                      std::string_view name);
// Sums partial [n T, N] over the ranks, each of which receives its rows [T,N]; if all ranks have
// the same tokens, the whole sum, in place of `partial`. Backward: the gradients of all ranks, or
// for the same tokens the gradient itself.
InTransit send_back(Tape& tape, const Var& partial, const ExpertRanks& ranks,
                    const std::shared_ptr<const TokenRoutes>& routes, std::string_view name);

}  // namespace megatron::parallel
