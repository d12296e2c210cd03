#include "comm/launch/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "comm/launch/child.h"

namespace megatron::comm::launch {
namespace {

constexpr double kVersionSeconds = 20;  // for a launcher to tell its version

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool in_slurm() { return is_set("SLURM_JOB_ID"); }

bool in_batch_system() {
  return in_slurm() || is_set("PBS_NODEFILE") || is_set("LSB_HOSTS") ||
         is_set("LSB_DJOB_HOSTFILE") || is_set("PE_HOSTFILE");
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

// Cores that this process may use, hyper-threads of one core counted once: what Open MPI calls
// slots.
int usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    try {
      cores.insert(read_file(
          fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu)));
    } catch (const Error&) {
      cores.insert(std::to_string(cpu));
    }
  }
  return std::max(1, static_cast<int>(cores.size()));
}

std::optional<std::string> in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view folders = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  for (size_t at = 0; at <= folders.size();) {
    const size_t colon = std::min(folders.find(':', at), folders.size());
    const std::string file = fmt::format("{}/{}", folders.substr(at, colon - at), name);
    if (colon > at && ::access(file.c_str(), X_OK) == 0) return file;
    at = colon + 1;
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
  MG_CHECK(::access(path.c_str(), X_OK) == 0, "--launcher {}: there is no program of that name",
           path);
  const auto launcher = launcher_at(path);
  MG_CHECK(launcher.has_value(),
           "--launcher {}: `{} --version` does not say Open MPI, MPICH (HYDRA), Intel MPI or slurm",
           path, path);
  return *launcher;
}

std::vector<std::string> variables_set() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

std::vector<std::string> slurm_mpi_types(const std::string& srun) {
  const std::string text = output_of({srun, "--mpi=list"}, kVersionSeconds).value_or("");
  std::vector<std::string> types;
  for (const char* type : {"pmix", "pmi2"}) {
    if (text.find(type) != text.npos) types.emplace_back(type);
  }
  return types;
}

}  // namespace

Launcher find_launcher(const std::string& wanted, std::optional<Mpi> mpi) {
  if (wanted.find('/') != wanted.npos) return named_launcher(wanted);
  MG_CHECK(wanted == "auto" || wanted == "mpirun" || wanted == "mpiexec" || wanted == "srun",
           "--launcher is {}; it must be auto, mpirun, mpiexec, srun or a path with a /", wanted);
  if (wanted == "srun" || (wanted == "auto" && in_slurm())) {
    const auto path = in_path("srun");
    if (path) return named_launcher(*path);
    if (wanted == "srun") no_launcher("no srun", Mpi::slurm, "");
  }
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

Situation situation_here(const Launcher& launcher, std::optional<Mpi> program_mpi) {
  Situation s;
  s.batch_system = in_batch_system();
  s.cores = usable_cores();
  s.root = ::geteuid() == 0;
  s.container = in_container();
  s.variables = exported_variables(variables_set());
  s.program_mpi = program_mpi;
  if (launcher.mpi == Mpi::slurm) {
    s.slurm_mpi_types = slurm_mpi_types(launcher.path);
    if (is_set("SLURM_CPUS_PER_TASK")) s.slurm_cpus_per_task = std::getenv("SLURM_CPUS_PER_TASK");
  }
  return s;
}

}  // namespace megatron::comm::launch
