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

  Work make(GroupCall c, Stream& stream) override {
    const CallTime time(seconds_);
    if (c.operation == Operation::all_reduce) return done(c);
    check_call(c, 1);
    switch (c.operation) {
      case Operation::broadcast: break;
      case Operation::send: send_to_itself(c, stream); break;
      case Operation::recv: receive_from_itself(c, stream); break;
      default: copy(c.in, c.out, stream);
    }
    return done(c);
  }

  void barrier(std::string_view) override {}
  bool immediate() const override { return true; }
  std::unique_ptr<Group> split(int, int, int members) override {
    MG_ASSERT(members == 1);
    return single();
  }

 private:
  static Work done(const GroupCall& c) { return {Event(), c.tensors()}; }

  static void copy(const Tensor& in, const Tensor& out, Stream& stream) {
    stream.synchronize();
    const std::byte* from = host_data(in);
    std::byte* to = host_data(out);
    if (from != nullptr && from != to) std::memmove(to, from, static_cast<size_t>(in.bytes()));
  }

  void send_to_itself(const GroupCall& c, Stream& stream) {
    stream.synchronize();
    Message message = mailbox_.take_spare(c.in);
    pack(c.in, c.name, message);
    mailbox_.push(std::move(message));
  }

  void receive_from_itself(GroupCall& c, Stream& stream) {
    MG_CHECK(!mailbox_.empty(), "rank 0 waits for '{}' from itself, but sent nothing", c.name);
    stream.synchronize();
    Message message = mailbox_.pop();
    const std::string wrong = mismatch(message, header_of(c), 0, 0);
    MG_CHECK(wrong.empty(), "{}", wrong);
    unpack(message, c.in);
    mailbox_.give_back(std::move(message));
  }

  Mailbox mailbox_;
};

}  // namespace

std::unique_ptr<Group> single() { return std::make_unique<Single>(); }

}  // namespace megatron::comm
