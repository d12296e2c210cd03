#include "communicators.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;

namespace cuda_shim {
namespace {

const char* const kRoot = "/dev/shm";
const char* const kPrefix = "megatron_nccl_";
constexpr int kPatience = 20000;  // number of pauses of 200 us each

thread_local std::string last_text = "no error";

// Removes the folders of processes that were killed.
void sweep() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kRoot, error)) {
    const std::string file = entry.path().filename();
    if (!file.starts_with(kPrefix)) continue;
    const int process = std::atoi(file.c_str() + std::strlen(kPrefix));
    if (process > 0 && ::kill(process, 0) != 0 && errno == ESRCH)
      fs::remove_all(entry.path(), error);
  }
}

// Waits until all ranks have joined the communicator.
ncclResult_t meet(const ncclComm& comm) {
  std::vector<int> devices;
  for (int r = 0; r < comm.size; ++r) {
    const auto bytes = read(fmt::format("{}/init.{}", comm.folder, r));
    if (!bytes) return ncclInProgress;
    int theirs[2];
    std::memcpy(theirs, bytes->data(), sizeof theirs);
    if (theirs[0] != comm.size)
      return wrong(ncclInvalidArgument, fmt::format("rank {} names {} ranks, and rank {} {}",
                                                    comm.rank, comm.size, r, theirs[0]));
    const auto same = std::find(devices.begin(), devices.end(), theirs[1]);
    if (same != devices.end())
      return wrong(
          ncclInvalidUsage,
          fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {}",
                      same - devices.begin(), r, theirs[1]));
    devices.push_back(theirs[1]);
  }
  return ncclSuccess;
}

// A rank that ends leaves a mark; the last rank removes the folder.
bool all_ended(const ncclComm& comm) {
  for (int r = 0; r < comm.size; ++r)
    if (!fs::exists(fmt::format("{}/end.{}", comm.folder, r))) return false;
  return true;
}
void end(const ncclComm& comm) {
  std::error_code error;
  if (fs::exists(comm.folder, error))
    post(fmt::format("{}/end.{}", comm.folder, comm.rank), "", 0, nullptr, 0);
}
void remove_if_ended(const ncclComm& comm) {
  std::error_code error;
  if (all_ended(comm)) fs::remove_all(comm.folder, error);
}

template <class F>
void wait_while(F&& holds, const char* what) {
  int waited = 0;
  while (holds() && ++waited < kPatience) machine().mutex.pause();
  if (waited == kPatience) problem(std::string("NCCL: ") + what);
}

// A communicator's memory is returned only when the device is idle.
bool other_runs(const ncclComm& comm) {
  return std::ranges::any_of(communicators(), [&](const ncclComm* other) {
    return other->device == comm.device && other->running > 0;
  });
}

}  // namespace

std::set<ncclComm*>& communicators() {
  static auto* const all = new std::set<ncclComm*>;
  return *all;
}

void delete_if_over(const ncclComm* comm) {
  if (comm->aborted && comm->queued == 0 && comm->graphs == 0) delete comm;
}

ncclResult_t wrong(ncclResult_t result, const std::string& text) {
  last_text = text;
  problem("NCCL: " + text);
  return result;
}

ncclResult_t begin(ncclComm* comm, std::function<ncclResult_t()> proceed) {
  const Lock lock(machine().mutex);
  if (!comm->blocking && machine().settings.nccl_looks > 0) {
    comm->proceed = std::move(proceed);
    comm->looks = machine().settings.nccl_looks;
    return ncclInProgress;
  }
  ncclResult_t result = proceed();
  if (result == ncclInProgress && !comm->blocking) {
    comm->proceed = std::move(proceed);
    return result;
  }
  for (; result == ncclInProgress; result = proceed()) machine().mutex.pause();
  return result;
}

void post(const std::string& path, const void* head, size_t head_bytes, const void* data,
          size_t bytes) {
  const std::string unfinished = fmt::format("{}.{}", path, ::gettid());
  {
    std::ofstream out(unfinished, std::ios::binary);
    out.write(static_cast<const char*>(head), static_cast<std::streamsize>(head_bytes));
    if (bytes > 0) out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  }
  fs::rename(unfinished, path);
}

std::optional<std::string> read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace cuda_shim

using namespace cuda_shim;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t comm) {
  const Lock lock(machine().mutex);
  if (communicators().contains(comm) && !comm->words.empty()) last_text = comm->words;
  return last_text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next = 0;
  if (next == 0) sweep();
  std::memset(id, 0, sizeof *id);
  const std::string folder =
      fmt::format("{}/{}{}_{}", kRoot, kPrefix, static_cast<int>(::getpid()), next++);
  fs::create_directory(folder);
  std::memcpy(id->internal, folder.data(), folder.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  if (rank < 0 || rank >= ranks || std::memchr(id.internal, 0, sizeof id.internal) == nullptr)
    return wrong(ncclInvalidArgument, fmt::format("rank {} of {}", rank, ranks));
  const char* const apart = std::getenv("NCCL_P2P_DIRECT_DISABLE");
  if (apart == nullptr || std::strcmp(apart, "1") != 0)
    return wrong(ncclInvalidUsage,
                 "GPUs of a process would read each other's memory, which is mapped for one only; "
                 "NCCL_P2P_DIRECT_DISABLE is not 1");
  auto made = std::make_unique<ncclComm>();
  made->folder = id.internal;
  made->rank = rank;
  made->size = ranks;
  made->device = current_device();
  made->blocking = config == nullptr || config->blocking != 0;
  const int mine[] = {ranks, made->device};
  if (const Lock lock(machine().mutex); !has_some_left()) {
    last_text = "Cuda failure 2 'out of memory'";
    return ncclUnhandledCudaError;
  }
  const std::string file = fmt::format("{}/init.{}", made->folder, rank);
  if (fs::exists(file)) return wrong(ncclInvalidUsage, fmt::format("rank {} comes twice", rank));
  post(file, mine, sizeof mine, nullptr, 0);
  const Lock lock(machine().mutex);
  ++machine().communicators;
  *comm = made.release();
  communicators().insert(*comm);
  const ncclResult_t result = begin(*comm, [c = *comm] { return meet(*c); });
  if (result != ncclInProgress) (*comm)->error = result;
  return result;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (!communicators().contains(comm))
    return wrong(ncclInvalidArgument, "ncclCommFinalize of no communicator");
  if (comm->finalized || comm->proceed)
    return wrong(ncclInvalidArgument, "ncclCommFinalize twice, or before a call was settled");
  if (comm->queued > 0) {
    problem("NCCL: a communicator ends with calls queued");
    run(comm->stream);
  }
  wait_while([&] { return comm->graphs > 0; },
             "a communicator ends before the graphs with calls of it");
  comm->finalized = true;
  end(*comm);
  return begin(comm, [comm] {
    return fs::exists(comm->folder) && !all_ended(*comm) ? ncclInProgress : ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (communicators().erase(comm) == 0)
    return wrong(ncclInvalidArgument, "ncclCommDestroy of no communicator");
  if (!comm->finalized || comm->proceed)
    problem("NCCL: ncclCommDestroy before ncclCommFinalize has come to its end");
  remove_if_ended(*comm);
  --m.communicators;
  delete comm;
  return ncclSuccess;
}

// Queued calls still use the communicator; they are over once the stream has run.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (communicators().erase(comm) == 0)
    return wrong(ncclInvalidArgument, "ncclCommAbort of no communicator");
  comm->aborted = true;
  ++comm->queued;  // counts this call, which uses it too
  comm->proceed = nullptr;
  m.mutex.changed();
  end(*comm);
  wait_while(
      [&] {
        if (comm->graphs > 0) advance_all();  // a destroyed graph may be in flight
        return comm->graphs > 0;
      },
      "a communicator is aborted before the graphs with calls of it end");
  wait_while([&] { return other_runs(*comm); },
             "ncclCommAbort waits for the kernel of a communicator that nobody aborts");
  remove_if_ended(*comm);
  --m.communicators;
  --comm->queued;
  delete_if_over(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock(machine().mutex);
  if (!communicators().contains(comm))
    return wrong(ncclInvalidArgument, "ncclCommGetAsyncError of no communicator");
  if (comm->proceed && --comm->looks < 0) {
    const ncclResult_t result = comm->proceed();
    if (result != ncclInProgress) comm->proceed = nullptr;
    if (result != ncclInProgress && result != ncclSuccess) comm->error = result;
  }
  *error = comm->proceed ? ncclInProgress : comm->error;
  return ncclSuccess;
}
