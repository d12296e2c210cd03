#include "bench/temporary_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace megatron::bench {
namespace {

// Of the other process: waits until nobody holds the pipe's end for writing, then removes.
[[noreturn]] void remove_when_alone(const std::string& path, int pipe) {
  ::setsid();  // a terminal's signals are not for it
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  // Who reads what this program prints does not wait for this process.
  if (const int nothing = ::open("/dev/null", O_RDWR); nothing >= 0)
    for (const int stream : {0, 1, 2}) ::dup2(nothing, stream);
  // Nor does one that waits for the end of another pipe.
  ::dup2(pipe, 3);
  ::close_range(4, ~0U, 0);
  char byte = 0;
  while (::read(3, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  ::_exit(0);
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& parent, const std::string& name,
                                 const std::string& flag, bool keep)
    : path_(parent + "/" + name + "-XXXXXX") {
  MG_CHECK(::mkdtemp(path_.data()) != nullptr, "cannot make a folder in {} ({}): {}", parent, flag,
           std::system_category().message(errno));
  if (keep) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  remover_ = ::fork();
  if (remover_ == 0) {
    ::close(ends[1]);
    remove_when_alone(path_, ends[0]);
  }
  ::close(ends[0]);
  alive_ = ends[1];
}

TemporaryFolder::~TemporaryFolder() {
  if (alive_ < 0) return;
  ::close(alive_);
  if (remover_ > 0) ::waitpid(remover_, nullptr, 0);
}

}  // namespace megatron::bench
