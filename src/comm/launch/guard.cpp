#include "comm/launch/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/shorten.h"
#include "comm/launch/channel.h"
#include "comm/launch/child.h"

namespace megatron::comm::launch {
namespace {

constexpr size_t kMaxQueued = size_t{4} << 20;  // above this, the program's pipes are not read
constexpr double kOwnEnd = 0.3;  // seconds for a program that calls MPI_Abort to report its code
// Seconds for output of child processes that the program left running.
constexpr double kLastBytes = 1;
constexpr double kWithoutLaunch = 1;  // seconds from SIGTERM to SIGKILL if launch is gone
constexpr double kUnreleased = 90;    // seconds that a guard may outlive its run

class Guard {
 public:
  Guard(const std::vector<std::string>& words, const ProcessPlace& place, const std::string& name)
      : channel_(connect(name)),
        signals_(signal_file({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2})) {
    channel_.send({MessageKind::hello, place.rank, place.size, ""});
    start(words);
  }

  int run() {
    while (!done()) {
      wait();
      for (const int signal : read_signals(signals_)) on_signal(signal);
      pump(output_, MessageKind::output);
      pump(error_output_, MessageKind::error_output);
      reap();
      listen_to_launch();
      do_what_is_due();
    }
    if (quiet_) return 0;
    return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
  }

 private:
  void start(const std::vector<std::string>& words) {
    Pipe out = make_pipe(), err = make_pipe();
    ChildOptions options;
    options.words = words;
    // The rank is the launcher's, not that of a torchrun around launch.
    options.unset = {kLaunchVariable, "RANK", "WORLD_SIZE"};
    options.output = out.write.get();
    options.error_output = err.write.get();
    options.at_parents_end = SIGKILL;
    try {
      child_ = start_child(options);
    } catch (const Error& e) {
      channel_.send(
          {MessageKind::error_output, 0, 0, fmt::format("error: {}\n", cut_short(e.what(), 4096))});
      finish(127 << 8);
    }
    output_ = std::move(out.read);
    error_output_ = std::move(err.read);
    for (const Descriptor* file : {&output_, &error_output_})
      ::fcntl(file->get(), F_SETFL, O_NONBLOCK);
  }

  bool done() const {
    if (!reported_) return false;
    return released_ || !launch_ || now_seconds() > ended_at_ + kUnreleased;
  }

  void wait() {
    const bool full = channel_.queued() > kMaxQueued;
    pollfd files[] = {
        {signals_.get(), POLLIN, 0},
        {launch_ ? channel_.file() : -1,
         static_cast<short>(POLLIN | (channel_.queued() > 0 ? POLLOUT : 0)), 0},
        {full ? -1 : output_.get(), POLLIN, 0},
        {full ? -1 : error_output_.get(), POLLIN, 0},
    };
    const bool hurry = term_at_ || kill_at_ || ended_at_ > 0;
    ::poll(files, 4, hurry ? 50 : 1000);
  }

  void on_signal(int signal) {
    if (signal == SIGCHLD) return;
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      // Signal from the launcher, or from the batch system.
      if (!term_at_) term_at_ = now_seconds() + kOwnEnd;
      by_launcher_ = true;
      passed_on_ = signal;
    } else {
      tell(signal);
    }
  }

  void tell(int signal) {
    if (child_ > 0 && !status_) ::kill(-child_, signal);
  }

  // Forwards the program's output; a file at its end is closed.
  void pump(Descriptor& file, MessageKind kind) {
    char buffer[kMaxBytes];
    while (file.open() && channel_.queued() <= kMaxQueued) {
      const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) {
        file.close();
      } else if (launch_) {
        channel_.send({kind, 0, 0, std::string(buffer, static_cast<size_t>(n))});
      }
    }
  }

  void reap() {
    if (child_ > 0 && !status_) {
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) != child_) return;
      ::kill(-child_, SIGKILL);  // child processes that it left running
      status_ = status;
      ended_at_ = now_seconds();
    }
    const bool silent = !output_.open() && !error_output_.open();
    if (status_ && !reported_ && (silent || now_seconds() > ended_at_ + kLastBytes))
      finish(*status_);
  }

  void finish(int status) {
    status_ = status;
    if (ended_at_ == 0) ended_at_ = now_seconds();
    reported_ = true;
    channel_.send({MessageKind::ended, status, asked_to_end_ ? 1 : 0, ""});
  }

  void listen_to_launch() {
    if (!launch_) return;
    channel_.flush();
    std::vector<Message> messages;
    const bool there = channel_.receive(messages);
    for (const Message& message : messages) {
      if (message.kind == MessageKind::release) {
        released_ = quiet_ = true;
      }
      if (message.kind != MessageKind::signal) continue;
      if (message.b != 0) asked_to_end_ = true;
      tell(message.a);
    }
    if (there) return;
    launch_ = false;
    asked_to_end_ = true;
    tell(SIGTERM);
    kill_at_ = now_seconds() + kWithoutLaunch;
  }

  void do_what_is_due() {
    const double now = now_seconds();
    if (term_at_ && now >= *term_at_) {
      if (!status_) asked_to_end_ = true;
      tell(passed_on_);
      term_at_.reset();
    }
    if (kill_at_ && now >= *kill_at_) tell(SIGKILL);
    if (by_launcher_ && reported_ && channel_.queued() == 0) released_ = true;
  }

  Channel channel_;
  Descriptor signals_, output_, error_output_;
  pid_t child_ = 0;
  std::optional<int> status_;
  std::optional<double> term_at_, kill_at_;
  double ended_at_ = 0;
  int passed_on_ = SIGTERM;
  bool launch_ = true, released_ = false, reported_ = false, asked_to_end_ = false,
       by_launcher_ = false, quiet_ = false;
};

}  // namespace

int guard(const std::vector<std::string>& words, const Variable& variable) {
  const auto name = variable(kLaunchVariable);
  MG_CHECK(
      name.has_value(),
      "--guard is for megatron launch itself, which starts it for each rank on its own machine; "
      "leave it out");
  const auto place = find_mpi_launch(variable).place;
  MG_CHECK(place.has_value(),
           "the launcher does not set an environment variable with the rank of a process; use the "
           "launcher of Open MPI or MPICH");
  return Guard(words, *place, *name).run();
}

}  // namespace megatron::comm::launch
