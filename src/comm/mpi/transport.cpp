#include "comm/mpi/transport.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "comm/agreement.h"
#include "comm/arguments.h"
#include "comm/mailbox.h"

namespace megatron::comm {

namespace {

// Header sent before a message. Longer names are truncated, and only their beginnings compared.
struct Envelope {
  int64_t bytes = 0, number = 0;
  DType type = DType::f32;
  bool has_data = true;
  uint8_t length = 0;
  char call[237] = {};
};
static_assert(sizeof(Envelope) == 256);

std::string_view cut(std::string_view call) { return call.substr(0, sizeof(Envelope::call)); }

Envelope envelope_of(const Tensor& tensor, std::string_view call, int64_t number) {
  Envelope envelope;
  envelope.number = number;
  envelope.bytes = tensor.bytes();
  envelope.type = tensor.dtype();
  envelope.has_data = tensor.device().has_data();
  call = cut(call);
  envelope.length = static_cast<uint8_t>(call.size());
  std::memcpy(envelope.call, call.data(), call.size());
  return envelope;
}

int as_count(size_t n) { return static_cast<int>(n); }  // counts of pieces and ranks are small

}  // namespace

Transport::Transport(std::shared_ptr<Session> session, MPI_Comm communicator,
                     std::vector<int> members, int rank, int64_t largest_message)
    : session_(std::move(session)),
      communicator_(communicator),
      members_(std::move(members)),
      rank_(rank),
      largest_message_(std::min<int64_t>(largest_message, int64_t{1} << 30)) {}

Transport::~Transport() {
  if (session_->finalized()) return;
  session_->adopt(std::move(on_their_way_));
  if (communicator_ == session_->world() || std::uncaught_exceptions() > 0) return;
  const auto free = [this] { return MPI_Comm_free(&communicator_); };
  try {
    session_->call("free", free);
  } catch (const Error&) {  // only a few bytes are lost
  }
}

template <class Start>
void Transport::start(const char* name, Bytes bytes, std::vector<MPI_Request>& requests,
                      Start start) {
  while (!bytes.empty()) {
    const Bytes piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(largest_message_)));
    bytes = bytes.subspan(piece.size());
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    session_->call(name, [&] { return start(piece.data(), as_count(piece.size()), &request); });
  }
}

void Transport::start_send(Bytes bytes, int to, Tag tag, std::vector<MPI_Request>& requests) {
  start("send", bytes, requests, [&](const void* data, int count, MPI_Request* request) {
    return MPI_Isend(data, count, MPI_BYTE, to, static_cast<int>(tag), communicator_, request);
  });
}

void Transport::start_receive(Bytes bytes, int from, Tag tag, std::vector<MPI_Request>& requests) {
  start("receive", bytes, requests, [&](void* data, int count, MPI_Request* request) {
    return MPI_Irecv(data, count, MPI_BYTE, from, static_cast<int>(tag), communicator_, request);
  });
}

void Transport::agree(const CallHeader& header) {
  collect_delivered();
  const uint64_t mine = share_of_agreement(header, rank_, size());
  uint64_t sum = 0;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  session_->call("agree", [&] {
    return MPI_Iallreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, communicator_, &request);
  });
  finish(Session::Pace::patient);
  if (sum != 0) tell_disagreement(header);
}

void Transport::tell_disagreement(const CallHeader& header) {
  std::string mine = packed(header);
  const int length = as_count(mine.size());
  const std::vector<int> lengths = gather({&length, 1});
  std::vector<std::string> texts;
  for (const int n : lengths) texts.emplace_back(static_cast<size_t>(n), '\0');
  const auto bytes = [](std::string& text) { return std::as_writable_bytes(std::span(text)); };
  exchange([&](int) { return bytes(mine); },
           [&](int r) { return bytes(texts[static_cast<size_t>(r)]); });
  texts[static_cast<size_t>(rank_)] = mine;

  std::vector<CallHeader> headers;
  std::vector<std::vector<int64_t>> counts(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    CallHeader& other = headers.emplace_back(unpacked(texts[r], counts[r]));
    other.group = header.group;
    other.number = header.number;  // ranks of a communicator call in the same order
  }
  const auto of_rank = [&](int r) -> const CallHeader& { return headers[static_cast<size_t>(r)]; };
  const std::string wrong = disagreement(of_rank, members_);
  MG_ASSERT(!wrong.empty());
  throw Error(wrong);
}

void Transport::exchange(FunctionRef<Bytes(int rank)> out, FunctionRef<Bytes(int rank)> in) {
  for (int step = 1; step < size(); ++step) {
    const int from = (rank_ - step + size()) % size();
    start_receive(in(from), from, Tag::collective, requests_);
  }
  for (int step = 1; step < size(); ++step) {
    const int to = (rank_ + step) % size();
    start_send(out(to), to, Tag::collective, requests_);
  }
  finish(Session::Pace::brisk);
}

void Transport::broadcast(Bytes bytes, int root) {
  while (!bytes.empty()) {
    const Bytes piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(largest_message_)));
    bytes = bytes.subspan(piece.size());
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    session_->call("broadcast", [&] {
      return MPI_Ibcast(piece.data(), as_count(piece.size()), MPI_BYTE, root, communicator_,
                        &request);
    });
    finish(Session::Pace::brisk);
  }
}

std::vector<int> Transport::gather(std::span<const int> mine) {
  std::vector<int> all(mine.size() * members_.size());
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  const int n = as_count(mine.size());
  session_->call("gather", [&] {
    return MPI_Iallgather(mine.data(), n, MPI_INT, all.data(), n, MPI_INT, communicator_, &request);
  });
  finish(Session::Pace::brisk);
  return all;
}

std::unique_ptr<Transport> Transport::part(std::span<const int> ranks) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  const int rank = static_cast<int>(place), color = ranks.size() > 1 ? ranks[0] : MPI_UNDEFINED;
  MPI_Comm communicator = MPI_COMM_NULL;
  session_->call("split",
                 [&] { return MPI_Comm_split(communicator_, color, rank, &communicator); });
  if (communicator == MPI_COMM_NULL) return nullptr;
  std::vector<int> members;
  for (const int r : ranks) members.push_back(members_[static_cast<size_t>(r)]);
  return std::make_unique<Transport>(session_, communicator, std::move(members), rank,
                                     largest_message_);
}

Parcel Transport::take_spare() {
  if (spare_.empty()) return {};
  Parcel parcel = std::move(spare_.back());
  spare_.pop_back();
  return parcel;
}

void Transport::collect_delivered() {
  const auto delivered =
      std::stable_partition(on_their_way_.begin(), on_their_way_.end(),
                            [this](Parcel& parcel) { return !session_->test(parcel.requests); });
  std::move(delivered, on_their_way_.end(), std::back_inserter(spare_));
  on_their_way_.erase(delivered, on_their_way_.end());
}

void Transport::send(const Tensor& tensor, int to, std::string_view call, int64_t number) {
  collect_delivered();
  Parcel parcel = take_spare();
  const Envelope envelope = envelope_of(tensor, call, number);
  const auto front = std::as_bytes(std::span(&envelope, 1));
  parcel.envelope.assign(front.begin(), front.end());
  const std::byte* const data = host_data(tensor);
  parcel.data.resize(data == nullptr ? 0 : static_cast<size_t>(tensor.bytes()));
  if (!parcel.data.empty()) std::memcpy(parcel.data.data(), data, parcel.data.size());
  parcel.call = call;
  parcel.to = members_[static_cast<size_t>(to)];
  parcel.requests.clear();
  start_send(parcel.envelope, to, Tag::envelope, parcel.requests);
  start_send(parcel.data, to, Tag::message, parcel.requests);
  on_their_way_.push_back(std::move(parcel));
}

void Transport::receive(Tensor& tensor, int from, const CallHeader& header) {
  collect_delivered();
  Envelope envelope;
  start_receive(std::as_writable_bytes(std::span(&envelope, 1)), from, Tag::envelope, requests_);
  finish(Session::Pace::patient);
  Message message;
  message.call.assign(envelope.call, envelope.length);
  message.type = envelope.type;
  message.bytes = envelope.bytes;
  message.number = envelope.number;
  CallHeader expected = header;
  expected.call = cut(header.call);
  const std::string wrong = mismatch(message, expected, members_[static_cast<size_t>(from)],
                                     members_[static_cast<size_t>(rank_)]);
  MG_CHECK(wrong.empty(), "{}", wrong);
  MG_ASSERT(envelope.has_data == tensor.device().has_data());
  std::byte* const data = host_data(tensor);
  if (data == nullptr) return;
  start_receive({data, static_cast<size_t>(tensor.bytes())}, from, Tag::message, requests_);
  finish(Session::Pace::brisk);
}

}  // namespace megatron::comm
