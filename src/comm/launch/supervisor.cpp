#include "comm/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/signal_watch.h"
#include "comm/launch/channel.h"
#include "comm/launch/child.h"
#include "comm/launch/line_merger.h"
#include "comm/launch/run_record.h"

namespace megatron::comm::launch {
namespace {

constexpr double kGraceOfGuards = 10;  // seconds for ranks whose launcher ended before them

// Raises the file limit, since each rank is a connection.
void allow_files(int ranks) {
  rlimit limit;
  const auto needed = static_cast<rlim_t>(ranks) + 64;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Includes SIGHUP unless it is ignored, as under nohup, because a blocked signal would arrive even
// so.
Descriptor signals_of_launch() {
  struct sigaction hang_up{};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler == SIG_IGN) return signal_file({SIGINT, SIGTERM, SIGUSR1, SIGCHLD});
  return signal_file({SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD});
}

// A connection from its first byte; its rank is known once its hello has arrived.
struct Peer {
  explicit Peer(Descriptor socket) : channel(std::move(socket)) {}
  Channel channel;
  int rank = -1;
  bool over = false;  // whether it reported its end
  bool gone = false;
};

class Supervisor {
 public:
  explicit Supervisor(const Job& job)
      : job_(job),
        listener_(listen()),
        signals_(signals_of_launch()),
        record_(job.ranks),
        out_lines_(job.ranks, job.prefix),
        error_lines_(job.ranks, job.prefix) {
    start();
  }

  int run() {
    while (!finished()) {
      wait();
      for (const int signal : read_signals(signals_)) on_signal(signal);
      reap();
      accept_guards();
      for (const auto& peer : peers_) serve(*peer);
      read_launcher(launcher_out_, launcher_out_part_);
      read_launcher(launcher_err_, launcher_err_part_);
      do_what_is_due();
    }
    ::kill(-launcher_, SIGKILL);  // everything left in its group on this host
    return record_.exit_code();
  }

  std::string verdict() const { return record_.verdict(); }

 private:
  void start() {
    Pipe out = make_pipe(), err = make_pipe();
    const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ChildOptions options;
    options.words = job_.words;
    options.set = {{kLaunchVariable, listener_.name}};
    options.input = ::isatty(STDIN_FILENO) != 0 ? nothing.get() : STDIN_FILENO;
    options.output = out.write.get();
    options.error_output = err.write.get();
    options.at_parents_end = SIGTERM;
    launcher_ = start_child(options);
    allow_files(job_.ranks);  // not for the launcher, which has the limits of this process
    launcher_out_ = std::move(out.read);
    launcher_err_ = std::move(err.read);
    for (const Descriptor* file : {&launcher_out_, &launcher_err_})
      ::fcntl(file->get(), F_SETFL, O_NONBLOCK);
  }

  bool finished() const {
    if (!launcher_noted_) return false;
    if (launcher_out_.open() || launcher_err_.open()) {
      if (now_seconds() < *launcher_over_ + 1) return false;
    }
    for (const auto& peer : peers_) {
      if (!peer->gone && now_seconds() < *launcher_over_ + kGraceOfGuards) return false;
    }
    return true;
  }

  void wait() {
    std::vector<pollfd> files = {{signals_.get(), POLLIN, 0},
                                 {listener_.socket.get(), POLLIN, 0},
                                 {launcher_out_.get(), POLLIN, 0},
                                 {launcher_err_.get(), POLLIN, 0}};
    const size_t fixed = files.size();
    for (const auto& peer : peers_) {
      const short events = static_cast<short>(POLLIN | (peer->channel.queued() > 0 ? POLLOUT : 0));
      files.push_back({peer->gone ? -1 : peer->channel.file(), events, 0});
    }
    const bool hurry = record_.failed() || record_.all_ended() || launcher_over_;
    ::poll(files.data(), files.size(), hurry ? 50 : 1000);
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (files[fixed + i].revents != 0 && peers_[i]->channel.queued() > 0)
        peers_[i]->channel.flush();
    }
  }

  // Waits for the reader, and so do the ranks. A terminal that has hung up accepts nothing more,
  // and the ranks may be saving.
  void print(int file, std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::write(file, text.data(), text.size());
      if (n < 0 && errno == EAGAIN) {
        pollfd entry{file, POLLOUT, 0};
        ::poll(&entry, 1, -1);
        continue;
      }
      if (n < 0 && errno == EIO && seen_[SIGHUP] > 0) return;
      MG_CHECK(n >= 0 || errno == EINTR, "the output cannot be written: {}", write_failure(errno));
      if (n > 0) text.remove_prefix(static_cast<size_t>(n));
    }
  }

  void say(const std::string& text) { print(STDERR_FILENO, "launch: " + text + "\n"); }

  void on_signal(int signal) {
    if (signal == SIGCHLD) return;
    // A shell and its terminal may both send SIGHUP, so a second one does not force the end.
    const bool once = signal == SIGUSR1 || signal == SIGHUP;
    if (++seen_[signal] > 1) {
      if (once) return;
      say("second signal: ending the ranks at once");
      record_.ask_to_end(now_seconds());
      to_ranks(SIGKILL, true);
      end_launcher_at_ = now_seconds() + 1;
      return;
    }
    to_ranks(signal, false);
    if (record_.started_count() == 0) {  // no program has started that could end by itself
      record_.ask_to_end(now_seconds());
      to_ranks(SIGKILL, true);
      end_launcher_at_ = now_seconds();
      return;
    }
    say(signal_name(signal) + " forwarded to the ranks" +
        (once ? "" : "; send it again to end them at once"));
  }

  void to_ranks(int signal, bool end) {
    for (const auto& peer : peers_) {
      if (!peer->gone && !peer->over)
        peer->channel.send({MessageKind::signal, signal, end ? 1 : 0, ""});
    }
    if (end) {
      ending_with_ = signal;
    } else {
      passed_on_.push_back(signal);
    }
  }

  void reap() {
    int status = 0;
    if (launcher_over_ || ::waitpid(launcher_, &status, WNOHANG) != launcher_) return;
    launcher_over_ = now_seconds();
    launcher_status_ = status;
  }

  void accept_guards() {
    for (Descriptor socket; (socket = accept(listener_)).open();)
      peers_.push_back(std::make_unique<Peer>(std::move(socket)));
  }

  void serve(Peer& peer) {
    if (peer.gone) return;
    std::vector<Message> messages;
    bool there = false;
    try {
      there = peer.channel.receive(messages);
      for (const Message& message : messages) take(peer, message);
    } catch (const Error& e) {
      say(fmt::format("a connection to the ranks' socket was closed: {}", e.what()));
    }
    if (there) return;
    peer.gone = true;
    if (peer.rank >= 0 && !peer.over) {
      flush_lines(peer.rank);
      record_.lost(peer.rank, now_seconds());
    }
  }

  void take(Peer& peer, const Message& message) {
    if (peer.rank < 0) return greet(peer, message);
    switch (message.kind) {
      case MessageKind::output:
        print(STDOUT_FILENO, out_lines_.add(peer.rank, message.text));
        break;
      case MessageKind::error_output:
        print(STDERR_FILENO, error_lines_.add(peer.rank, message.text));
        break;
      case MessageKind::ended:
        peer.over = true;
        flush_lines(peer.rank);
        record_.ended(peer.rank, message.a, message.b != 0, now_seconds());
        break;
      default: break;
    }
  }

  void greet(Peer& peer, const Message& message) {
    const int rank = message.a;
    MG_CHECK(message.kind == MessageKind::hello && message.b == job_.ranks && rank >= 0 &&
                 rank < job_.ranks && !known(rank),
             "it claims to be rank {} of {}, but the launcher was to start {} ranks", rank,
             message.b, job_.ranks);
    peer.rank = rank;
    record_.started();
    for (const int signal : passed_on_) peer.channel.send({MessageKind::signal, signal, 0, ""});
    if (ending_with_) peer.channel.send({MessageKind::signal, *ending_with_, 1, ""});
  }

  bool known(int rank) const {
    for (const auto& peer : peers_) {
      if (peer->rank == rank) return true;
    }
    return false;
  }

  void flush_lines(int rank) {
    print(STDOUT_FILENO, out_lines_.end(rank));
    print(STDERR_FILENO, error_lines_.end(rank));
  }

  void read_launcher(Descriptor& file, std::string& part) {
    char buffer[4096];
    while (file.open()) {
      const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n > 0) part.append(buffer, static_cast<size_t>(n));
      if (n <= 0) {
        file.close();
        if (!part.empty()) part += '\n';
      }
      for (size_t end = 0; (end = part.find('\n')) != part.npos; part.erase(0, end + 1))
        print(STDERR_FILENO, fmt::format("[{}] {}\n", job_.launcher_name, part.substr(0, end)));
    }
  }

  void do_what_is_due() {
    const double now = now_seconds();
    if (launcher_over_ && !launcher_noted_ && (record_.all_ended() || now > *launcher_over_ + 0.5))
      note_launcher();
    switch (record_.due(now)) {
      case Step::none: break;
      case Step::terminate: to_ranks(SIGTERM, true); break;
      case Step::kill:
        to_ranks(SIGKILL, true);
        if (!end_launcher_at_) end_launcher_at_ = now + 1;
        break;
    }
    if (record_.all_ended() && !released_) {
      released_ = true;
      for (const auto& peer : peers_) {
        if (!peer->gone) peer->channel.send({MessageKind::release, 0, 0, ""});
      }
      if (!end_launcher_at_) end_launcher_at_ = now + kGraceOfLauncher;
    }
    if (!launcher_over_ && end_launcher_at_ && now > *end_launcher_at_) {
      ::kill(-launcher_, launcher_signal_);
      launcher_signal_ = SIGKILL;
      end_launcher_at_ = now + 3;
    }
  }

  void note_launcher() {
    launcher_noted_ = true;
    record_.launcher_ended(launcher_status_, now_seconds());
  }

  const Job& job_;
  Listener listener_;
  Descriptor signals_, launcher_out_, launcher_err_;
  pid_t launcher_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;
  RunRecord record_;
  LineMerger out_lines_, error_lines_;
  std::string launcher_out_part_, launcher_err_part_;
  std::optional<double> launcher_over_, end_launcher_at_;
  std::optional<int> ending_with_;
  std::vector<int> passed_on_;
  int launcher_status_ = 0, launcher_signal_ = SIGTERM;
  std::map<int, int> seen_;  // count by signal
  bool released_ = false, launcher_noted_ = false;
};

}  // namespace

int supervise(const Job& job) {
  Supervisor supervisor(job);
  const int code = supervisor.run();
  const std::string verdict = supervisor.verdict();
  if (!verdict.empty()) fmt::print(stderr, "launch: {}\n", verdict);
  return code;
}

}  // namespace megatron::comm::launch
