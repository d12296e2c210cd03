// A group of ranks and its collectives. A group of one rank is the identity. The same calls run
// between threads of one process and between processes; nothing above this room knows which.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"
#include "tensor/tensor.h"

namespace megatron::comm {

// Seconds that a call may take, waiting included, before the run is given up; where nothing else is
// said.
inline constexpr double kMostSeconds = 600;

enum class Reduce { sum, max };
class Doing;
class Member;

// A collective under way. The tensors it reads and writes stay alive until wait() has returned.
struct Work {
  Event done;
  std::vector<Tensor> keep;
  void wait(Stream& stream) const { stream.wait(done); }
};

// Every rank of a group makes the same calls in the same order, with equal shapes and types. Each
// call has a name, so that a hang or a mismatch can be explained: a call whose name, bytes or type
// differ between ranks throws Error on every rank naming both. Reductions add in rank order, in f32
// (f64 for f64, exact for integers), and round once: every rank gets the same bits. Tensors are
// contiguous. When a rank fails, the others' calls throw; processes are ended instead
// (comm/processes.h).
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  virtual Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) = 0;
  // in [n...], out [size * n...]: the ranks' tensors one after another.
  virtual Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) = 0;
  // in [size * n...], out [n...]: rank r gets the reduction of everybody's block r.
  virtual Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                              std::string_view call) = 0;
  // Rows of in go to the ranks in order, send_counts[r] rows to r; out gets receive_counts[r] rows
  // from r, in rank order.
  virtual Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                          std::span<const int64_t> receive_counts, Stream& stream,
                          std::string_view call) = 0;
  virtual Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) = 0;
  // Messages between two ranks arrive in the order they were sent.
  virtual Work send(Tensor t, int to, Stream& stream, std::string_view call) = 0;
  virtual Work recv(Tensor t, int from, Stream& stream, std::string_view call) = 0;
  virtual void barrier(std::string_view call) = 0;
  // Collective: ranks of one colour form a new group, ordered by (key, rank). members: how many
  // ranks have this rank's colour; throws InternalError where that is found to be wrong.
  virtual std::unique_ptr<Group> split(int color, int key, int members) = 0;

  // What texts of mismatches and hangs call it: "tp". The group of all ranks is "world"; what is
  // split from a group has the name of that group until it gets its own.
  virtual void set_name(std::string_view name) { static_cast<void>(name); }
  // Seconds that this rank has spent in calls of this group so far, waiting included.
  virtual double seconds() const { return seconds_; }
  // Calls never wait: for the group of one rank, and ranks that do not exist.
  virtual bool immediate() const { return false; }
  // This rank fails: calls of it that are under way in other threads throw, and so do all later
  // ones.
  virtual void give_up() {}
  // Where this rank reports what it does, for reports of hangs (comm/doing.h); null: nobody watches.
  virtual Doing* doing() { return nullptr; }
  // Calls on a GPU's tensors are queued on a stream of the group's own and return at once; they may
  // be recorded (device/recording.h), where all ranks of the group do so.
  virtual bool queued() const { return false; }
  // Work of the stream that holds recorded calls of this group was queued once more: reports tell
  // that this rank is in `call` until the stream has come so far. Throws as a call does.
  virtual void queued_again(Stream&, std::string_view call) { static_cast<void>(call); }
  // This rank among those that end together (comm/member.h); null: nobody ends it.
  virtual Member* member() { return nullptr; }

 protected:
  double seconds_ = 0;  // every call adds its own
};

// The group of one rank.
std::unique_ptr<Group> single();

}  // namespace megatron::comm
