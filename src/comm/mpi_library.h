#pragma once

#include <string>

namespace megatron::comm {

// Text with which this program's MPI library identifies itself ("Open MPI v4.1.4, package: ...");
// empty if it is built without MPI. Does not initialize MPI.
std::string mpi_library();

}  // namespace megatron::comm
