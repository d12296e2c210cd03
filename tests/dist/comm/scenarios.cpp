#include "dist/comm/scenarios.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/philox.h"
#include "dist/ranks.h"

namespace megatron::testing {

namespace {

using comm::Group;
using comm::Processes;
using comm::Reduce;

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64,
                            DType::i32, DType::i16, DType::i8,   DType::u16, DType::u8};

// Random calls with random tensors. Values that must be equal on all ranks come from `shared`.
class RandomCalls {
 public:
  RandomCalls(Group& world, uint64_t seed)
      : world_(world),
        shared_(seed, "calls"),
        own_(seed, fmt::format("rank {}", world.rank())),
        runtime_({DeviceKind::cpu, 0}, 2) {}

  std::string digest(int calls) {
    const auto part =
        world_.split(static_cast<int>(pick(2)), world_.rank() % 2 ? 0 : 1, world_.size());
    const auto halves = world_.split(world_.rank() % 2, static_cast<int>(own_.bits(++drawn_) % 5),
                                     (world_.size() + 1 - world_.rank() % 2) / 2);
    Group* const groups[] = {&world_, part.get(), halves.get()};
    for (int i = 0; i < calls; ++i) call(*groups[pick(3)]);
    return fmt::format("{:016x}", hash_);
  }

  void large_reduction() {
    Tensor t = random_tensor(4'500'001, DType::f32);
    world_.all_reduce(t, Reduce::sum, runtime_.stream(), "large");
    keep(t);
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t pick(uint64_t n) { return shared_.bits(++picked_) % n; }

  Tensor random_tensor(int64_t n, DType type) {
    Tensor t = make(runtime_, {n}, type);
    std::vector<double> values(static_cast<size_t>(n));
    for (double& value : values) {
      const uint64_t bits = own_.bits(++drawn_);
      value = is_floating(type) ? std::ldexp(static_cast<double>(bits >> 40) / (1 << 24) - 0.5,
                                             static_cast<int>(bits % 14) - 7)
                                : static_cast<double>(bits % 60);
    }
    copy_from(t, values);
    return t;
  }

  void keep(const Tensor& t) {
    const std::string_view bytes(static_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes()));
    for (const char c : bytes) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }

  void call(Group& group) {
    const DType type = pick(2) == 0 ? DType::f32 : kTypes[pick(10)];
    const Reduce op = pick(2) == 0 ? Reduce::sum : Reduce::max;
    const int64_t n = std::array<int64_t, 6>{1, 7, 64, 1000, 20'000, 70'001}[pick(6)];
    const int ranks = group.size(), next = (group.rank() + 1) % ranks,
              before = (group.rank() + ranks - 1) % ranks;
    const int root = static_cast<int>(pick(12)) % ranks;
    Stream& stream = runtime_.stream();
    Tensor t = random_tensor(n, type), out = t;
    switch (pick(6)) {
      case 0: group.all_reduce(t, op, stream, "reduce"); break;
      case 1: group.all_gather(t, out = make(runtime_, {ranks * n}, type), stream, "gather"); break;
      case 2:
        group.reduce_scatter(random_tensor(ranks * n, type), out, op, stream, "scatter");
        break;
      case 3: out = rows_to_all(group, n, type); break;
      case 4: group.broadcast(t, root, stream, "broadcast"); break;
      default:
        group.send(t, next, stream, "ring");
        group.recv(out = make(runtime_, {n}, type), before, stream, "ring");
    }
    keep(out);
  }

  Tensor rows_to_all(Group& group, int64_t n, DType type) {
    const auto rows = [&](int from, int to) { return (n + from * 5 + to * 3) % 11; };
    std::vector<int64_t> send, receive;
    for (int r = 0; r < group.size(); ++r) {
      send.push_back(rows(group.rank(), r));
      receive.push_back(rows(r, group.rank()));
    }
    const auto total = [](const std::vector<int64_t>& counts) {
      return std::accumulate(counts.begin(), counts.end(), int64_t{0});
    };
    Tensor out = make(runtime_, {total(receive)}, type);
    group.all_to_all(random_tensor(total(send), type), out, send, receive, runtime_.stream(),
                     "rows");
    return out;
  }

  Group& world_;
  RandomStream shared_, own_;
  Runtime runtime_;
  uint64_t picked_ = 0, drawn_ = 0, hash_ = 0xcbf29ce484222325u;
};

// Each line is one write, so that lines of different ranks do not mix.
void say(const std::string& line) {
  std::fwrite((line + "\n").c_str(), 1, line.size() + 1, stdout);
  std::fflush(stdout);
}

int place(Processes& processes) {
  processes.run(processes.size(), [&](Group& world) {
    say(fmt::format("rank {} of {}, {}", world.rank(), world.size(), processes.description()));
  });
  return 0;
}

int digests(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    const std::string text = digest_of_collectives(world, 1, 100);
    say(fmt::format("rank {} got {}", world.rank(), text));
  });
  return 0;
}

int large_digest(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    const std::string text = digest_of_large_reduction(world);
    say(fmt::format("rank {} got {}", world.rank(), text));
  });
  return 0;
}

int fail_alike(Processes& processes) {
  return tell(processes, 2, [] { fail("no flag --sedd"); });
}

int fail_alone(Processes& processes) {
  return tell(processes, 5, [&] {
    processes.run(processes.size(), [](Group& world) {
      MG_CHECK(world.rank() != 1, "disk 7 is full");
      world.barrier("step 3");
    });
  });
}

// The exception escapes the scope of the Processes.
int fail_unwinding(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    MG_CHECK(world.rank() != 1, "disk 8 is full");
    world.barrier("step 4");
  });
  return 0;
}

int end_early(Processes& processes) {
  return tell(processes, 6, [&] {
    processes.run(processes.size(), [](Group& world) {
      if (world.rank() == 1) return;
      Runtime runtime({DeviceKind::reference, 0}, 1);
      world.all_reduce(make(runtime, {1}, DType::f32, {1.0}), Reduce::sum, runtime.stream(),
                       "step 5");
    });
  });
}

int send_to_nobody(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const int64_t n = 4 << 20;
    if (world.rank() == 0)
      world.send(make(runtime, {n}, DType::u8), 1, runtime.stream(), "activations 9");
  });
  return 0;
}

int mismatched_message(Processes& processes) {
  return tell(processes, 7, [&] {
    processes.run(processes.size(), [](Group& world) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
      if (world.rank() == 0) {
        world.send(t, 1, runtime.stream(), "forward 3");
        world.barrier("never");
      } else {
        world.recv(t, 0, runtime.stream(), "forward 4");
      }
    });
  });
}

// The CPU time of a rank that waits for a second.
int wait_idly(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    world.barrier("start");
    const std::clock_t before = std::clock();
    const double so_far = world.seconds();
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    world.barrier("late");
    if (world.rank() == 1) {
      say(fmt::format("waited {:.3f} s, computed {:.3f} s", world.seconds() - so_far,
                      static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC));
    }
  });
  return 0;
}

// A tensor of 2.5 GiB as one message, and one of 2.7 GiB by all_gather.
int huge(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const int64_t n = int64_t{5} << 29;
    const auto byte = [](int64_t i) { return static_cast<uint8_t>((i >> 20) * 7 + i % 13); };
    const auto count_wrong = [&](const Tensor& t, auto&& expected) {
      const auto bytes = t.span<uint8_t>();
      int64_t wrong = 0;
      for (int64_t i = 0; i < t.elements(); ++i)
        wrong += bytes[static_cast<size_t>(i)] != expected(i);
      return wrong;
    };
    int64_t wrong = 0;
    {
      Tensor t = make(runtime, {n}, DType::u8);
      if (world.rank() == 0) {
        const auto bytes = t.span<uint8_t>();
        for (int64_t i = 0; i < n; ++i) bytes[static_cast<size_t>(i)] = byte(i);
        world.send(t, 1, runtime.stream(), "huge");
      } else {
        world.recv(t, 0, runtime.stream(), "huge");
        wrong += count_wrong(t, byte);
      }
    }
    world.barrier("received");
    const int64_t block = int64_t{1400} << 20;
    Tensor in = make(runtime, {block}, DType::u8),
           out = make(runtime, {block * world.size()}, DType::u8);
    for (int64_t i = 0; i < block; ++i)
      in.span<uint8_t>()[static_cast<size_t>(i)] = static_cast<uint8_t>(byte(i) + world.rank());
    world.all_gather(in, out, runtime.stream(), "huge");
    wrong += count_wrong(
        out, [&](int64_t i) { return static_cast<uint8_t>(byte(i % block) + i / block); });
    MG_CHECK(wrong == 0, "{} bytes differ on rank {}", wrong, world.rank());
    say(fmt::format("rank {}: {} and {} bytes arrived", world.rank(), n, out.bytes()));
  });
  return 0;
}

}  // namespace

int tell(Processes& processes, int code, const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    processes.wait_for_lead();
    say(fmt::format("error: {}", error.what()));
    processes.abort(code);
    return code;
  }
}

std::string digest_of_collectives(Group& world, uint64_t seed, int calls) {
  return RandomCalls(world, seed).digest(calls);
}

std::string digest_of_large_reduction(Group& world) {
  RandomCalls calls(world, 2);
  calls.large_reduction();
  return calls.text();
}

int run_scenario(const std::string& name, Processes& processes) {
  static const std::map<std::string, int (*)(Processes&)> scenarios = {
      {"place", place},
      {"digests", digests},
      {"large-digest", large_digest},
      {"fail-alike", fail_alike},
      {"fail-alone", fail_alone},
      {"fail-unwinding", fail_unwinding},
      {"end-early", end_early},
      {"send-to-nobody", send_to_nobody},
      {"mismatched-message", mismatched_message},
      {"wait-idly", wait_idly},
      {"huge", huge}};
  const auto found = scenarios.find(name);
  return found != scenarios.end() ? found->second(processes) : run_hang_scenario(name, processes);
}

}  // namespace megatron::testing
