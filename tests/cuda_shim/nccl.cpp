// NCCL calls between the shim's devices.
#include <fmt/core.h>

#include <cstring>
#include <filesystem>

#include "communicators.h"

namespace fs = std::filesystem;

namespace cuda_shim {
namespace {

enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, send, receive };
const char* name(Kind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce",     "ncclBroadcast", "ncclAllGather",
                                    "ncclReduceScatter", "ncclSend",      "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
  }
}

// Values that must be equal on all ranks.
struct Header {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  size_t count;
  int64_t recorded = 0;  // 0: not in a graph; else the recorded call's number (messages: 1)
  bool operator==(const Header&) const = default;
};
std::string text_of(const Header& h) {
  return fmt::format("{} of {} elements of type {}, operation {}, root {}, recorded {}",
                     name(h.kind), h.count, static_cast<int>(h.type), static_cast<int>(h.op),
                     h.root, h.recorded);
}

struct Part {
  Header header;
  const void* from = nullptr;
  void* to = nullptr;
  int peer = -1;
  int64_t number = 0;
  bool done = false;
};

// --- Files.

Header header_of(const std::string& bytes) {
  Header h;
  std::memcpy(&h, bytes.data(), sizeof h);
  return h;
}
const char* data_of(const std::string& bytes) { return bytes.data() + sizeof(Header); }

// --- Arithmetic. NCCL adds in its own order; here, from the last rank down.

template <class T>
void combine(T* sum, const char* bytes, size_t count, ncclRedOp_t op) {
  for (size_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, bytes + i * sizeof x, sizeof x);
    if (op == ncclSum) sum[i] = static_cast<T>(sum[i] + x);
    else if (x > sum[i]) sum[i] = x;
  }
}

bool reduce(void* to, const std::vector<std::string>& files, size_t offset, size_t count,
            const Header& h) {
  const size_t bytes = count * size_of(h.type);
  std::memcpy(to, data_of(files.back()) + offset, bytes);
  for (size_t r = files.size() - 1; r-- > 0;) {
    const char* const from = data_of(files[r]) + offset;
    switch (h.type) {
      case ncclFloat32: combine(static_cast<float*>(to), from, count, h.op); break;
      case ncclFloat64: combine(static_cast<double*>(to), from, count, h.op); break;
      case ncclInt32: combine(static_cast<int32_t*>(to), from, count, h.op); break;
      case ncclInt64: combine(static_cast<int64_t*>(to), from, count, h.op); break;
      case ncclUint8: combine(static_cast<uint8_t*>(to), from, count, h.op); break;
      default: return false;  // 16-bit types would be rounded at each rank
    }
  }
  return true;
}

// --- A call of one communicator, or those between ncclGroupStart and ncclGroupEnd.

class Launch {
 public:
  Launch(ncclComm* comm, std::vector<Part> parts) : comm_(comm), parts_(std::move(parts)) {}

  cudaError_t attempt() {
    if (comm_->aborted) return finish();
    if (!posted_ && !post_all()) return finish();
    posted_ = true;
    bool all = true;
    for (Part& part : parts_) {
      if (!part.done) part.done = take(part);
      all = all && part.done;
    }
    if (all) return finish();
    if (!std::exchange(running_, true)) ++comm_->running;
    return cudaErrorNotReady;
  }

 private:
  cudaError_t finish() {
    posted_ = false;
    if (std::exchange(running_, false)) --comm_->running;
    for (Part& part : parts_) part.done = false;
    --comm_->queued;
    delete_if_over(comm_);
    machine().mutex.changed();
    return cudaSuccess;
  }

  std::string file(const Part& part, int from) const {
    if (part.header.kind == Kind::send || part.header.kind == Kind::receive)
      return fmt::format("{}/message.{}.{}.{}", comm_->folder, from,
                         from == part.peer ? comm_->rank : part.peer, part.number);
    return fmt::format("{}/call.{}.{}", comm_->folder, part.number, from);
  }
  size_t bytes_from(const Part& p) const {
    const size_t scattered = p.header.kind == Kind::reduce_scatter ? comm_->size : 1;
    return p.header.count * size_of(p.header.type) * scattered;
  }
  size_t bytes_to(const Part& p) const {
    const size_t gathered = p.header.kind == Kind::all_gather ? comm_->size : 1;
    return p.header.count * size_of(p.header.type) * gathered;
  }
  bool fail(const std::string& text) {
    wrong(ncclInvalidArgument, text);
    comm_->words = text;
    comm_->error = ncclInvalidArgument;
    return false;
  }
  bool is_memory(const void* p, size_t bytes, const Part& part) {
    if (bytes == 0 || is_device_memory(p, bytes)) return true;
    return fail(fmt::format("{}: {} bytes at {} are not all device memory that is allocated",
                            name(part.header.kind), bytes, p));
  }

  bool post_all() {
    for (Part& part : parts_) {
      const Kind kind = part.header.kind;
      const bool gives =
          kind != Kind::receive && (kind != Kind::broadcast || comm_->rank == part.header.root);
      if (gives && !is_memory(part.from, bytes_from(part), part)) return false;
      if (kind != Kind::send && !is_memory(part.to, bytes_to(part), part)) return false;
      part.number = kind == Kind::send      ? comm_->sent[part.peer]++
                    : kind == Kind::receive ? comm_->received[part.peer]++
                                            : comm_->collectives++;
      if (kind != Kind::receive)
        post(file(part, comm_->rank), &part.header, sizeof part.header, part.from,
             gives ? bytes_from(part) : 0);
    }
    machine().mutex.changed();
    return true;
  }

  // Returns true when it is done. A sent message has been received when its file is gone.
  bool take(const Part& part) {
    const Header& h = part.header;
    if (h.kind == Kind::send) return !fs::exists(file(part, comm_->rank));
    if (h.kind == Kind::receive) {
      const auto bytes = read(file(part, part.peer));
      if (!bytes) return false;
      fs::remove(file(part, part.peer));
      const Header theirs = header_of(*bytes);
      if (theirs.count == h.count && theirs.type == h.type && theirs.recorded == h.recorded)
        std::memcpy(part.to, data_of(*bytes), bytes_to(part));
      else
        fail(fmt::format("rank {} expects {}, and rank {} sent {}", comm_->rank, text_of(h),
                         part.peer, text_of(theirs)));
      return true;
    }
    std::vector<std::string> files;
    for (int r = 0; r < comm_->size; ++r) {
      if (!fs::exists(file(part, r))) return false;
    }
    for (int r = 0; r < comm_->size; ++r) files.push_back(read(file(part, r)).value());
    if (part.number > 0) {  // all ranks are here, so nobody reads the previous one
      Part before = part;
      --before.number;
      fs::remove(file(before, comm_->rank));
    }
    for (int r = 0; r < comm_->size; ++r) {
      const Header theirs = header_of(files[static_cast<size_t>(r)]);
      if (theirs == h) continue;
      fail(fmt::format("rank {} calls {}, and rank {} {}", comm_->rank, text_of(h), r,
                       text_of(theirs)));
      return true;
    }
    deliver(part, files);
    return true;
  }

  void deliver(const Part& part, const std::vector<std::string>& files) {
    const Header& h = part.header;
    const size_t bytes = h.count * size_of(h.type);
    const auto rank = static_cast<size_t>(comm_->rank);
    if (h.kind == Kind::broadcast) {
      std::memcpy(part.to, data_of(files[static_cast<size_t>(h.root)]), bytes);
    } else if (h.kind == Kind::all_gather) {
      for (size_t r = 0; r < files.size(); ++r)
        std::memcpy(static_cast<std::byte*>(part.to) + r * bytes, data_of(files[r]), bytes);
    } else {
      const size_t offset = h.kind == Kind::reduce_scatter ? rank * bytes : 0;
      if (!reduce(part.to, files, offset, h.count, h))
        fail(fmt::format("{} adds no elements of type {} here", name(h.kind),
                         static_cast<int>(h.type)));
    }
  }

  ncclComm* comm_;
  std::vector<Part> parts_;
  bool posted_ = false, running_ = false;
};

struct Given {
  ncclComm* comm;
  cudaStream_t stream;
  Part part;
};
thread_local int group_depth = 0;
thread_local std::vector<Given> given_in_group;

// Held until the last graph that contains the call is destroyed and has run.
std::shared_ptr<void> held_by_graph(ncclComm* comm) {
  ++comm->graphs;
  return std::shared_ptr<void>(comm, [comm](void*) {
    const Lock lock(machine().mutex);
    --comm->graphs;
    delete_if_over(comm);
    machine().mutex.changed();
  });
}

// Either all ranks record a call or none, and each launches its part of one recording.
void number(ncclComm* comm, cudaStream_t stream, Part& part, bool message) {
  if (stream->recording == nullptr) return;
  part.header.recorded = message ? 1 : ++comm->recorded;
}

// Launches the calls of one communicator on one stream.
ncclResult_t launch(ncclComm* comm, cudaStream_t stream, const std::vector<Part>& parts) {
  const auto work = std::make_shared<Launch>(comm, parts);
  const std::shared_ptr<void> held = stream_of(stream)->recording ? held_by_graph(comm) : nullptr;
  if (queue(stream, {.name = "NCCL",
                     .work = [work, held] { return work->attempt(); },
                     .wait = nullptr,
                     .mark = nullptr,
                     .queued = [comm] { ++comm->queued; }}) != cudaSuccess)
    return ncclUnhandledCudaError;
  return ncclSuccess;
}

ncclResult_t launch(std::vector<Given> given) {
  const Lock lock(machine().mutex);
  ncclResult_t result = ncclSuccess;
  while (!given.empty()) {
    ncclComm* const comm = given.front().comm;
    const cudaStream_t stream = given.front().stream;
    std::vector<Part> parts;
    std::vector<Given> others;
    for (Given& g : given) {
      if (g.comm == comm) parts.push_back(g.part);
      else others.push_back(std::move(g));
    }
    given = std::move(others);
    const ncclResult_t one =
        begin(comm, [comm, stream, parts] { return launch(comm, stream, parts); });
    if (one != ncclSuccess) result = one;
  }
  return result;
}

ncclResult_t give(ncclComm* comm, cudaStream_t stream, Part part) {
  {
    const Lock lock(machine().mutex);
    const char* const call = name(part.header.kind);
    if (!communicators().contains(comm))
      return wrong(ncclInvalidArgument, fmt::format("{} of no communicator", call));
    if (comm->proceed)
      return wrong(ncclInvalidArgument, fmt::format("{} before a call was settled", call));
    if (comm->finalized) return wrong(ncclInvalidUsage, fmt::format("{} after the end", call));
    const cudaStream_t own = stream_of(stream);
    if (own == nullptr || own->device != comm->device)
      return wrong(ncclInvalidArgument, fmt::format("{} on a stream that does not exist, or of "
                                                    "another device than the communicator's {}",
                                                    call, comm->device));
    if (comm->stream != nullptr && comm->stream != own)
      return wrong(ncclInvalidUsage, fmt::format("{} on a second stream", call));
    comm->stream = own;
    const bool message = part.header.kind == Kind::send || part.header.kind == Kind::receive;
    const int other = message ? part.peer : part.header.root;
    if (other >= comm->size || other < (message ? 0 : -1))
      return wrong(ncclInvalidArgument, fmt::format("{}: there is no rank {}", call, other));
    number(comm, own, part, message);
  }
  given_in_group.push_back({comm, stream, part});
  if (group_depth > 0) return ncclSuccess;
  return launch(std::exchange(given_in_group, {}));
}

}  // namespace
}  // namespace cuda_shim

using namespace cuda_shim;

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return wrong(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return ncclSuccess;
  return launch(std::exchange(given_in_group, {}));
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return give(comm, stream,
              {.header = {Kind::all_reduce, type, op, -1, count}, .from = from, .to = to});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return give(comm, stream,
              {.header = {Kind::broadcast, type, ncclSum, root, count}, .from = from, .to = to});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return give(comm, stream,
              {.header = {Kind::all_gather, type, ncclSum, -1, count}, .from = from, .to = to});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return give(comm, stream,
              {.header = {Kind::reduce_scatter, type, op, -1, count}, .from = from, .to = to});
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return give(comm, stream,
              {.header = {Kind::send, type, ncclSum, -1, count}, .from = from, .peer = peer});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return give(comm, stream,
              {.header = {Kind::receive, type, ncclSum, -1, count}, .to = to, .peer = peer});
}
