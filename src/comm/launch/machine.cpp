#include "comm/launch/machine.h"

#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/files.h"
#include "base/text_parts.h"
#include "comm/launch/child.h"

namespace megatron::comm::launch {
namespace {

constexpr double kVersionSeconds = 20;  // seconds for a launcher to print its version

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool in_container() {
  if (::access("/.dockerenv", F_OK) == 0 || ::access("/run/.containerenv", F_OK) == 0 ||
      is_set("container") || is_set("KUBERNETES_SERVICE_HOST")) {
    return true;
  }
  try {
    const std::string groups = read_file("/proc/1/cgroup");
    return groups.find("docker") != groups.npos || groups.find("kubepods") != groups.npos ||
           groups.find("lxc") != groups.npos;
  } catch (const Error&) {
    return false;
  }
}

std::optional<std::string> in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view folders = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  while (!folders.empty()) {
    const std::string_view folder = take_until(folders, ':');
    const std::string file = fmt::format("{}/{}", folder, name);
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return std::nullopt;
}

std::optional<Launcher> launcher_at(const std::string& path) {
  const auto text = output_of({path, "--version"}, kVersionSeconds);
  return text ? launcher_of(path, *text) : std::nullopt;
}

[[noreturn]] void no_launcher(const std::string& wanted, std::optional<Mpi> mpi,
                              const std::string& others) {
  fail(
      "{} is found in PATH{}; install {} (Debian: apt-get install {}), or train with ranks as "
      "threads, without MPI: megatron train --ranks N",
      wanted, others.empty() ? "" : " (but " + others + ")", mpi ? name_of(*mpi) : "an MPI",
      debian_package_of(mpi.value_or(Mpi::open_mpi)));
}

Launcher named_launcher(const std::string& path) {
  MG_CHECK(::access(path.c_str(), X_OK) == 0, "--launcher {}: this is not an executable program",
           path);
  const auto launcher = launcher_at(path);
  MG_CHECK(launcher.has_value(),
           "--launcher {}: `{} --version` does not say Open MPI or MPICH (HYDRA)", path, path);
  return *launcher;
}

}  // namespace

Launcher find_launcher(const std::string& wanted, std::optional<Mpi> mpi) {
  if (wanted.find('/') != wanted.npos) return named_launcher(wanted);
  MG_CHECK(wanted == "auto" || wanted == "mpirun" || wanted == "mpiexec",
           "--launcher is {}; it must be auto, mpirun, mpiexec or a path with a /", wanted);
  std::string others;
  for (const std::string& name : launcher_names(mpi)) {
    if (wanted != "auto" && !name.starts_with(wanted)) continue;
    const auto path = in_path(name);
    const auto launcher = path ? launcher_at(*path) : std::nullopt;
    if (!launcher) continue;
    if (!mpi || launcher->mpi == *mpi) return *launcher;
    others = "there is " + launcher->description() +
             ", which belongs to a different MPI than "
             "this program's";
  }
  no_launcher(fmt::format("no {} of {}", wanted == "auto" ? "launcher" : wanted,
                          mpi ? name_of(*mpi) : "an MPI"),
              mpi, others);
}

LaunchEnvironment launch_environment(int ranks) {
  return {.ranks = ranks, .root = ::geteuid() == 0, .container = in_container()};
}

}  // namespace megatron::comm::launch
