// The programs that start ranks under MPI: which one a machine has, and the options it needs. Pure:
// what is known of machine and run comes in as values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::comm::launch {

enum class Mpi { open_mpi, mpich, intel_mpi, slurm };

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

// Names to look for, the best first. mpi: only names that can be this one's; slurm: srun.
std::vector<std::string> launcher_names(std::optional<Mpi> mpi);

struct Host {
  std::string name;
  int slots = 1;  // ranks that it takes
};

// "a:4,b:4"; without ":N" a host has one slot. Throws Error naming the part that is wrong.
std::vector<Host> parse_hosts(std::string_view text);

constexpr int kMostRanks = 65536;
constexpr int kMostRanksPerCore = 32;  // on this machine, beyond which it would only thrash

struct Situation {
  int ranks = 1;
  std::vector<Host> hosts;    // none: this machine, or what the batch system has given
  bool batch_system = false;  // inside an allocation, whose hosts the launcher finds by itself
  int cores = 1;              // of this machine, without hyper-threads
  bool root = false, container = false;
  std::vector<std::string> variables;  // those that are set and that ranks on other hosts need
  std::optional<Mpi> program_mpi;      // what the program is built with
  std::vector<std::string> slurm_mpi_types;        // as `srun --mpi=list` names them
  std::optional<std::string> slurm_cpus_per_task;  // SLURM_CPUS_PER_TASK
};

struct Option {
  std::vector<std::string> words;  // {"--mca", "btl_vader_single_copy_mechanism", "none"}
  std::string reason;              // empty for what is plain: -np
};

// What stands between the launcher and the program. Throws Error for what this launcher cannot do
// (more ranks than slots or than the machine can carry, hosts for srun, uneven slots for Intel
// MPI).
std::vector<Option> launch_options(const Launcher& launcher, const Situation& situation);

// Adds what carries the variable kListenAddressVariable (channel.h) to ranks on other hosts, where the
// launcher does not do so by itself.
void export_rendezvous(const Launcher& launcher, std::vector<Option>& options);

// Of the names of the variables that are set, those that ranks on other hosts get too.
std::vector<std::string> exported_variables(const std::vector<std::string>& names);

// "--allow-run-as-root (this is root), --bind-to none (...)": the options that have a reason.
std::string explained(const std::vector<Option>& options);

// The words as a shell would need them.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace megatron::comm::launch
