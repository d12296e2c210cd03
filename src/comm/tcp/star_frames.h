// Messages between the processes of comm/tcp/star.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/doing.h"
#include "comm/group.h"

namespace megatron::comm::star {

enum class Kind : uint32_t {
  hello = 1,  // to rank 0: Hello
  welcome,    // from rank 0: all ranks have connected
  refusal,    // from rank 0: why this process cannot be a rank of the run
  call,       // to rank 0: Call
  reply,      // from rank 0: the result of the call
  error,      // from rank 0: the exception of the call
  failure,    // from rank 0: why all calls fail
  bye,        // in either direction: the run is over
  abort,      // in either direction: "CODE"
  stopped,    // to rank 0, from a process that takes no part: the reason
};

inline uint32_t number(Kind kind) { return static_cast<uint32_t>(kind); }

// First message on a connection. part: 0 for news of ends, 1 for calls of the group of all ranks,
// the number of a group that a split made, or kNoPart for a process that takes no part. run:
// RendezvousAddress::run, padded with zeros.
struct Hello {
  int32_t rank = 0, size = 0;
  int64_t part = 0;
  std::array<char, 96> run{};
};
Hello hello_of(int rank, int size, int64_t part, std::string_view run);
std::string_view run_of(const Hello& hello);

constexpr int64_t kNoPart = -1, kMaxHello = 4096, kMaxCall = int64_t{1} << 36;

struct Call {
  // Operations of GroupCall, followed by those that only this protocol has.
  enum class Operation : uint32_t {
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    broadcast,
    send,
    recv,
    barrier,
    split,
    name
  };
  Operation operation = Operation::barrier;
  DType type = DType::u8;
  Reduce op = Reduce::sum;
  int32_t peer = 0;  // root, to or from
  int32_t color = 0, key = 0, members = 0;
  int64_t row = 1;        // elements per row of all_to_all
  int64_t out_bytes = 0;  // size of the reply
  std::vector<int64_t> send_counts, receive_counts;
  std::string name;
  Doing::State doing;
  std::string_view data;  // of the packed bytes
};

std::string packed(const Call& call, std::string_view data);
// Throws Error for bytes that are not a call.
Call unpacked(std::string_view bytes);

}  // namespace megatron::comm::star
