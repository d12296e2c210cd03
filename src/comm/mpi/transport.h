// Bytes between the ranks of one communicator, of any number: MPI's own counts end at 2^31 - 1.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "comm/call_header.h"
#include "comm/mpi/session.h"

namespace megatron::comm {

class Transport {
 public:
  using Bytes = std::span<std::byte>;

  // Takes over the communicator. members: its ranks' ranks of the world.
  Transport(std::shared_ptr<Session> session, MPI_Comm communicator, std::vector<int> members,
            int rank, int64_t largest_message);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  Session& session() { return *session_; }

  // Collective; returns when every rank has come. Throws Error on every rank when they differ.
  void agree(const CallHeader& header);
  // Collective: sends out(r) to every other rank r and fills in(r) from it. The sizes fit.
  void exchange(FunctionRef<Bytes(int rank)> out, FunctionRef<Bytes(int rank)> in);
  // Collective.
  void broadcast(Bytes bytes, int root);
  // Collective: the ranks' numbers one after another, `mine` of each.
  std::vector<int> gather(std::span<const int> mine);
  // Collective: a transport of the ranks that are listed, in this order; each rank belongs to one
  // list and gives its own. Null for a list of one.
  std::unique_ptr<Transport> part(std::span<const int> ranks);

  // A message under a name and a number; the sender goes on, its bytes have been copied. The
  // receiver compares name, type and size with its header; a difference throws Error.
  void send(const Tensor& tensor, int to, std::string_view call, int64_t number);
  void receive(Tensor& tensor, int from, const CallHeader& header);

 private:
  enum class Tag { envelope = 1, message = 2, collective = 3 };

  // start(data, count, request): one message of a piece of `bytes`, which MPI counts by an int.
  template <class Start>
  void start(const char* name, Bytes bytes, std::vector<MPI_Request>& requests, Start start);
  void start_send(Bytes bytes, int to, Tag tag, std::vector<MPI_Request>& requests);
  void start_receive(Bytes bytes, int from, Tag tag, std::vector<MPI_Request>& requests);
  void finish(Session::Pace pace) {
    session_->wait(requests_, pace);
    requests_.clear();
  }
  [[noreturn]] void tell_disagreement(const CallHeader& header);
  Parcel take_spare();
  void collect_delivered();

  std::shared_ptr<Session> session_;
  MPI_Comm communicator_;
  std::vector<int> members_;
  int rank_;
  int64_t largest_message_;
  std::vector<MPI_Request> requests_;
  std::vector<Parcel> on_their_way_, spare_;
};

}  // namespace megatron::comm
