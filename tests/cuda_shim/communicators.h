// NCCL's communicators on the CPU: shared by their calls (nccl.cpp) and their ends
// (communicators.cpp). A rank gives data to others in files of a folder in shared memory, so that
// ranks may be threads or processes.
#pragma once

#include <nccl.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "machine.h"

struct ncclComm {
  std::string folder;
  int rank = 0, size = 1, device = 0;
  cudaStream_t stream = nullptr;  // stream of all calls
  bool blocking = true, aborted = false, finalized = false;
  ncclResult_t error = ncclSuccess;
  std::string words;  // describes an error of its stream, on whichever thread
  // For a non-blocking communicator: the last request proceeds once ncclCommGetAsyncError has been
  // called often enough, and is in progress until this returns something else.
  std::function<ncclResult_t()> proceed;
  int64_t looks = 0;
  int64_t collectives = 0, queued = 0;
  int64_t running = 0;                    // queued calls in which the device waits for other ranks
  int64_t recorded = 0, graphs = 0;       // collectives recorded so far; calls in live graphs
  std::map<int, int64_t> sent, received;  // by the other rank
};

namespace cuda_shim {

std::set<ncclComm*>& communicators();  // live ones; guarded by the machine's mutex
void delete_if_over(const ncclComm* comm);

// Adds a problem and returns `result`.
ncclResult_t wrong(ncclResult_t result, const std::string& text);

// Starts `proceed` on a non-blocking communicator; on a blocking one, finishes it before returning.
ncclResult_t begin(ncclComm* comm, std::function<ncclResult_t()> proceed);

void post(const std::string& path, const void* head, size_t head_bytes, const void* data,
          size_t bytes);
std::optional<std::string> read(const std::string& path);

}  // namespace cuda_shim
