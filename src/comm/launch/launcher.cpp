#include "comm/launch/launcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/shell_line.h"

namespace megatron::comm::launch {
namespace {

// First run of digits and dots after `mark`: "4.1.4".
std::string version_behind(std::string_view text, std::string_view mark) {
  size_t at = text.find(mark);
  if (at == text.npos) return {};
  at = text.find_first_of("0123456789", at + mark.size());
  if (at == text.npos) return {};
  const size_t end = std::min(text.find_first_not_of("0123456789.", at), text.size());
  return std::string(text.substr(at, end - at));
}

std::vector<Option> open_mpi_options(const Launcher& launcher, const LaunchEnvironment& s) {
  const bool prrte = launcher.major() >= 5;
  const auto words = [prrte](std::vector<std::string> four, std::vector<std::string> five) {
    return prrte ? five : four;
  };
  std::vector<Option> options = {{{"-np", std::to_string(s.ranks)}, ""}};
  if (s.root) options.push_back({{"--allow-run-as-root"}, "this is root"});
  options.push_back({words({"--oversubscribe"}, {"--map-by", ":OVERSUBSCRIBE"}),
                     "there may be more ranks than cores"});
  options.push_back({{"--bind-to", "none"}, "a rank places its threads on cores itself"});
  if (s.container) {
    options.push_back(
        {words({"--mca", "btl_vader_single_copy_mechanism", "none"}, {"--mca", "smsc", "^cma"}),
         "a container may forbid reading another process's memory"});
  }
  return options;
}

}  // namespace

std::string_view name_of(Mpi mpi) {
  switch (mpi) {
    case Mpi::open_mpi: return "Open MPI";
    case Mpi::mpich: return "MPICH";
  }
  return "";
}

std::string_view debian_package_of(Mpi mpi) {
  switch (mpi) {
    case Mpi::open_mpi: return "openmpi-bin";
    case Mpi::mpich: return "mpich";
  }
  return "";
}

std::optional<Mpi> mpi_of(std::string_view text) {
  for (const Mpi mpi : {Mpi::open_mpi, Mpi::mpich}) {
    if (text.find(name_of(mpi)) != text.npos) return mpi;
  }
  return std::nullopt;
}

int Launcher::major() const {
  int number = 0;
  std::from_chars(version.data(), version.data() + version.size(), number);
  return number;
}

std::string Launcher::description() const {
  return fmt::format("{}{}{} ({})", name_of(mpi), version.empty() ? "" : " ", version, path);
}

std::optional<Launcher> launcher_of(const std::string& path, std::string_view text) {
  if (text.find("(Open MPI)") != text.npos || text.find("OpenRTE") != text.npos) {
    return Launcher{
        Mpi::open_mpi, path,
        version_behind(text, text.find("(Open MPI)") != text.npos ? "(Open MPI)" : "OpenRTE")};
  }
  if (text.find("HYDRA") != text.npos) {
    return Launcher{Mpi::mpich, path, version_behind(text, "Version:")};
  }
  return std::nullopt;
}

std::vector<std::string> launcher_names(std::optional<Mpi> mpi) {
  if (mpi == Mpi::open_mpi) {
    return {"mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.openmpi", "orterun"};
  }
  if (mpi == Mpi::mpich) {
    return {"mpiexec", "mpiexec.mpich", "mpiexec.hydra", "mpirun", "mpirun.mpich"};
  }
  return {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.mpich", "mpirun.mpich"};
}

std::vector<Option> launch_options(const Launcher& launcher, const LaunchEnvironment& environment) {
  if (launcher.mpi == Mpi::open_mpi) return open_mpi_options(launcher, environment);
  return {{{"-n", std::to_string(environment.ranks)}, ""}};
}

std::string explained(const std::vector<Option>& options) {
  std::string text;
  for (const Option& option : options) {
    if (option.reason.empty()) continue;
    text +=
        fmt::format("{}{} ({})", text.empty() ? "" : ", ", shell_line(option.words), option.reason);
  }
  return text;
}

}  // namespace megatron::comm::launch
