#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "comm/traffic.h"

namespace megatron::comm {
namespace {

// A call that failed is not told: nothing is known to have moved. Nor is split(), which moves no
// tensor.
class Observed final : public Group {
 public:
  Observed(Group& group, TrafficListener& listener) : group_(group), listener_(listener) {}
  Observed(std::unique_ptr<Group> group, TrafficListener& listener)
      : owned_(std::move(group)), group_(*owned_), listener_(listener) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    const int64_t bytes = t.bytes();
    return told("all_reduce", call, bytes,
                [&] { return group_.all_reduce(std::move(t), op, stream, call); });
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    const int64_t bytes = std::max(in.bytes(), out.bytes());
    return told("all_gather", call, bytes,
                [&] { return group_.all_gather(std::move(in), std::move(out), stream, call); });
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    const int64_t bytes = std::max(in.bytes(), out.bytes());
    return told("reduce_scatter", call, bytes, [&] {
      return group_.reduce_scatter(std::move(in), std::move(out), op, stream, call);
    });
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    const int64_t bytes = std::max(in.bytes(), out.bytes());
    return told("all_to_all", call, bytes, [&] {
      return group_.all_to_all(std::move(in), std::move(out), send_counts, receive_counts, stream,
                               call);
    });
  }

  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    const int64_t bytes = t.bytes();
    return told("broadcast", call, bytes,
                [&] { return group_.broadcast(std::move(t), root, stream, call); });
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    const int64_t bytes = t.bytes();
    return told("send", call, bytes, [&] { return group_.send(std::move(t), to, stream, call); });
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    const int64_t bytes = t.bytes();
    return told("recv", call, bytes, [&] { return group_.recv(std::move(t), from, stream, call); });
  }

  void barrier(std::string_view call) override {
    told("barrier", call, 0, [&] {
      group_.barrier(call);
      return Work();
    });
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const OwnSeconds seconds(*this);
    return std::make_unique<Observed>(group_.split(color, key, members), listener_);
  }

 private:
  // The group's own seconds of a call are this one's, too, also where it throws.
  class OwnSeconds {
   public:
    explicit OwnSeconds(Observed& observed)
        : observed_(observed), before_(observed.group_.seconds()) {}
    ~OwnSeconds() { observed_.seconds_ += observed_.group_.seconds() - before_; }
    OwnSeconds(const OwnSeconds&) = delete;
    OwnSeconds& operator=(const OwnSeconds&) = delete;

   private:
    Observed& observed_;
    double before_;
  };

  template <class F>
  Work told(std::string_view collective, std::string_view call, int64_t bytes, F&& run) {
    Traffic traffic{.collective = collective, .call = call, .ranks = size(), .bytes = bytes};
    traffic.began = now_seconds();
    Work work = [&] {
      const OwnSeconds seconds(*this);
      return run();
    }();
    traffic.ended = now_seconds();
    listener_.communicated(traffic);
    return work;
  }

  std::unique_ptr<Group> owned_;
  Group& group_;
  TrafficListener& listener_;
};

}  // namespace

std::unique_ptr<Group> observed(Group& group, TrafficListener& listener) {
  return std::make_unique<Observed>(group, listener);
}

}  // namespace megatron::comm
