#include "comm/launch/launcher.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "comm/launch/channel.h"

namespace megatron::comm::launch {
namespace {

// The first run of digits and dots behind `mark`: "4.1.4".
std::string version_behind(std::string_view text, std::string_view mark) {
  size_t at = text.find(mark);
  if (at == text.npos) return {};
  at = text.find_first_of("0123456789", at + mark.size());
  if (at == text.npos) return {};
  const size_t end = std::min(text.find_first_not_of("0123456789.", at), text.size());
  return std::string(text.substr(at, end - at));
}

Host parse_host(std::string_view part, std::string_view text) {
  Host host;
  const size_t colon = part.rfind(':');
  host.name = part.substr(0, colon);
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  MG_CHECK(!host.name.empty() && host.name[0] != '-' &&
               host.name.find_first_not_of(kLetters) == host.name.npos,
           "--hosts {}: '{}' is not a host; write NAME or NAME:SLOTS, separated by commas", text,
           part);
  if (colon == part.npos) return host;
  const std::string_view slots = part.substr(colon + 1);
  const auto [end, error] = std::from_chars(slots.data(), slots.data() + slots.size(), host.slots);
  MG_CHECK(error == std::errc() && end == slots.data() + slots.size() && host.slots >= 1 &&
               host.slots <= kMostRanks,
           "--hosts {}: '{}' is not a number of slots; host {} needs one in [1, {}]", text, slots,
           host.name, kMostRanks);
  return host;
}

std::string host_list(const std::vector<Host>& hosts, bool with_slots) {
  std::string list;
  for (const Host& host : hosts) {
    list += list.empty() ? "" : ",";
    list += with_slots ? fmt::format("{}:{}", host.name, host.slots) : host.name;
  }
  return list;
}

void check_room(const Situation& s) {
  MG_CHECK(s.ranks >= 1 && s.ranks <= kMostRanks, "-np is {}; it must lie in [1, {}]", s.ranks,
           kMostRanks);
  int64_t slots = 0;
  for (const Host& host : s.hosts) slots += host.slots;
  MG_CHECK(s.hosts.empty() || slots >= s.ranks,
           "-np {} is more than the {} slots of --hosts {}; name more hosts, or more slots per "
           "host",
           s.ranks, slots, host_list(s.hosts, true));
  const bool here = s.hosts.empty() && !s.batch_system;
  MG_CHECK(
      !here || s.ranks <= kMostRanksPerCore * s.cores,
      "-np {} is more than {} ranks for each of the {} cores of this machine; use fewer ranks, "
      "or name other machines with --hosts",
      s.ranks, kMostRanksPerCore, s.cores);
}

void open_mpi_options(const Launcher& launcher, const Situation& s, std::vector<Option>& options) {
  const bool prrte = launcher.major() >= 5;
  options.push_back({{"-np", std::to_string(s.ranks)}, ""});
  if (!s.hosts.empty()) options.push_back({{"--host", host_list(s.hosts, true)}, ""});
  if (s.root) options.push_back({{"--allow-run-as-root"}, "this is root"});
  if (s.hosts.empty() && !s.batch_system && s.ranks > s.cores) {
    const std::string reason =
        fmt::format("{} ranks share {} core{}", s.ranks, s.cores, s.cores == 1 ? "" : "s");
    if (prrte) {
      options.push_back({{"--map-by", ":OVERSUBSCRIBE"}, reason});
    } else {
      options.push_back({{"--oversubscribe"}, reason});
    }
  }
  options.push_back({{"--bind-to", "none"}, "a rank places its threads on cores itself"});
  if (s.container) {
    const std::string reason = "a container may forbid reading another process's memory";
    if (prrte) {
      options.push_back({{"--mca", "smsc", "^cma"}, reason});
    } else {
      options.push_back({{"--mca", "btl_vader_single_copy_mechanism", "none"}, reason});
    }
  }
  if (!s.hosts.empty() || s.batch_system) {
    Option exported{{}, "environment for other hosts"};
    for (const std::string& name : s.variables) {
      exported.words.push_back("-x");
      exported.words.push_back(name);
    }
    if (!exported.words.empty()) options.push_back(exported);
  }
}

void intel_options(const Situation& s, std::vector<Option>& options) {
  options.push_back({{"-n", std::to_string(s.ranks)}, ""});
  if (!s.hosts.empty()) {
    for (const Host& host : s.hosts) {
      MG_CHECK(host.slots == s.hosts[0].slots,
               "--hosts {}: Intel MPI's launcher takes one number of slots for all hosts; give "
               "each {} slots",
               host_list(s.hosts, true), s.hosts[0].slots);
    }
    options.push_back({{"-hosts", host_list(s.hosts, false)}, ""});
    options.push_back({{"-ppn", std::to_string(s.hosts[0].slots)}, ""});
  }
  options.push_back({{"-genv", "I_MPI_PIN", "off"}, "a rank places its threads on cores itself"});
}

void slurm_options(const Situation& s, std::vector<Option>& options) {
  MG_CHECK(s.hosts.empty(),
           "--hosts {} is not for srun: the hosts are those of the Slurm allocation; leave --hosts "
           "out, or use --launcher mpirun",
           host_list(s.hosts, true));
  options.push_back({{fmt::format("--ntasks={}", s.ranks)}, ""});
  options.push_back({{"--export=ALL"}, "ranks get this environment"});
  options.push_back({{"--kill-on-bad-exit=1"}, "end all ranks when one fails"});
  options.push_back({{"--cpu-bind=none"}, "a rank places its threads on cores itself"});
  if (s.slurm_cpus_per_task) {
    options.push_back({{"--cpus-per-task=" + *s.slurm_cpus_per_task},
                       "srun does not take it from the allocation since Slurm 22.05"});
  }
  const std::vector<std::string> liked = s.program_mpi == Mpi::open_mpi
                                             ? std::vector<std::string>{"pmix", "pmi2"}
                                             : std::vector<std::string>{"pmi2", "pmix"};
  for (const std::string& type : liked) {
    if (!s.program_mpi || std::find(s.slurm_mpi_types.begin(), s.slurm_mpi_types.end(), type) ==
                              s.slurm_mpi_types.end()) {
      continue;
    }
    options.push_back(
        {{"--mpi=" + type}, fmt::format("{} finds its ranks through it", name_of(*s.program_mpi))});
    break;
  }
}

}  // namespace

std::string_view name_of(Mpi mpi) {
  switch (mpi) {
    case Mpi::open_mpi: return "Open MPI";
    case Mpi::mpich: return "MPICH";
    case Mpi::intel_mpi: return "Intel MPI";
    case Mpi::slurm: return "Slurm";
  }
  return "";
}

std::string_view debian_package_of(Mpi mpi) {
  switch (mpi) {
    case Mpi::open_mpi: return "openmpi-bin";
    case Mpi::mpich: return "mpich";
    case Mpi::intel_mpi: return "intel-oneapi-mpi";
    case Mpi::slurm: return "slurm-client";
  }
  return "";
}

std::optional<Mpi> mpi_of(std::string_view text) {
  for (const Mpi mpi : {Mpi::open_mpi, Mpi::mpich}) {
    if (text.find(name_of(mpi)) != text.npos) return mpi;
  }
  if (text.find("Intel(R) MPI") != text.npos) return Mpi::intel_mpi;
  return std::nullopt;
}

int Launcher::major() const {
  int number = 0;
  std::from_chars(version.data(), version.data() + version.size(), number);
  return number;
}

std::string Launcher::description() const {
  return fmt::format("{}{}{} ({})", name_of(mpi), version.empty() ? "" : " ", version, path);
}

std::optional<Launcher> launcher_of(const std::string& path, std::string_view text) {
  if (text.find("(Open MPI)") != text.npos || text.find("OpenRTE") != text.npos) {
    return Launcher{
        Mpi::open_mpi, path,
        version_behind(text, text.find("(Open MPI)") != text.npos ? "(Open MPI)" : "OpenRTE")};
  }
  if (text.find("Intel(R) MPI") != text.npos) {
    return Launcher{Mpi::intel_mpi, path, version_behind(text, "Version")};
  }
  if (text.find("HYDRA") != text.npos) {
    return Launcher{Mpi::mpich, path, version_behind(text, "Version:")};
  }
  if (text.starts_with("slurm")) return Launcher{Mpi::slurm, path, version_behind(text, "slurm")};
  return std::nullopt;
}

std::vector<std::string> launcher_names(std::optional<Mpi> mpi) {
  if (mpi == Mpi::slurm) return {"srun"};
  if (mpi == Mpi::open_mpi) {
    return {"mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.openmpi", "orterun"};
  }
  if (mpi == Mpi::mpich) {
    return {"mpiexec", "mpiexec.mpich", "mpiexec.hydra", "mpirun", "mpirun.mpich"};
  }
  if (mpi == Mpi::intel_mpi) return {"mpiexec.hydra", "mpiexec", "mpirun"};
  return {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.mpich", "mpirun.mpich"};
}

std::vector<Host> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    hosts.push_back(parse_host(text.substr(at, comma - at), text));
    at = comma + 1;
  }
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      MG_CHECK(hosts[i].name != hosts[j].name,
               "--hosts {} names {} twice; write it once, with all its slots", text, hosts[i].name);
    }
  }
  return hosts;
}

std::vector<Option> launch_options(const Launcher& launcher, const Situation& situation) {
  check_room(situation);
  std::vector<Option> options;
  switch (launcher.mpi) {
    case Mpi::open_mpi: open_mpi_options(launcher, situation, options); break;
    case Mpi::mpich:
      options.push_back({{"-n", std::to_string(situation.ranks)}, ""});
      if (!situation.hosts.empty())
        options.push_back({{"-hosts", host_list(situation.hosts, true)}, ""});
      break;
    case Mpi::intel_mpi: intel_options(situation, options); break;
    case Mpi::slurm: slurm_options(situation, options); break;
  }
  return options;
}

void export_rendezvous(const Launcher& launcher, std::vector<Option>& options) {
  if (launcher.mpi == Mpi::open_mpi) options.push_back({{"-x", kListenAddressVariable}, ""});
}

std::vector<std::string> exported_variables(const std::vector<std::string>& names) {
  constexpr std::string_view kNames[] = {
      "PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "TZ", "TMPDIR"};
  constexpr std::string_view kStarts[] = {"OMP_", "MEGATRON_", "DNNL_", "ONEDNN_",
                                          "UCX_", "CUDA_",     "NCCL_", "LC_"};
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    const bool is_named = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
    const bool starts =
        std::any_of(std::begin(kStarts), std::end(kStarts),
                    [&](std::string_view start) { return name.starts_with(start); });
    if (is_named || starts) chosen.push_back(name);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::string explained(const std::vector<Option>& options) {
  std::string text;
  for (const Option& option : options) {
    if (option.reason.empty()) continue;
    text +=
        fmt::format("{}{} ({})", text.empty() ? "" : ", ", shell_line(option.words), option.reason);
  }
  return text;
}

std::string shell_line(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%^";
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

}  // namespace megatron::comm::launch
