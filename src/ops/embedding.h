#pragma once

#include "autograd/tape.h"
#include "ops/replaced_rows.h"

namespace megatron::ops {

// out[t,:] = table[ids[t],:].   ids i32 [T], table [V,H], out [T,H].   Gradient: rows added in
// ascending t.
// replaced: rows that are looked up in place of the table's, which is not trained then, unless the
// tape leaves out adapters.
Var embedding(Tape& tape, const Tensor& ids, const Weight& table,
              const ReplacedRows& replaced = {});

// The same for a part of a table whose row 0 is row `first`: ids of rows outside the part give
// zeros. memory: class of out.
Var embedding_part(Tape& tape, const Tensor& ids, const Weight& table, int64_t first,
                   MemoryClass memory = MemoryClass::activations,
                   const ReplacedRows& replaced = {});

}  // namespace megatron::ops
