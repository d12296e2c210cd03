// The programs that start ranks under MPI on this machine: which one there is, and the options it
// needs. Pure: what is known of machine and run comes in as values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::comm::launch {

enum class Mpi { open_mpi, mpich };

std::string_view name_of(Mpi mpi);            // "Open MPI"
std::string_view debian_package_of(Mpi mpi);  // what has its launcher: "openmpi-bin"
std::optional<Mpi> mpi_of(
    std::string_view text);  // from a library's own words: "Open MPI v4.1.4, ..."

struct Launcher {
  Mpi mpi = Mpi::open_mpi;
  std::string path, version;  // "/usr/bin/mpirun", "4.1.4"

  int major() const;                // 4
  std::string description() const;  // "Open MPI 4.1.4 (/usr/bin/mpirun)"
};

// From what `path --version` prints; nothing where that is no launcher that is known.
std::optional<Launcher> launcher_of(const std::string& path, std::string_view version_text);

// Names to look for, the best first. mpi: only names that can be this one's.
std::vector<std::string> launcher_names(std::optional<Mpi> mpi);

struct Situation {
  int ranks = 1;
  bool root = false, container = false;
};

struct Option {
  std::vector<std::string> words;  // {"--mca", "btl_vader_single_copy_mechanism", "none"}
  std::string reason;              // empty for what is plain: -np
};

// What stands between the launcher and the program.
std::vector<Option> launch_options(const Launcher& launcher, const Situation& situation);

// "--allow-run-as-root (this is root), --bind-to none (...)": the options that have a reason.
std::string explained(const std::vector<Option>& options);

}  // namespace megatron::comm::launch
