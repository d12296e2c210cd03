// Tokens among the ranks that hold the experts of a layer between them, some experts each (expert parallelism; Lepikhin
// et al. 2021), and slices of each expert's matrices: every rank gets the tokens that its experts may need, and the sum
// of what all ranks make of a token goes back to its own. A call begins with a function below and ends with
// InTransit::end(); compute between the two is overlapped where ranks have `async`. In backward the calls go the other
// way and overlap with the gradients of the same compute.
#pragma once

#include <memory>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"

namespace megatron::parallel {

// allgather: every rank gets all tokens. alltoall: on host devices it gets those alone of which it holds an expert,
// each once; the others are zeros. Other devices would have to copy the counts to the host, and gather. The results
// are the same, bit for bit.
enum class TokenDispatcher { allgather, alltoall };

struct ExpertRanks {
  comm::Group* group =
      nullptr;  // borrowed; null: one rank, for which every call here is the identity
  // Whether each rank has tokens of its own; else all have the same ones (tensor-parallel ranks that do not divide them).
  bool own_tokens = true;
  comm::Group* async =
      nullptr;  // the same ranks, for calls that overlap with compute; null: they are waited for
  bool stops = false;  // a forward pass may stop while a call is under way (models::ForwardInParts)
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  int width = 1;  // ranks in a row that hold slices of the same experts
  // Of plans, on devices without data: rows of this rank's experts, where they are some, over an even load; 0: all that
  // may be.
  double planned_load = 0;

  bool gathers() const { return group != nullptr && own_tokens; }
};

// What travels under TokenDispatcher::alltoall: rows of this rank's tokens to each rank, one a token of which that rank
// holds an expert, in the order of ranks and tokens; and what comes from the others.
struct TokenRoutes {
  std::vector<int64_t> send_counts, receive_counts;  // rows, of each rank
  Tensor sent;                                       // i32 [S]: token * n + rank of each row
  Tensor sent_rows;                                  // i32 [T,n]: its inverse, -1: none
  Tensor received;       // i32 [R]: token among those of all ranks [n T]
  Tensor received_rows;  // i32 [n T]: its inverse, -1: none

  int64_t most() const { return received_rows.size(0); }  // S and R at most
};

namespace detail {
struct Transit;
}

// A call under way.
class InTransit {
 public:
  InTransit() = default;
  // Waits, and gives what has arrived. Once.
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
  std::shared_ptr<detail::Transit> state_;  // null: var_ is there
};

// Of all ranks' choices, i32 [n T, k] of `experts` experts, which this reads on the host. Null: all tokens go to all
// ranks. Of a plan's, on a device without data: as many rows as any choices need.
std::shared_ptr<const TokenRoutes> token_routes(Tape& tape, const Tensor& choices, int64_t experts,
                                                const ExpertRanks& ranks);

// [n T, N] of each rank's x [T,N], in rank order, T alike on all; the same tokens: x. routes: of tokens, null: all.
// Backward: the sum over the ranks, of which each gets its rows. name: of the calls, outlives the tape.
InTransit send_to_expert_ranks(Tape& tape, const Var& x, const ExpertRanks& ranks,
                               const std::shared_ptr<const TokenRoutes>& routes,
                               std::string_view name);
// The same of integers, all of them, through which no gradient flows.
struct ChoicesInTransit {
  comm::Work work;
  Tensor all;
  Tensor end(Tape& tape) const;
};
ChoicesInTransit send_to_expert_ranks(Tape& tape, const Tensor& x, const ExpertRanks& ranks,
                                      std::string_view name);
// The sum over the ranks of partial [n T, N], of which each gets its rows [T,N]; the same tokens: all of the sum, in
// place of `partial`. Backward: the gradients of all ranks; the same tokens: the gradient itself.
InTransit send_back(Tape& tape, const Var& partial, const ExpertRanks& ranks,
                    const std::shared_ptr<const TokenRoutes>& routes, std::string_view name);

}  // namespace megatron::parallel
