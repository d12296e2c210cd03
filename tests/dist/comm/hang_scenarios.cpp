#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include "base/error.h"
#include "comm/async.h"
#include "comm/doing.h"
#include "dist/comm/scenarios.h"
#include "dist/ranks.h"

namespace megatron::testing {

namespace {

using comm::Group;
using comm::Processes;
using comm::Reduce;

void reduce(Group& group, Runtime& runtime, std::string_view call) {
  Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
  group.all_reduce(t, Reduce::sum, runtime.stream(), call).wait(runtime.stream());
}

void sleep_for_ever(Group& world) {
  world.doing()->phase("forward");
  world.doing()->layer("attention");
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

using Body = void (*)(Group& world, Runtime& runtime);

// Runs processes whose calls may take half a second.
int with_limit(Processes& processes, Body body, comm::WaitLimits limits = 0.5) {
  return tell(processes, 7, [&] {
    processes.run(
        processes.size(),
        [&](Group& world) {
          Runtime runtime({DeviceKind::reference, 0}, 1);
          body(world, runtime);
        },
        limits);
  });
}

// Rank 1 is busy elsewhere while the others wait for it.
template <class F>
void late_in_dp(Group& world, Runtime& runtime, F meanwhile) {
  const auto group = world.split(0, world.rank(), world.size());
  group->set_name("dp");
  world.doing()->phase("backward");
  if (world.rank() == 1) meanwhile();
  reduce(*group, runtime, "grads");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the end of the wait is seen
}

int silent_for_a_while(Processes& processes) {
  return with_limit(processes,
                    [](Group& world, Runtime& runtime) {
                      late_in_dp(world, runtime, [&] {
                        world.doing()->phase("forward");
                        world.doing()->layer("attention");
                        std::this_thread::sleep_for(std::chrono::milliseconds(1000));
                      });
                    },
                    {20, 0.3});
}

int stopped_for_a_while(Processes& processes) {
  return with_limit(processes,
                    [](Group& world, Runtime& runtime) {
                      late_in_dp(world, runtime, [] {
                        const std::string line =
                            fmt::format("(sleep 1.5; kill -CONT {}) &", ::getpid());
                        if (std::system(line.c_str()) != 0) fail("cannot run {}", line);
                        ::raise(SIGSTOP);
                      });
                    },
                    {20, 0.3});
}

int silent_for_ever(Processes& processes) {
  return with_limit(processes,
                    [](Group& world, Runtime& runtime) {
                      late_in_dp(world, runtime, [&] { sleep_for_ever(world); });
                    },
                    {1, 0.3});
}

int sleep(Processes& processes) {
  return with_limit(processes, [](Group& world, Runtime& runtime) {
    const auto group = world.split(0, world.rank(), world.size());
    group->set_name("dp");
    if (world.rank() == 1) sleep_for_ever(world);
    world.doing()->phase("backward");
    world.doing()->micro_batch(3);
    reduce(*group, runtime, "grads");
  });
}

int never_sent(Processes& processes) {
  return with_limit(processes, [](Group& world, Runtime& runtime) {
    Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
    world.recv(t, 1 - world.rank(), runtime.stream(), world.rank() == 0 ? "forward" : "backward");
  });
}

int async_hang(Processes& processes) {
  return with_limit(processes, [](Group& world, Runtime& runtime) {
    const auto group = comm::async(world.split(0, world.rank(), world.size()));
    group->set_name("gradients");
    if (world.rank() == 1) sleep_for_ever(world);
    reduce(*group, runtime, "bucket");
  });
}

int skip(Processes& processes) {
  return with_limit(processes, [](Group& world, Runtime& runtime) {
    reduce(world, runtime, "first");
    if (world.rank() == 0) reduce(world, runtime, "second");
    world.barrier("third");
  });
}

// Ranks 0 and 2 are a pair. Rank 2 ends without calling it.
void end_in(Group& world, Runtime& runtime, bool async) {
  auto pair = world.split(world.rank() % 2, world.rank(), world.rank() == 1 ? 1 : 2);
  pair->set_name("pair");
  if (async) pair = comm::async(std::move(pair));
  if (world.rank() == 0) reduce(*pair, runtime, "gone");
}

int end_in_pair(Processes& processes) {
  return tell(processes, 7, [&] {
    processes.run(processes.size(), [](Group& world) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      end_in(world, runtime, false);
    });
  });
}

int end_async(Processes& processes) {
  return tell(processes, 7, [&] {
    processes.run(processes.size(), [](Group& world) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      end_in(world, runtime, true);
    });
  });
}

int killed(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    world.doing()->phase("backward");
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      std::raise(SIGKILL);
    }
    reduce(world, runtime, "grads");
  });
  return 0;
}

int throws(Processes& processes) {
  return tell(processes, 7, [&] {
    processes.run(processes.size(), [](Group& world) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      world.doing()->phase("backward");
      MG_CHECK(world.rank() != 0, "disk 7 is full");
      reduce(world, runtime, "grads");
    });
  });
}

// A rank fails while its call on an asynchronous group, which no other rank joins, is in flight.
int throws_async(Processes& processes) {
  return tell(processes, 7, [&] {
    processes.run(processes.size(), [](Group& world) {
      Runtime runtime({DeviceKind::reference, 0}, 1);
      const auto group = comm::async(world.split(0, world.rank(), world.size()));
      Tensor t = make(runtime, {2}, DType::f32, {1.0, 2.0});
      if (world.rank() == 1) return sleep_for_ever(world);
      const comm::Work work = group->all_reduce(t, Reduce::sum, runtime.stream(), "lonely");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      fail("disk 7 is full");
    });
  });
}

int launcher_ended(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    world.doing()->step(3);
    world.barrier("start");
    if (world.rank() == 0) ::kill(::getppid(), SIGTERM);
    sleep_for_ever(world);
  });
  return 0;
}

// One rank ends successfully a second before the others, which do not need it any more.
int late_end(Processes& processes) {
  processes.run(processes.size(), [](Group& world) {
    Runtime runtime({DeviceKind::reference, 0}, 1);
    const auto pair = world.split(world.rank() % 2, world.rank(), world.rank() == 1 ? 1 : 2);
    reduce(*pair, runtime, "all");
    if (world.rank() != 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    reduce(*pair, runtime, "all");
  });
  return 0;
}

// Ranks are threads of one process, without a launcher's processes.
int threads_sleep(Processes& processes) {
  return tell(processes, 7, [] {
    comm::run_ranks(
        2, [](Group& world) { world.rank() == 1 ? sleep_for_ever(world) : world.barrier("step"); },
        0.4);
  });
}

int threads_fail_and_sleep(Processes& processes) {
  return tell(processes, 7, [] {
    comm::run_ranks(
        2,
        [](Group& world) {
          if (world.rank() == 1) sleep_for_ever(world);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          fail("disk 7 is full");
        },
        0.4);
  });
}

}  // namespace

int run_hang_scenario(const std::string& name, Processes& processes) {
  static const std::map<std::string, int (*)(Processes&)> scenarios = {
      {"sleep", sleep},
      {"never-sent", never_sent},
      {"async-hang", async_hang},
      {"skip", skip},
      {"end-in-pair", end_in_pair},
      {"end-async", end_async},
      {"killed", killed},
      {"killed-signals-watched", killed},
      {"throws", throws},
      {"throws-async", throws_async},
      {"launcher-ended", launcher_ended},
      {"late-end", late_end},
      {"silent-for-a-while", silent_for_a_while},
      {"silent-for-ever", silent_for_ever},
      {"stopped-for-a-while", stopped_for_a_while},
      {"threads-sleep", threads_sleep},
      {"threads-fail-and-sleep", threads_fail_and_sleep}};
  return scenarios.at(name)(processes);
}

}  // namespace megatron::testing
