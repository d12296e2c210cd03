#include "comm/launch/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/clock.h"
#include "base/error.h"

namespace megatron::comm::launch {
namespace {

// Runs in the child: exec, or the errno of the failure.
int become(const ChildOptions& options, std::vector<char*>& argv, pid_t parent) {
  ::setpgid(0, 0);
  if (options.at_parents_end != 0) {
    ::prctl(PR_SET_PDEATHSIG, options.at_parents_end);
    if (::getppid() != parent) return ESRCH;
  }
  // Duplicates the files first, so that none is closed before it is used.
  const int files[] = {options.input, options.output, options.error_output};
  int copies[3];
  for (int i = 0; i < 3; ++i) {
    copies[i] = ::fcntl(files[i], F_DUPFD_CLOEXEC, 3);
    if (copies[i] < 0) return errno;
  }
  for (int i = 0; i < 3; ++i) {
    if (::dup2(copies[i], i) < 0) return errno;
  }
  for (const auto& [name, value] : options.set) ::setenv(name.c_str(), value.c_str(), 1);
  for (const std::string& name : options.unset) ::unsetenv(name.c_str());
  // This program ignores SIGXFSZ; SIGHUP stays as nohup may have set it.
  ::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvp(argv[0], argv.data());
  return errno;
}

}  // namespace

pid_t start_child(const ChildOptions& options) {
  std::vector<char*> argv;
  for (const std::string& word : options.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  Pipe news = make_pipe();
  const pid_t parent = ::getpid(), child = ::fork();
  MG_CHECK(child >= 0, "cannot start another process: {}", std::system_category().message(errno));
  if (child == 0) {
    const int error = become(options, argv, parent);
    [[maybe_unused]] const ssize_t written = ::write(news.write.get(), &error, sizeof error);
    ::_exit(127);
  }
  news.write.close();
  int error = 0;
  ssize_t n = 0;
  while ((n = ::read(news.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  MG_CHECK(n != sizeof error, "{} cannot be started: {}", options.words[0],
           std::system_category().message(error));
  return child;
}

std::optional<std::string> output_of(const std::vector<std::string>& words, double most_seconds) {
  Pipe out = make_pipe();
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ChildOptions options;
  options.words = words;
  options.input = nothing.get();
  options.output = options.error_output = out.write.get();
  pid_t child = 0;
  try {
    child = start_child(options);
  } catch (const Error&) {
    return std::nullopt;
  }
  out.write.close();
  const double end = now_seconds() + most_seconds;
  std::string text;
  char buffer[4096];
  bool whole = false;
  while (!whole && now_seconds() < end) {
    pollfd entry{out.read.get(), POLLIN, 0};
    if (::poll(&entry, 1, 100) <= 0) continue;
    const ssize_t n = ::read(out.read.get(), buffer, sizeof buffer);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    whole = n == 0;
  }
  ::kill(-child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!whole) return std::nullopt;
  return text;
}

Descriptor signal_file(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  Descriptor file(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  MG_CHECK(file.open(), "cannot create a signal file descriptor: {}",
           std::system_category().message(errno));
  return file;
}

std::vector<int> read_signals(const Descriptor& file) {
  std::vector<int> signals;
  signalfd_siginfo news;
  while (::read(file.get(), &news, sizeof news) == sizeof news)
    signals.push_back(static_cast<int>(news.ssi_signo));
  return signals;
}

}  // namespace megatron::comm::launch
