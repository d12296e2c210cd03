#include <cstring>

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/call_time.h"
#include "comm/group.h"
#include "comm/mailbox.h"

namespace megatron::comm {

namespace {

class Single final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Work all_reduce(Tensor t, Reduce, Stream&, std::string_view) override {
    return done({std::move(t)});
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view) override {
    const CallTime time(seconds_);
    check_all_gather(in, out, 1);
    return copy(std::move(in), std::move(out), stream);
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce, Stream& stream, std::string_view) override {
    const CallTime time(seconds_);
    check_reduce_scatter(in, out, 1);
    return copy(std::move(in), std::move(out), stream);
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view) override {
    const CallTime time(seconds_);
    check_all_to_all(in, out, send_counts, receive_counts, 1);
    return copy(std::move(in), std::move(out), stream);
  }

  Work broadcast(Tensor t, int root, Stream&, std::string_view) override {
    MG_ASSERT(root == 0);
    return done({std::move(t)});
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(to == 0 && t.is_contiguous());
    stream.synchronize();
    Message message = mailbox_.take_spare(t);
    pack(t, call, message);
    mailbox_.push(std::move(message));
    return done({std::move(t)});
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    const CallTime time(seconds_);
    MG_ASSERT(from == 0 && t.is_contiguous());
    MG_CHECK(!mailbox_.empty(), "rank 0 waits for '{}' from itself, but sent nothing", call);
    stream.synchronize();
    Message message = mailbox_.pop();
    const std::string wrong = mismatch(
        message,
        {.operation = "recv", .call = std::string(call), .type = t.dtype(), .bytes = t.bytes()}, 0,
        0);
    MG_CHECK(wrong.empty(), "{}", wrong);
    unpack(message, t);
    mailbox_.give_back(std::move(message));
    return done({std::move(t)});
  }

  void barrier(std::string_view) override {}
  bool immediate() const override { return true; }
  std::unique_ptr<Group> split(int, int, int members) override {
    MG_ASSERT(members == 1);
    return single();
  }

 private:
  static Work done(std::vector<Tensor> keep) { return {Event(), std::move(keep)}; }

  static Work copy(Tensor in, Tensor out, Stream& stream) {
    stream.synchronize();
    const std::byte* from = host_data(in);
    std::byte* to = host_data(out);
    if (from != nullptr && from != to) std::memmove(to, from, static_cast<size_t>(in.bytes()));
    return done({std::move(in), std::move(out)});
  }

  Mailbox mailbox_;
};

}  // namespace

std::unique_ptr<Group> single() { return std::make_unique<Single>(); }

}  // namespace megatron::comm
