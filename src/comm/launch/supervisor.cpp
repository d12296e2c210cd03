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
#include <deque>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "comm/launch/channel.h"
#include "comm/launch/child.h"
#include "comm/launch/line_merger.h"
#include "comm/launch/run_record.h"
#include "comm/launch/text_queue.h"

namespace megatron::comm::launch {
namespace {

constexpr double kSlowStart = 15;      // seconds until a missing rank is mentioned
constexpr double kNoStart = 120;       // until it is given up, but for those that wait in a queue
constexpr double kGraceOfGuards = 10;  // for ranks whose launcher has gone before them

constexpr double kHeld = 0.5;  // lines of the launcher

// Each rank is a connection.
void allow_files(int ranks) {
  rlimit limit;
  const auto needed = static_cast<rlim_t>(ranks) + 64;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A connection, from its first byte; its rank is known when its hello has come.
struct Peer {
  explicit Peer(Descriptor socket) : channel(std::move(socket)) {}
  Channel channel;
  int rank = -1;
  bool over = false;  // told its end
  bool gone = false;
};

class Supervisor {
 public:
  explicit Supervisor(const Job& job)
      : job_(job),
        listener_(listen(job.other_hosts)),
        signals_(signal_file({SIGINT, SIGTERM, SIGUSR1, SIGCHLD})),
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
      print_launcher_lines();
    }
    ::kill(-launcher_, SIGKILL);  // whatever it left in its group on this host
    return record_.exit_code();
  }

  std::string verdict() const { return record_.verdict(); }

 private:
  void start() {
    Pipe out = make_pipe(), err = make_pipe();
    const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ChildOptions options;
    options.words = job_.words;
    options.set = {{kMeetingVariable, listener_.meeting.text()}};
    options.input = ::isatty(STDIN_FILENO) != 0 ? nothing.get() : STDIN_FILENO;
    options.output = out.write.get();
    options.error_output = err.write.get();
    options.at_parents_end = SIGTERM;
    launcher_ = start_child(options);
    allow_files(job_.ranks);  // not for the launcher: it got the limits of this process
    started_at_ = now_seconds();
    launcher_out_ = std::move(out.read);
    launcher_err_ = std::move(err.read);
    for (const Descriptor* file : {&launcher_out_, &launcher_err_})
      ::fcntl(file->get(), F_SETFL, O_NONBLOCK);
  }

  bool finished() const {
    if (!launcher_noted_ || !held_.empty() || !stdout_.empty() || !stderr_.empty()) return false;
    if (launcher_out_.open() || launcher_err_.open()) {
      if (now_seconds() < *launcher_over_ + 1) return false;
    }
    for (const auto& peer : peers_) {
      if (!peer->gone && now_seconds() < *launcher_over_ + kGraceOfGuards) return false;
    }
    return true;
  }

  void wait() {
    const bool full = stdout_.full() || stderr_.full();
    std::vector<pollfd> files = {{signals_.get(), POLLIN, 0},
                                 {listener_.socket.get(), POLLIN, 0},
                                 {full ? -1 : launcher_out_.get(), POLLIN, 0},
                                 {full ? -1 : launcher_err_.get(), POLLIN, 0},
                                 {stdout_.empty() ? -1 : stdout_.file(), POLLOUT, 0},
                                 {stderr_.empty() ? -1 : stderr_.file(), POLLOUT, 0}};
    const size_t fixed = files.size();
    for (const auto& peer : peers_) {
      const short events =
          static_cast<short>((full ? 0 : POLLIN) | (peer->channel.queued() > 0 ? POLLOUT : 0));
      files.push_back({peer->gone || events == 0 ? -1 : peer->channel.file(), events, 0});
    }
    const bool hurry = !held_.empty() || record_.failed() || record_.all_ended() || launcher_over_;
    ::poll(files.data(), files.size(), hurry ? 50 : 1000);
    if (files[4].revents != 0) stdout_.write_some();
    if (files[5].revents != 0) stderr_.write_some();
    paused_ = full;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (files[fixed + i].revents != 0 && peers_[i]->channel.queued() > 0)
        peers_[i]->channel.flush();
    }
  }

  void say(const std::string& text) { stderr_.add("launch: " + text + "\n"); }

  void on_signal(int signal) {
    if (signal == SIGCHLD) return;
    int& seen = signal == SIGINT ? interrupts_ : signal == SIGTERM ? terms_ : users_;
    ++seen;
    if (signal == SIGUSR1 && seen > 1) return;
    if (seen > 1) {
      say("a second signal: the ranks end at once");
      record_.ask_to_end(now_seconds());
      to_ranks(SIGKILL, true);
      end_launcher_at_ = now_seconds() + 1;
      return;
    }
    to_ranks(signal, false);
    if (record_.started_count() == 0) {  // nobody yet who could end by himself
      record_.ask_to_end(now_seconds());
      to_ranks(SIGKILL, true);
      end_launcher_at_ = now_seconds();
      return;
    }
    const char* name = signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
    say(std::string(name) + " goes to the ranks" +
        (signal == SIGUSR1 ? "" : "; once more ends them at once"));
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
    for (;;) {
      Descriptor socket(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.open()) return;
      peers_.push_back(std::make_unique<Peer>(std::move(socket)));
    }
  }

  void serve(Peer& peer) {
    if (peer.gone || paused_) return;
    std::vector<Message> messages;
    bool there = false;
    try {
      there = peer.channel.receive(messages);
      for (const Message& message : messages) take(peer, message);
    } catch (const Error& e) {
      say(fmt::format("a connection to the port of the ranks is closed: {}", e.what()));
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
      case MessageKind::output: stdout_.add(out_lines_.add(peer.rank, message.text)); break;
      case MessageKind::error_output: add_errors(peer.rank, message.text); break;
      case MessageKind::ended:
        peer.over = true;
        flush_lines(peer.rank);
        record_.ended(peer.rank, message.a, message.b != 0, now_seconds());
        break;
      default: break;
    }
  }

  void greet(Peer& peer, const Message& message) {
    const std::string start = fmt::format("{} {} ", listener_.meeting.token, kProtocol);
    MG_CHECK(message.kind == MessageKind::hello && message.text.starts_with(start),
             "it is not of this run, or its megatron is of another version");
    const int rank = message.a;
    MG_CHECK(message.b == job_.ranks && rank >= 0 && rank < job_.ranks && !known(rank),
             "it says that it is rank {} of {}; the launcher started something else than {} ranks",
             rank, message.b, job_.ranks);
    peer.rank = rank;
    record_.started(rank, message.text.substr(start.size()));
    for (const int signal : passed_on_) peer.channel.send({MessageKind::signal, signal, 0, ""});
    if (ending_with_) peer.channel.send({MessageKind::signal, *ending_with_, 1, ""});
  }

  bool known(int rank) const {
    for (const auto& peer : peers_) {
      if (peer->rank == rank) return true;
    }
    return false;
  }

  void add_errors(int rank, const std::string& text) {
    const std::string lines = error_lines_.add(rank, text);
    note(rank, lines);
    stderr_.add(lines);
  }

  // The record keeps what a rank said last, without the prefix.
  void note(int rank, std::string_view lines) {
    const size_t skip = job_.prefix ? fmt::format("[{}] ", rank).size() : 0;
    while (!lines.empty()) {
      const size_t end = lines.find('\n');
      record_.wrote(rank, lines.substr(skip, end - skip));
      lines.remove_prefix(end + 1);
    }
  }

  void flush_lines(int rank) {
    stdout_.add(out_lines_.end(rank));
    const std::string lines = error_lines_.end(rank);
    note(rank, lines);
    stderr_.add(lines);
  }

  void read_launcher(Descriptor& file, std::string& part) {
    char buffer[4096];
    while (file.open() && !paused_) {
      const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n > 0) part.append(buffer, static_cast<size_t>(n));
      if (n <= 0) {
        file.close();
        if (!part.empty()) part += '\n';
      }
      for (size_t end = 0; (end = part.find('\n')) != part.npos; part.erase(0, end + 1))
        held_.push_back({now_seconds(), part.substr(0, end)});
    }
  }

  // What the launcher says waits for a moment: when a rank has told how it failed, the launcher
  // only tells it again, at length.
  void print_launcher_lines() {
    const bool all = !launcher_out_.open() && !launcher_err_.open() && launcher_noted_;
    const double now = now_seconds();
    while (!held_.empty() && (all || now > held_.front().first + kHeld)) {
      if (!record_.explained())
        stderr_.add(fmt::format("[{}] {}\n", job_.launcher_name, held_.front().second));
      held_.pop_front();
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
        if (!peer->gone)
          peer->channel.send({MessageKind::release, job_.tell_launcher ? 1 : 0, 0, ""});
      }
      if (!end_launcher_at_) end_launcher_at_ = now + kGraceOfLauncher;
    }
    if (!launcher_over_ && end_launcher_at_ && now > *end_launcher_at_) {
      ::kill(-launcher_, launcher_signal_);
      launcher_signal_ = SIGKILL;
      end_launcher_at_ = now + 3;
    }
    if (!record_.all_started() && !record_.failed()) wait_for_ranks(now);
  }

  // MPICH's launcher waits for ever for a host that it cannot reach.
  void wait_for_ranks(double now) {
    const double waited = now - started_at_;
    const auto tell = [&](double seconds, const char* what) {
      say(fmt::format("{} of {} ranks have started after {:.0f} s; {}", record_.started_count(),
                      job_.ranks, seconds, what));
    };
    if (!slow_told_ && waited > kSlowStart) {
      slow_told_ = true;
      tell(kSlowStart, "still waiting");
    }
    if (!job_.may_queue && waited > kNoStart) {
      tell(kNoStart, "the run ends");
      record_.ask_to_end(now);
      to_ranks(SIGKILL, true);
      end_launcher_at_ = now;
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
  std::deque<std::pair<double, std::string>> held_;  // lines of the launcher, with their times
  std::string launcher_out_part_, launcher_err_part_;
  TextQueue stdout_{STDOUT_FILENO}, stderr_{STDERR_FILENO};
  std::optional<double> launcher_over_, end_launcher_at_;
  std::optional<int> ending_with_;
  std::vector<int> passed_on_;
  double started_at_ = 0;
  int launcher_status_ = 0, launcher_signal_ = SIGTERM;
  int interrupts_ = 0, terms_ = 0, users_ = 0;
  bool paused_ = false, released_ = false, slow_told_ = false, launcher_noted_ = false;
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
