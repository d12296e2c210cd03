#include "bench/temporary_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace megatron::bench {
namespace {

// A pipe whose ends are closed with it.
struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) read = ends[0], write = ends[1];
  }
  ~Pipe() {
    close(read);
    close(write);
  }
  Pipe(const Pipe&) = delete;
  explicit operator bool() const { return read >= 0; }
  static void close(int& end) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
};

// Runs in the child process, which creates the folder itself so that neither can outlive the other:
// answers with errno (0: created) and the path, waits until every write end of the first pipe is
// closed, then removes the folder.
[[noreturn]] void keep_while_alive(std::string path, Pipe& alive, Pipe& answer) {
  ::setsid();  // so that signals of the terminal do not reach it
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  Pipe::close(alive.write);
  const int error = ::mkdtemp(path.data()) != nullptr ? 0 : errno;
  const bool answered =
      ::write(answer.write, &error, sizeof(error)) == sizeof(error) &&
      ::write(answer.write, path.data(), path.size()) == static_cast<ssize_t>(path.size());
  // A reader of this program's output must not wait for this process.
  if (const int nothing = ::open("/dev/null", O_RDWR); nothing >= 0)
    for (const int stream : {0, 1, 2}) ::dup2(nothing, stream);
  // The same holds for a reader of another pipe.
  ::dup2(alive.read, 3);
  ::close_range(4, ~0U, 0);
  char byte = 0;
  while (answered && ::read(3, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  if (error == 0) std::filesystem::remove_all(path, ignored);
  ::_exit(0);
}

// Reads everything until the pipe's other end is closed.
std::string read_all(int pipe) {
  std::string all;
  char bytes[256];
  ssize_t count = 0;
  while ((count = ::read(pipe, bytes, sizeof(bytes))) > 0 || (count < 0 && errno == EINTR))
    if (count > 0) all.append(bytes, static_cast<size_t>(count));
  return all;
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& parent, const std::string& name,
                                 const std::string& flag, bool keep)
    : path_(parent + "/" + name + "-XXXXXX") {
  int error = 0;
  Pipe alive, answer;
  if (!keep && alive && answer) remover_ = ::fork();
  if (remover_ == 0 && !keep && alive && answer) keep_while_alive(path_, alive, answer);
  if (remover_ > 0) {
    Pipe::close(answer.write);
    const std::string text = read_all(answer.read);
    MG_CHECK(text.size() >= sizeof(error),
             "cannot make a folder in {} ({}): the process that removes it has ended", parent,
             flag);
    std::memcpy(&error, text.data(), sizeof(error));
    path_ = text.substr(sizeof(error));
    alive_ = std::exchange(alive.write, -1);
  } else if (::mkdtemp(path_.data()) == nullptr) {
    error = errno;
  }
  if (error == 0) return;
  if (alive_ >= 0) ::close(std::exchange(alive_, -1));
  if (remover_ > 0) ::waitpid(remover_, nullptr, 0);
  fail("cannot make a folder in {} ({}): {}", parent, flag, std::system_category().message(error));
}

TemporaryFolder::~TemporaryFolder() {
  if (alive_ < 0) return;
  ::close(alive_);
  if (remover_ > 0) ::waitpid(remover_, nullptr, 0);
}

}  // namespace megatron::bench
