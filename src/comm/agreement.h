// Checks that the ranks of a group make the same call, by exchanging one number per rank.
#pragma once

#include <string>
#include <vector>

#include "comm/call_header.h"

namespace megatron::comm {

// Numbers of ranks 0 ... size-1 whose sum (mod 2^64) is 0 if all headers are the same call and
// every rank expects the rows that are sent to it; otherwise the sum is almost certainly not 0:
//   digest(header_r) (w(r) - w(r+1 mod size)) + sum_to sent(r, to) v(r, to)
//                                             - sum_from expected(from, r) v(from, r)
// with fixed random weights w and v. The first term telescopes if the digests are equal.
uint64_t share_of_agreement(const CallHeader& header, int rank, int size);

// Serializes a header to bytes, and back. The counts of the unpacked header are stored in `counts`.
std::string packed(const CallHeader& header);
CallHeader unpacked(std::string_view bytes, std::vector<int64_t>& counts);

}  // namespace megatron::comm
