#include "comm/tcp/star_frames.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace megatron::comm::star {
namespace {

template <class T>
void put(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& out, std::string_view text) {
  put(out, static_cast<int64_t>(text.size()));
  out.append(text);
}
void put(std::string& out, const std::vector<int64_t>& values) {
  put(out, std::string_view(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(int64_t)));
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() {
    const auto size = number<int64_t>();
    MG_CHECK(size >= 0, "a process of this run sent bytes that are not a valid call");
    return take(static_cast<size_t>(size));
  }
  std::vector<int64_t> numbers() {
    const std::string_view bytes = text();
    MG_CHECK(bytes.size() % sizeof(int64_t) == 0,
             "a process of this run sent bytes that are not a valid call");
    std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  std::string_view take(size_t bytes) {
    MG_CHECK(bytes <= rest_.size(), "a process of this run sent bytes that are not a valid call");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::string_view rest_;
};

}  // namespace

Hello hello_of(int rank, int size, int64_t part, std::string_view run) {
  Hello hello{rank, size, part};
  std::copy_n(run.data(), std::min(run.size(), hello.run.size()), hello.run.data());
  return hello;
}

std::string_view run_of(const Hello& hello) {
  const auto end = std::find(hello.run.begin(), hello.run.end(), '\0');
  return {hello.run.data(), static_cast<size_t>(end - hello.run.begin())};
}

std::string packed(const Call& c, std::string_view data) {
  std::string out;
  put(out, c.operation);
  put(out, c.type);
  put(out, c.op);
  for (const int32_t number : {c.peer, c.color, c.key, c.members}) put(out, number);
  put(out, c.row);
  put(out, c.out_bytes);
  put(out, c.send_counts);
  put(out, c.receive_counts);
  put(out, std::string_view(c.name));
  put(out, c.doing.step);
  put(out, c.doing.micro_batch);
  put(out, int32_t{c.doing.may_be_long});
  put(out, std::string_view(c.doing.phase));
  put(out, std::string_view(c.doing.layer));
  put(out, data);
  return out;
}

Call unpacked(std::string_view bytes) {
  Reader in(bytes);
  Call c;
  c.operation = in.number<Call::Operation>();
  c.type = in.number<DType>();
  c.op = in.number<Reduce>();
  c.peer = in.number<int32_t>();
  c.color = in.number<int32_t>();
  c.key = in.number<int32_t>();
  c.members = in.number<int32_t>();
  c.row = in.number<int64_t>();
  c.out_bytes = in.number<int64_t>();
  c.send_counts = in.numbers();
  c.receive_counts = in.numbers();
  c.name = in.text();
  c.doing.step = in.number<int64_t>();
  c.doing.micro_batch = in.number<int64_t>();
  c.doing.may_be_long = in.number<int32_t>() != 0;
  c.doing.phase = in.text();
  c.doing.layer = in.text();
  c.data = in.text();
  const bool known = c.operation <= Call::Operation::name && c.type <= DType::u8 &&
                     (c.op == Reduce::sum || c.op == Reduce::max) && c.row >= 1 &&
                     c.out_bytes >= 0 && c.out_bytes <= kMaxCall;
  MG_CHECK(known && c.data.size() % static_cast<size_t>(size_of(c.type)) == 0 &&
               c.out_bytes % size_of(c.type) == 0,
           "a process of this run sent bytes that are not a valid call");
  return c;
}

}  // namespace megatron::comm::star
