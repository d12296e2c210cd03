// Processes that connect over TCP. Here each is a thread with its own Star.
#include "comm/tcp/star.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/doing.h"
#include "comm/member.h"
#include "comm/tcp/star_frames.h"
#include "dist/ranks.h"
#include "free_port.h"
#include "hang_limit.h"
#include "text.h"

namespace megatron {
namespace {

using comm::Group;
using comm::Reduce;
using comm::RendezvousAddress;
using comm::Star;
using testing::error_of;
using testing::free_port;
using testing::make;

// Runs body(star, rank) for each process. Returns the error of each, "" if there is none.
std::vector<std::string> each_process(int size, const std::function<void(Star&, int rank)>& body) {
  const RendezvousAddress place{"localhost", free_port()};
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto star = comm::make_star(place, r, size, 10);
      star->body_begins(60);
      try {
        body(*star, r);
        star->end();
      } catch (const Error& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class Stars : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Processes, Stars, ::testing::Values(2, 3, 4));

TEST_P(Stars, CallsAreThoseOfThreads) {
  const int size = GetParam();
  const auto errors = each_process(size, [size](Star& star, int rank) {
    Group& world = star.world();
    ASSERT_EQ(world.rank(), rank);
    ASSERT_EQ(world.size(), size);
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    Stream& stream = runtime.stream();
    const double sum = size * (size + 1) / 2.0;
    Tensor a = make(runtime, {3}, DType::bf16, {rank + 1.0, 0.5, -1});
    world.all_reduce(a, Reduce::sum, stream, "sum").wait(stream);
    EXPECT_EQ(to_doubles(a), (std::vector<double>{sum, size * 0.5, -1.0 * size}));
    Tensor all = make(runtime, {size}, DType::f32);
    world.all_gather(make(runtime, {1}, DType::f32, {rank + 1.0}), all, stream, "gather");
    EXPECT_EQ(to_doubles(all)[static_cast<size_t>(size - 1)], size);
    Tensor part = make(runtime, {1}, DType::f32);
    world.reduce_scatter(all, part, Reduce::max, stream, "scatter");
    EXPECT_EQ(to_doubles(part)[0], rank + 1);
    const std::vector<int64_t> counts(static_cast<size_t>(size), 1);
    Tensor moved = make(runtime, {size, 1}, DType::f32);
    world.all_to_all(all.view({size, 1}), moved, counts, counts, stream, "rows");
    EXPECT_EQ(to_doubles(moved), std::vector<double>(static_cast<size_t>(size), rank + 1));
    Tensor sent = make(runtime, {2}, DType::f32, {rank + 0.0, 7});
    world.broadcast(sent, size - 1, stream, "send");
    EXPECT_EQ(to_doubles(sent)[0], size - 1);
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    Tensor from = make(runtime, {1}, DType::f32);
    world.send(part, next, stream, "ring");
    world.recv(from, before, stream, "ring");
    EXPECT_EQ(to_doubles(from)[0], before + 1);
    const auto turned = world.split(0, -rank, size);
    turned->set_name("turned");
    EXPECT_EQ(turned->rank(), size - 1 - rank);
    turned->broadcast(sent, 0, stream, "first");
    const auto alone = turned->split(rank, 0, 1);
    EXPECT_EQ(alone->size(), 1);
    turned->barrier("last");
    EXPECT_EQ(turned->member()->failure(), "");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StarErrors, CallsThatDifferAreNamed) {
  const auto errors = each_process(2, [](Star& star, int rank) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    Tensor t = make(runtime, {2 + rank}, DType::f32);
    star.world().all_reduce(t, Reduce::sum, runtime.stream(), "uneven");
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("8 bytes of f32"), std::string::npos) << error;
    EXPECT_NE(error.find("12 bytes of f32"), std::string::npos) << error;
  }
}

// Rank 1 ends without a message. Rank 2 waits for it in a call, and rank 0 enters a call later.
TEST(StarErrors, AProcessThatEndsIsNamed) {
  const double began = now_seconds();
  const auto errors = each_process(3, [](Star& star, int rank) {
    star.world().barrier("begin");
    MG_CHECK(rank != 1, "gone");
    star.world().barrier("after");
  });
  EXPECT_EQ(errors[1], "gone");
  for (const size_t r : {size_t{0}, size_t{2}})
    EXPECT_NE(errors[r].find("rank 1 has exited"), std::string::npos) << errors[r];
  EXPECT_LT(now_seconds() - began, testing::kHangSeconds);
}

TEST(StarErrors, RanksThatDoNotComeAreNamed) {
  const RendezvousAddress place{"localhost", free_port()};
  std::string late;
  std::thread other([&] { late = error_of([&] { comm::make_star(place, 2, 3, 0.5); }); });
  const std::string text = error_of([&] { comm::make_star(place, 0, 3, 0.5); });
  other.join();
  EXPECT_NE(text.find("within 0.5 s: 1;"), std::string::npos) << text;
  EXPECT_NE(text.find("localhost:" + std::to_string(place.port)), std::string::npos) << text;
  EXPECT_EQ(late, text);
  const std::string nobody = error_of([&] { comm::make_star(place, 1, 3, 0.2); });
  EXPECT_NE(nobody.find("rank 0 cannot be reached at localhost:"), std::string::npos) << nobody;
}

// A process that fails before it connects sends the reason to the others, whichever rank it is.
TEST(StarErrors, ThoseThatWaitHearWhyAProcessDoesNotCome) {
  for (const int failed : {0, 1}) {
    const RendezvousAddress place{"localhost", free_port()};
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        errors[static_cast<size_t>(r)] = error_of([&] {
          if (r == failed) return comm::tell_failed_start(place, r, 3, "no flag --x", 60);
          comm::make_star(place, r, 3, 60);
        });
      });
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < 3; ++r)
      EXPECT_EQ(errors[static_cast<size_t>(r)],
                r == failed ? ""
                            : fmt::format("rank {} failed before the ranks had connected: no flag "
                                          "--x",
                                          failed));
  }
}

TEST(StarErrors, WhereAllFailNobodyWaits) {
  const RendezvousAddress place{"localhost", free_port()};
  const double began = now_seconds();
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      comm::tell_failed_start(place, r, 3, "no flag --x", 10 * testing::kHangSeconds);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(now_seconds() - began, testing::kHangSeconds);
}

TEST(StarErrors, ARankOfAnotherRunIsRefused) {
  const RendezvousAddress place{"localhost", free_port()};
  std::thread zero([&] { error_of([&] { comm::make_star(place, 0, 2, 1); }); });
  const std::string text = error_of([&] { comm::make_star(place, 3, 4, 1); });
  zero.join();
  EXPECT_NE(text.find("rank 0 has WORLD_SIZE 2, but this process is rank 3 of 4"),
            std::string::npos)
      << text;
}

TEST(StarErrors, TheAddressComesFromVariables) {
  const auto place = [](const std::string& port, const std::string& kept) {
    return comm::rendezvous_address([=](std::string_view name) -> std::optional<std::string> {
      if (name == "MASTER_ADDR") return "host0";
      if (name == "MASTER_PORT") return port;
      return name == "TORCHELASTIC_USE_AGENT_STORE" ? std::optional(kept) : std::nullopt;
    });
  };
  EXPECT_EQ(place("29500", "").port, 29500);
  EXPECT_EQ(place("29500", "").address, "host0");
  EXPECT_EQ(place("29500", "True").port, 29501);
  EXPECT_EQ(place("65535", "True").port, 65534);
  for (const char* wrong : {"0", "65536", "29500x", "-1", ""}) {
    const std::string text = error_of([&] { place(wrong, ""); });
    EXPECT_NE(text.find("MASTER_PORT"), std::string::npos) << text;
  }
}

TEST(StarErrors, ThePlaceMayBeAnAddressOfIpv6AndTellsTheRun) {
  const auto place = [](const std::string& address, const std::string& torch,
                        const std::string& slurm) {
    return comm::rendezvous_address([=](std::string_view name) -> std::optional<std::string> {
      if (name == "MASTER_ADDR") return address;
      if (name == "MASTER_PORT") return "29500";
      if (name == "TORCHELASTIC_RUN_ID") return torch;
      return name == "SLURM_JOB_ID" ? std::optional(slurm) : std::nullopt;
    });
  };
  EXPECT_EQ(place("[::1]", "", "").address, "::1");
  EXPECT_EQ(place("::1", "", "").run, "");
  EXPECT_EQ(place("h", "", "71").run, "SLURM_JOB_ID 71");
  EXPECT_EQ(place("h", "a", "71").run, "TORCHELASTIC_RUN_ID a");
}

TEST(StarErrors, RanksMeetOverIpv4AndIpv6) {
  const int six = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 loop{};
  loop.sin6_family = AF_INET6;
  loop.sin6_addr = in6addr_loopback;
  const bool has_six =
      six >= 0 && ::bind(six, reinterpret_cast<sockaddr*>(&loop), sizeof loop) == 0;
  if (six >= 0) ::close(six);
  for (const std::string address : {"127.0.0.1", "::1", "localhost"}) {
    if (address == "::1" && !has_six) continue;
    RendezvousAddress place{address, free_port()};
    std::thread zero([&] {
      const auto star = comm::make_star(place, 0, 2, 10);
      star->world().barrier("met");
      star->end();
    });
    const auto star = comm::make_star(place, 1, 2, 10);
    star->world().barrier("met");
    star->end();
    zero.join();
  }
}

// A host name has several addresses. A listener on one of them is found after others that refuse,
// and if none answers, the error names all of them.
TEST(StarErrors, AllAddressesOfANameAreTried) {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(file, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(file, 1), 0);
  ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &length);
  const RendezvousAddress place{"localhost", ntohs(address.sin_port)};
  EXPECT_EQ(error_of([&] { comm::connect_to(place, 2); }), "");
  ::close(file);
  const std::string text = error_of([&] { comm::connect_to(place, 0.1); });
  EXPECT_NE(text.find("Connection refused"), std::string::npos) << text;
  const std::string unknown =
      error_of([] { comm::connect_to({"no-such-host.invalid", 29500}, 0.1); });
  EXPECT_NE(unknown.find("no-such-host.invalid:29500"), std::string::npos) << unknown;
}

TEST(StarErrors, APortThatIsTakenIsNamed) {
  const int port = free_port();
  comm::Reception first(RendezvousAddress{"localhost", port});
  RendezvousAddress place{"localhost", port};
  place.port_by = "next to MASTER_PORT";
  const std::string text = error_of([&] { comm::make_star(place, 0, 2, 1); });
  EXPECT_NE(text.find(std::to_string(port) + " (next to MASTER_PORT): Address already in use"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("choose another MASTER_PORT"), std::string::npos) << text;
}

TEST(StarErrors, AProcessOfAnotherRunIsRefusedByName) {
  const int port = free_port();
  RendezvousAddress ours{"localhost", port}, theirs = ours, nobodys = ours;
  ours.run = "SLURM_JOB_ID 71";
  theirs.run = "SLURM_JOB_ID 72";
  std::string text;
  std::thread zero([&] {
    const auto star = comm::make_star(ours, 0, 2, 10);
    star->end();
  });
  text = error_of([&] { comm::make_star(theirs, 1, 2, 5); });
  comm::make_star(nobodys, 1, 2, 10)->end();  // accepted, because it names no run
  zero.join();
  EXPECT_NE(text.find("rank 0 belongs to the run 'SLURM_JOB_ID 71', but this process, rank 1, to "
                      "'SLURM_JOB_ID 72'"),
            std::string::npos)
      << text;
}

TEST(StarErrorsDeathTest, ARankThatDoesNotEndIsNamedAndAllEnd) {
  const auto run = [] {
    const RendezvousAddress place{"localhost", free_port()};
    std::thread one([&] {
      const auto star = comm::make_star(place, 1, 2, 10);
      star->body_begins(0.3);
      std::this_thread::sleep_for(std::chrono::seconds(30));
    });
    const auto star = comm::make_star(place, 0, 2, 10);
    star->body_begins(0.3);
    star->end();
    one.join();
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(2), "are still running: 1; all ranks are ended");
}

// Rank 0, where the calls are executed, logs which rank waits for which.
TEST(StarWaits, ForARankAreLoggedAndTheRunGoesOn) {
  const RendezvousAddress place{"localhost", free_port()};
  ::testing::internal::CaptureStderr();
  const auto rank = [&](int r) {
    const auto star = comm::make_star(place, r, 3, 10);
    star->body_begins({20, 0.2});
    Group& world = star->world();
    world.doing()->step(3);
    world.doing()->phase(r == 1 ? "data" : "backward");
    world.barrier("first");
    if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    world.barrier("second");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the end of the wait is seen
    star->end();
  };
  std::thread one([&] { rank(1); }), two([&] { rank(2); });
  rank(0);
  one.join();
  two.join();
  const std::string text = ::testing::internal::GetCapturedStderr();
  for (const char* part :
       {"s for rank 1 in barrier 'second' (call 2 of 'world') (step 3, backward), and 1 more wait",
        "rank 1: step 3, data; in no call for", "after barrier 'first' (call 1 of 'world')",
        "the wait for rank 1 ended after"})
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

// A connection from this host that sends these bytes and nothing else.
comm::launch::Descriptor stranger(int port, const std::string& bytes) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  for (const double until = now_seconds() + 5; now_seconds() < until;) {
    comm::launch::Descriptor file(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(file.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      EXPECT_EQ(::send(file.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
      return file;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "nobody listens";
  return comm::launch::Descriptor();
}

// Clients that speak another protocol, send nothing, send an impossible length, or claim a rank
// that is already connected.
TEST(StarErrors, HostileBytesHarmNobody) {
  const int port = free_port();
  const RendezvousAddress place{"localhost", port};
  std::unique_ptr<Star> zero, one;
  std::thread first([&] { zero = comm::make_star(place, 0, 2, 10); });
  std::vector<comm::launch::Descriptor> strangers;
  std::string huge(16, '\x7f');
  std::memcpy(huge.data(), "1CGM\1\0\0\0", 8);
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(), huge})
    strangers.push_back(stranger(port, bytes));
  for (const size_t closed : {size_t{0}, size_t{2}}) {
    char byte = 0;
    EXPECT_LE(::recv(strangers[closed].get(), &byte, 1, 0), 0);
  }
  one = comm::make_star(place, 1, 2, 10);
  first.join();
  std::thread there([&] {
    one->world().barrier("still");
    one->world().barrier("and after an impostor");
    one->end();
  });
  zero->world().barrier("still");  // rank 1 has connected
  comm::Line impostor = comm::connect_to(place, 5);
  const comm::star::Hello hello = comm::star::hello_of(1, 2, 1, "");
  impostor.send(static_cast<uint32_t>(comm::star::Kind::hello),
                {reinterpret_cast<const char*>(&hello), sizeof hello});
  EXPECT_FALSE(impostor.receive(comm::star::kMaxHello).has_value());
  zero->world().barrier("and after an impostor");
  zero->end();
  there.join();
}

}  // namespace
}  // namespace megatron
