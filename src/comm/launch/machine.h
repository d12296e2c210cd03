// Properties of this machine: launchers, root, containers.
#pragma once

#include <optional>
#include <string>

#include "comm/launch/launcher.h"

namespace megatron::comm::launch {

// wanted: "auto" (any), "mpirun", "mpiexec", or a path. mpi: only a launcher of this MPI is
// accepted. Throws Error naming what to install.
Launcher find_launcher(const std::string& wanted, std::optional<Mpi> mpi);

LaunchEnvironment launch_environment(int ranks);

}  // namespace megatron::comm::launch
