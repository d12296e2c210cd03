// The programs that start ranks under MPI on this machine: which one exists, and the options it
// needs. Pure functions: facts about the machine and the run are passed in as values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::comm::launch {

enum class Mpi { open_mpi, mpich };

std::string_view name_of(Mpi mpi);            // "Open MPI"
std::string_view debian_package_of(Mpi mpi);  // package that contains its launcher: "openmpi-bin"
std::optional<Mpi> mpi_of(
    std::string_view text);  // version text of a library: "Open MPI v4.1.4, ..."

struct Launcher {
  Mpi mpi = Mpi::open_mpi;
  std::string path, version;  // "/usr/bin/mpirun", "4.1.4"

  int major() const;                // 4
  std::string description() const;  // "Open MPI 4.1.4 (/usr/bin/mpirun)"
};

// Identifies a launcher by the output of `path --version`; none if it is not a known launcher.
std::optional<Launcher> launcher_of(const std::string& path, std::string_view version_text);

// Names to look for, the best first. mpi: only names of that MPI's launchers.
std::vector<std::string> launcher_names(std::optional<Mpi> mpi);

struct LaunchEnvironment {
  int ranks = 1;
  bool root = false, container = false;
};

struct Option {
  std::vector<std::string> words;  // {"--mca", "btl_vader_single_copy_mechanism", "none"}
  std::string reason;              // empty for words that need no explanation: -np
};

// Options between the launcher and the program.
std::vector<Option> launch_options(const Launcher& launcher, const LaunchEnvironment& environment);

// Formats the options that have a reason: "--allow-run-as-root (this is root), --bind-to none
// (...)".
std::string explained(const std::vector<Option>& options);

}  // namespace megatron::comm::launch
