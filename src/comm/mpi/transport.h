// Transfers bytes between the ranks of one communicator without a limit on their number: MPI's own
// counts end at 2^31 - 1.
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

  // Takes over the communicator. members: world ranks of its ranks.
  Transport(std::shared_ptr<Session> session, MPI_Comm communicator, std::vector<int> members,
            int rank, int64_t largest_message);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  Session& session() { return *session_; }

  // Collective; returns once every rank has arrived. Throws Error on every rank if the headers
  // differ.
  void agree(const CallHeader& header);
  // Collective: sends out(r) to every other rank r and fills in(r) from it. The sizes must match.
  void exchange(FunctionRef<Bytes(int rank)> out, FunctionRef<Bytes(int rank)> in);
  // Collective.
  void broadcast(Bytes bytes, int root);
  // Collective: returns the ranks' numbers in rank order; `mine` is this rank's.
  std::vector<int> gather(std::span<const int> mine);
  // Collective: a transport of the listed ranks, in this order; each rank belongs to one list and
  // passes its own. Null for a list of one.
  std::unique_ptr<Transport> part(std::span<const int> ranks);

  // Sends a message under a name and a number; the bytes are copied, so the sender continues. The
  // receiver compares name, type and size with its header; a difference throws Error.
  void send(const Tensor& tensor, int to, std::string_view call, int64_t number);
  void receive(Tensor& tensor, int from, const CallHeader& header);

 private:
  enum class Tag { envelope = 1, message = 2, collective = 3 };

  // start(data, count, request): starts one message of a piece of `bytes`; MPI counts its bytes by
  // an int.
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
