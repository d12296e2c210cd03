#pragma once

#include <string>

namespace megatron::comm {

// What the MPI library of this program says of itself ("Open MPI v4.1.4, package: ..."); empty
// where it is built without MPI. Does not initialise MPI.
std::string mpi_library();

}  // namespace megatron::comm
