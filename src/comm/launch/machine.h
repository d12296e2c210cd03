// What there is on this machine: launchers, cores, root, containers, batch systems.
#pragma once

#include <optional>
#include <string>

#include "comm/launch/launcher.h"

namespace megatron::comm::launch {

// wanted: "auto" (srun inside a Slurm allocation, else any), "mpirun", "mpiexec", "srun", or a
// path. mpi: only a launcher of this one will do. Throws Error naming what to install.
Launcher find_launcher(const std::string& wanted, std::optional<Mpi> mpi);

// All but the ranks and hosts that were asked for.
Situation situation_here(const Launcher& launcher, std::optional<Mpi> program_mpi);

}  // namespace megatron::comm::launch
