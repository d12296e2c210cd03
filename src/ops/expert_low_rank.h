// Low-rank additions to the matrices of experts (ops/low_rank.h, ops/expert_rows.h).
#pragma once

#include <vector>

#include "autograd/tape.h"

namespace megatron::ops {

// What is added to matrices w [G,out,in]: scale * b[g] a[g], for rows of w[g].
struct ExpertLowRank {
  struct Part {
    Weight a, b;      // [G,r,in], [G,n,r]
    int64_t row = 0;  // rows [row, row + n) of each w[g]
    double scale = 1;
  };
  std::vector<Part> parts;  // of disjoint rows
};

// y[r,row:row+n] + scale (x[r,:] a[g]^T) b[g]^T for the group g that row r of x [R,in] belongs to,
// each product and sum rounded to the type of y [R,out]; y itself without parts. offsets and weight
// gradients as in grouped_linear().
Var add_low_rank(Tape& tape, const ExpertLowRank& adapter, const Var& x, const Var& y,
                 const Tensor& offsets);

}  // namespace megatron::ops
