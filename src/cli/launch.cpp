#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/machine_limits.h"
#include "base/program_path.h"
#include "base/shell_line.h"
#include "cli/command.h"
#include "comm/launch/guard.h"
#include "comm/launch/launcher.h"
#include "comm/launch/machine.h"
#include "comm/launch/supervisor.h"
#include "comm/mpi_library.h"
#include "comm/processes.h"

namespace megatron::cli {
namespace {

using comm::launch::Launcher;
using comm::launch::Mpi;

constexpr const char* kGuard = "--guard";

struct LaunchSettings {
  std::optional<int64_t> np;
  std::optional<std::string> program;
  std::string launcher = "auto";
  bool prefix = true, dry_run = false;

  Fields fields() {
    Fields f;
    f.add("np", &np, "number of ranks, one process each; also written -np N");
    f.add("launcher", &launcher,
          "auto, mpirun, mpiexec or the path of one; auto is the launcher of the MPI this program "
          "was built with");
    f.add("program", &program,
          "program that each rank runs instead of this one, with COMMAND and its flags: another "
          "build, a profiler wrapper");
    f.add_switch("no-prefix", &prefix, false, "do not prefix output lines with [rank]");
    f.add_switch("dry-run", &dry_run, true, "print the launcher's command line without running it");
    return f;
  }
};

// The flags of launch end at the first word that is neither a flag nor a flag's value.
size_t command_at(const Arguments& arguments, Fields& fields) {
  size_t at = 0;
  while (at < arguments.size() && arguments[at].starts_with("-")) {
    const std::string& word = arguments[at++];
    if (word == "--") break;
    const bool ranks = word == "-np" || word == "-n";
    const Field* field = fields.find(ranks ? "np" : word.starts_with("--") ? word.substr(2) : "");
    if (field != nullptr && !field->is_switch) ++at;
  }
  return std::min(at, arguments.size());
}

// -np and -n, as launchers have them.
void name_ranks_flag(Arguments& arguments) {
  for (std::string& word : arguments) {
    const std::string name = word.substr(0, word.find('='));
    if (name == "-np" || name == "-n") word = "--np" + word.substr(name.size());
  }
}

// Flags by which launchers are given several machines.
void check_one_machine(const Arguments& own) {
  for (const std::string& word : own) {
    const std::string flag = word.substr(0, word.find('='));
    const std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    const auto several = {"H", "host", "hosts", "hostfile", "machinefile", "nnodes"};
    MG_CHECK(name == flag || std::ranges::find(several, name) == several.end(),
             "{} is for several machines, and megatron launch starts ranks on this one alone; "
             "mpirun starts them on several, as in mpirun -np 16 --host node1:8,node2:8 megatron "
             "train ...; docs/running.md has the flags of each launcher",
             flag);
  }
}

void check_np(const LaunchSettings& settings) {
  MG_CHECK(settings.np.has_value(),
           "-np is needed: how many ranks, as in megatron launch -np 2 train ...; see megatron "
           "launch --help");
  constexpr int64_t kMaxRanksPerProcessor = 32;  // more would only thrash
  const int64_t processors = available_processors();
  MG_CHECK(*settings.np >= 1 && *settings.np <= kMaxRanksPerProcessor * processors,
           "-np is {}; it must lie in [1, {}], {} ranks for each of the {} processors of this "
           "machine; use mpirun or srun for several machines",
           *settings.np, kMaxRanksPerProcessor * processors, kMaxRanksPerProcessor, processors);
}

void check_command(const LaunchSettings& settings, const Arguments& command) {
  MG_CHECK(!command.empty(),
           "COMMAND is needed after the flags of launch, as in megatron launch -np 2 train ...");
  if (settings.program) return;
  MG_CHECK(command[0] != "launch",
           "megatron launch cannot start megatron launch; give its flags once");
  std::vector<std::string> names;
  for (const Subcommand& c : commands()) names.emplace_back(c.name);
  if (std::find(names.begin(), names.end(), command[0]) != names.end()) return;
  const std::string near = nearest(command[0], names);
  fail("megatron has no command '{}'{}; see megatron --help", command[0],
       near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

// A rank of another launcher would start ranks of its own.
void check_not_a_rank() {
  const auto place = comm::find_mpi_launch(comm::environment()).place;
  MG_CHECK(!place || (!place->source.starts_with("OMPI_") && !place->source.starts_with("PMI")),
           "megatron launch was itself started as rank {} of {} ({} is set): it starts the "
           "launcher; do not run it under one",
           place->rank, place->size, place->source);
}

// In a Slurm allocation, srun starts ranks in place of launch.
void check_not_in_slurm(const LaunchSettings& settings, const Arguments& program) {
  const comm::Variable variable = comm::environment();
  if (variable("SLURM_JOB_ID").value_or("").empty()) return;
  Arguments words = {"srun", fmt::format("--ntasks={}", *settings.np), "--label",
                     "--cpu-bind=none"};
  // Since Slurm 22.05, srun does not take this from the allocation.
  if (const auto cpus = variable("SLURM_CPUS_PER_TASK"))
    words.push_back("--cpus-per-task=" + *cpus);
  const auto mpi = comm::launch::mpi_of(comm::mpi_library());
  if (!settings.program && mpi)
    words.push_back(*mpi == Mpi::open_mpi ? "--mpi=pmix" : "--mpi=pmi2");
  words.insert(words.end(), program.begin(), program.end());
  fail("in a Slurm allocation (SLURM_JOB_ID is set) srun starts the ranks: {}", shell_line(words));
}

// MPI library of the program that the ranks run, if known.
std::optional<Mpi> program_mpi(const LaunchSettings& settings) {
  if (settings.program) return std::nullopt;
  const std::string library = comm::mpi_library();
  MG_CHECK(!library.empty(),
           "this program was built without MPI, so its processes cannot be ranks of one run: "
           "install libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and rebuild it, "
           "or train with ranks as threads: megatron train --ranks {}",
           settings.np.value_or(2));
  return comm::launch::mpi_of(library);
}

int start(const LaunchSettings& settings, const Arguments& command) {
  check_np(settings);
  check_command(settings, command);
  check_not_a_rank();
  Arguments program = {settings.program.value_or(program_path())};
  program.insert(program.end(), command.begin(), command.end());
  check_not_in_slurm(settings, program);
  const Launcher launcher = comm::launch::find_launcher(settings.launcher, program_mpi(settings));
  const auto ranks = static_cast<int>(*settings.np);
  const std::vector<comm::launch::Option> options =
      comm::launch::launch_options(launcher, comm::launch::launch_environment(ranks));

  const auto command_line = [&](const Arguments& last) {
    Arguments words = {launcher.path};
    for (const comm::launch::Option& option : options)
      words.insert(words.end(), option.words.begin(), option.words.end());
    words.insert(words.end(), last.begin(), last.end());
    return words;
  };
  const std::string shown = shell_line(command_line(program));
  const std::string reasons = comm::launch::explained(options);
  if (settings.dry_run) fmt::print("{}\n", shown);
  fmt::print(stderr, "launch: {} rank{} with {} {}{}{}{}\n", ranks, ranks == 1 ? "" : "s",
             name_of(launcher.mpi), launcher.version, settings.dry_run ? "" : ": " + shown,
             reasons.empty() ? "" : "; ", reasons);
  if (settings.dry_run) return 0;

  comm::launch::Job job;
  Arguments guarded = {program_path(), "launch", kGuard};
  guarded.insert(guarded.end(), program.begin(), program.end());
  job.words = command_line(guarded);
  job.launcher_name = launcher.path.substr(launcher.path.rfind('/') + 1);
  job.ranks = ranks;
  job.prefix = settings.prefix && ranks > 1;
  return comm::launch::supervise(job);
}

}  // namespace

int launch(const Arguments& all) {
  if (!all.empty() && all[0] == kGuard) {
    MG_CHECK(all.size() > 1,
             "{} is internal to megatron launch, which starts it on each rank; leave it out",
             kGuard);
    return comm::launch::guard({all.begin() + 1, all.end()}, comm::environment());
  }
  LaunchSettings settings;
  Fields fields = settings.fields();
  const size_t at = command_at(all, fields);
  Arguments own(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at));
  const Arguments command(all.begin() + static_cast<std::ptrdiff_t>(at), all.end());
  if (!own.empty() && own.back() == "--") own.pop_back();
  check_one_machine(own);
  name_ranks_flag(own);
  if (const auto code = parse(
          "megatron launch -np N [flags] COMMAND [flags of COMMAND]",
          "Runs a command on N ranks of this machine, one process each, with its MPI launcher. The "
          "output lines of all ranks are merged, prefixed with [rank]; when a rank fails, all "
          "are ended, and the exit code is that of the first to fail.",
          fields, {}, own)) {
    return *code;
  }
  return start(settings, command);
}

}  // namespace megatron::cli
