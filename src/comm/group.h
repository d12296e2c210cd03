// A group of ranks and its collectives. For a group of one rank they are the identity. The same
// calls work between threads of one process and between processes; code above this room does not
// depend on which.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::comm {

// Default limit in seconds of a call, waiting included, after which the run is given up.
inline constexpr double kMaxSeconds = 600;

enum class Reduce { sum, max };
class Doing;
class Member;

// An asynchronous collective. The tensors it reads and writes stay alive until wait() has returned.
struct Work {
  Event done;
  std::vector<Tensor> keep;
  void wait(Stream& stream) const { stream.wait(done); }
};

enum class Operation : uint32_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv
};
std::string_view name(Operation operation);

// The arguments of one call of a group.
struct GroupCall {
  Operation operation = Operation::all_reduce;
  std::string_view name;
  Tensor in, out;  // out: undefined where `in` is the only tensor
  Reduce op = Reduce::sum;
  int peer = -1;                                         // root, to or from
  std::span<const int64_t> send_counts, receive_counts;  // of all_to_all
  bool overlaps = false;  // made by a group whose calls overlap with compute (comm/async.h)

  bool reduces() const {
    return operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  }
  std::vector<Tensor> tensors() const;
};

// Every rank of a group makes the same calls in the same order, with equal shapes and types. Each
// call has a name for reports of hangs and mismatches: a call whose name, bytes or type differ
// between ranks throws Error on every rank, naming both. Reductions add in rank order, in f32 (f64
// for f64, exact for integers), and round once: every rank gets the same bits. Tensors must be
// contiguous. If a rank fails, the other threads' calls throw; processes are ended instead
// (comm/processes.h).
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call);
  // in [n...], out [size * n...]: the ranks' tensors in rank order.
  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call);
  // in [size * n...], out [n...]: rank r gets the reduction of all ranks' block r.
  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream, std::string_view call);
  // Rows of in are sent to the ranks in order, send_counts[r] rows to rank r; out receives
  // receive_counts[r] rows from rank r, in rank order.
  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream, std::string_view call);
  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call);
  // Messages between two ranks arrive in the order they were sent.
  Work send(Tensor t, int to, Stream& stream, std::string_view call);
  Work recv(Tensor t, int from, Stream& stream, std::string_view call);
  // Any of these.
  virtual Work make(GroupCall call, Stream& stream) = 0;
  virtual void barrier(std::string_view call) = 0;
  // Collective: ranks of one colour form a new group, ordered by (key, rank). members: number of
  // ranks with this rank's colour; throws InternalError if it is wrong.
  virtual std::unique_ptr<Group> split(int color, int key, int members) = 0;

  // Name of the group in texts about mismatches and hangs: "tp". The group of all ranks is "world";
  // a group split from another has that group's name until it gets its own.
  virtual void set_name(std::string_view name) { static_cast<void>(name); }
  // Seconds that this rank has spent in calls of this group, waiting included.
  virtual double seconds() const { return seconds_; }
  // True if calls never wait: for the group of one rank, and for simulated ranks.
  virtual bool immediate() const { return false; }
  // Marks this rank as failed: its calls in other threads throw, and so do all later ones.
  virtual void give_up() {}
  // Record of what this rank is doing, for hang reports (comm/doing.h); null: not watched.
  virtual Doing* doing() { return nullptr; }
  // True if calls on GPU tensors are queued on a stream of the group and return at once; they may
  // be recorded (device/recording.h) if all ranks of the group do so.
  virtual bool queued() const { return false; }
  // Called when the stream's work that holds recorded calls of this group is queued again: reports
  // show this rank in `call` until the stream has reached this point. Throws as a call does.
  virtual void queued_again(Stream&, std::string_view call) { static_cast<void>(call); }
  // This rank among those that fail together (comm/member.h); null: it does not take part.
  virtual Member* member() { return nullptr; }

 protected:
  double seconds_ = 0;  // total over all calls
};

// The group of one rank.
std::unique_ptr<Group> single();

}  // namespace megatron::comm
