// Starts a program as ranks under the launcher of the MPI in this build.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace megatron::testing {

struct Launched {
  int code = 0;      // 128 + signal if a signal ended it; 124 after a timeout
  std::string text;  // output and errors of all ranks
};

inline bool has_mpi() { return *MEGATRON_MPI != '\0'; }
inline constexpr const char* kNoMpi =
    "this build has no MPI (MEGATRON_MPI, cmake/mpi.cmake), so nothing runs as processes";

// Settings that Open MPI needs in a container: run as root, more ranks than cores, no binding to
// cores, no ptrace copies between processes, no network and no ssh on one host. Suppresses reports
// of Open MPI's own leaks.
inline std::string container_settings() {
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
         "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none "
         "OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader "
         "OMPI_MCA_plm=isolated LSAN_OPTIONS=suppressions=" MEGATRON_TEST_SOURCES
         "/sanitizers/openmpi.supp:print_suppressions=0 ";
}

// Runs a shell command and captures both outputs.
inline Launched run_line(const std::string& line, int seconds) {
  const std::string whole =
      "timeout -k 5 " + std::to_string(seconds) + " env " + line + " 2>&1 </dev/null";
  std::FILE* const pipe = ::popen(whole.c_str(), "r");
  MG_CHECK(pipe != nullptr, "cannot run {}", whole);
  Launched launched;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    launched.text.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  launched.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return launched;
}

inline std::string this_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

// Runs the program as `ranks` processes. Arguments are parsed by a shell.
inline Launched launch(int ranks, const std::string& program, const std::string& arguments,
                       int seconds = 120) {
  return run_line(container_settings() + MEGATRON_MPIEXEC + " -n " + std::to_string(ranks) + " " +
                      program + " " + arguments,
                  seconds);
}

}  // namespace megatron::testing
