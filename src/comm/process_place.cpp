#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/text_parts.h"
#include "comm/processes.h"

namespace megatron::comm {

namespace {

// A variable's numeric value, and its name for texts.
struct Setting {
  std::string name;
  int value = 0;
};

// Variables in which one kind of launcher gives a process's place.
struct Names {
  std::string_view rank, size, local_rank, local_size;
};

constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Names kRendezvous = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

// Job steps are numbered from 0; Slurm numbers batch scripts, interactive shells and other steps
// without tasks from here on.
constexpr uint64_t kFirstSpecialStep = 0xfffffff0u;

class Reader {
 public:
  explicit Reader(const Variable& variable) : variable_(variable) {}

  // An empty variable counts as absent.
  std::optional<std::string> text(std::string_view name) const {
    auto value = variable_(name);
    return value && !value->empty() ? value : std::nullopt;
  }

  std::optional<Setting> number(std::string_view name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const Setting setting = {std::string(name), parse_number<int>(*value).value_or(-1)};
    MG_CHECK(setting.value >= 0,
             "the environment variable {} is '{}', not a number from 0 to {}: launchers set it; "
             "unset it if none did",
             name, *value, INT_MAX);
    return setting;
  }

 private:
  const Variable& variable_;
};

void check_below(const Setting& rank, const Setting& size) {
  MG_CHECK(rank.value < size.value,
           "the environment variables {}={} and {}={} contradict each other: a rank must be "
           "below the number of ranks; unset them if no launcher set them",
           rank.name, rank.value, size.name, size.value);
}

void check_same(const Setting& a, const Setting& b) {
  MG_CHECK(a.value == b.value,
           "the environment variables {}={} and {}={} contradict each other; unset those that the "
           "launcher did not set",
           a.name, a.value, b.name, b.value);
}

ProcessPlace place_of(const Setting& rank, const Setting& size,
                      const std::optional<Setting>& local_rank,
                      const std::optional<Setting>& local_size) {
  check_below(rank, size);
  ProcessPlace place = {rank.value, size.value, 0, 1, rank.name};
  if (!local_rank || !local_size) return place;
  check_below(*local_rank, *local_size);
  MG_CHECK(local_size->value <= size.value,
           "the environment variables {}={} and {}={} contradict each other: more ranks on this "
           "host than there are",
           local_size->name, local_size->value, size.name, size.value);
  place.local_rank = local_rank->value;
  place.local_size = local_size->value;
  return place;
}

std::optional<ProcessPlace> read(const Reader& reader, const Names& names) {
  const auto rank = reader.number(names.rank), size = reader.number(names.size);
  if (!rank && !size) return std::nullopt;
  MG_CHECK(rank && size,
           "the environment variable {} is set, but {} is not: launchers set both; unset it if "
           "none did",
           rank ? names.rank : names.size, rank ? names.size : names.rank);
  return place_of(*rank, *size, reader.number(names.local_rank), reader.number(names.local_size));
}

// Entry `node` of Slurm's list of tasks per node, "2(x3),1": 2 on each of three nodes, then 1.
std::optional<Setting> tasks_of_node(const Reader& reader, std::string_view name, int node) {
  const auto list = reader.text(name);
  if (!list) return std::nullopt;
  const char* at = list->data();
  const char* const end = at + list->size();
  const auto number = [&] {
    int value = 0;
    const auto [stop, wrong] = std::from_chars(at, end, value);
    MG_CHECK(wrong == std::errc() && value >= 0,
             "the environment variable {} is '{}', not a list of tasks per node such as 2(x3),1",
             name, *list);
    at = stop;
    return value;
  };
  for (int64_t nodes = 0; at < end;) {
    const int tasks = number();
    int times = 1;
    if (std::string_view(at, static_cast<size_t>(end - at)).starts_with("(x")) {
      at += 2;
      times = number();
      if (at < end && *at == ')') ++at;
    }
    nodes += times;
    if (node < nodes) return Setting{std::string(name), tasks};
    if (at < end && *at == ',') {
      ++at;
    } else {
      break;
    }
  }
  return std::nullopt;
}

// Number of tasks of the Slurm step that this process belongs to.
std::optional<Setting> step_size(const Reader& reader) {
  if (auto size = reader.number("SLURM_STEP_NUM_TASKS")) return size;
  return reader.number("SLURM_NTASKS");
}

// A batch script and the shell of salloc also have SLURM_PROCID=0 and the job's SLURM_NTASKS, but
// were not started by srun: they have no step, or one of the special ones.
bool is_step(const Reader& reader) {
  const auto step = reader.text("SLURM_STEP_ID");
  if (!step) return false;
  const auto id = parse_number<uint64_t>(*step);
  MG_CHECK(id, "the environment variable SLURM_STEP_ID is '{}', not a number", *step);
  return *id < kFirstSpecialStep;
}

std::optional<ProcessPlace> read_slurm(const Reader& reader) {
  if (!is_step(reader)) return std::nullopt;
  const auto rank = reader.number("SLURM_PROCID"), size = step_size(reader);
  if (!rank) return std::nullopt;
  MG_CHECK(size.has_value(),
           "the environment variable SLURM_PROCID is set, but SLURM_STEP_NUM_TASKS and "
           "SLURM_NTASKS are not");
  const auto node = reader.number("SLURM_NODEID");
  return place_of(*rank, *size, reader.number("SLURM_LOCALID"),
                  tasks_of_node(reader, "SLURM_STEP_TASKS_PER_NODE", node ? node->value : 0));
}

// Place in a Slurm step. PMIx gives only a rank; the number of ranks comes from the launcher that
// uses PMIx.
std::optional<ProcessPlace> read_slurm_or_pmix(const Reader& reader) {
  const auto rank = reader.number("PMIX_RANK");
  auto place = read_slurm(reader);
  if (!rank) return place;
  MG_CHECK(place.has_value(),
           "the environment variable PMIX_RANK is set, but nothing gives the number of ranks "
           "(OMPI_COMM_WORLD_SIZE, or SLURM_STEP_NUM_TASKS in a Slurm step): start the program "
           "with 'megatron launch', mpirun or srun, or unset PMIX_RANK if no launcher set it");
  check_same(*rank, {"SLURM_PROCID", place->rank});
  place->source = rank->name;
  return place;
}

// Place from RANK and WORLD_SIZE if MASTER_ADDR and MASTER_PORT are set, too.
std::optional<ProcessPlace> read_complete_rendezvous(const Reader& reader) {
  for (const auto name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    if (!reader.text(name)) return std::nullopt;
  return read(reader, kRendezvous);
}

// Place from RANK and WORLD_SIZE if no other launcher gives one. Both must be set: a single one may
// come from any program.
std::optional<ProcessPlace> read_rendezvous(const Reader& reader) {
  const bool both = reader.text(kRendezvous.rank) && reader.text(kRendezvous.size);
  if (!both && !reader.text("MASTER_ADDR")) return std::nullopt;
  auto place = read(reader, kRendezvous);
  MG_CHECK(!place || place->size == 1 || reader.text("MASTER_ADDR"),
           "the environment variables RANK={} and WORLD_SIZE={} are set, but MASTER_ADDR, the "
           "host of rank 0, is not: start the program with 'megatron launch', mpirun, srun or "
           "torchrun, or set MASTER_ADDR and MASTER_PORT; unset RANK and WORLD_SIZE if no "
           "launcher set them",
           place->rank, place->size);
  return place;
}

// Place given by MPI's launchers or Slurm.
std::optional<ProcessPlace> read_mpi(const Reader& reader) {
  std::optional<ProcessPlace> one;
  for (const Names& names : {kOpenMpi, kPmi}) {
    const auto place = read(reader, names);
    if (!place) continue;
    if (!one) one = place;
    if (place->size == 1) continue;
    if (const auto pmix = reader.number("PMIX_RANK"); pmix && names.rank == kOpenMpi.rank)
      check_same({place->source, place->rank}, *pmix);
    return place;
  }
  const auto slurm = one ? read_slurm(reader) : read_slurm_or_pmix(reader);
  return one && (!slurm || slurm->size == 1) ? one : slurm;
}

// Variables for rank and size of launchers that are not used: MVAPICH, Flux, PALS, IBM's jsrun.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kNotRead = {
    {{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
     {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
     {"PALS_RANKID", "PALS_SIZE"},
     {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"}}};

// Formats "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=1"; empty if the variables are not set or give
// `place`.
std::string other_place(const Reader& reader, std::string_view rank, std::string_view size,
                        const ProcessPlace& place) {
  std::string text;
  bool same = true;
  for (const auto& [name, value] : {std::pair{rank, place.rank}, std::pair{size, place.size}}) {
    const auto found = reader.text(name);
    if (!found) continue;
    same = same && *found == std::to_string(value);
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, *found);
  }
  return same ? "" : text;
}

// Line about variables of launchers other than the one that gave the place.
std::string note_of_others(const Reader& reader, const ProcessPlace& place) {
  std::string others;
  const auto add = [&](std::string_view rank, std::string_view size) {
    const std::string text = other_place(reader, rank, size, place);
    if (!text.empty()) others += (others.empty() ? "" : "; ") + text;
  };
  add(kOpenMpi.rank, kOpenMpi.size);
  add(kPmi.rank, kPmi.size);
  if (is_step(reader))
    add("SLURM_PROCID",
        reader.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  if (reader.text(kRendezvous.size)) add(kRendezvous.rank, kRendezvous.size);
  add("PMIX_RANK", {});
  for (const auto& [rank, size] : kNotRead) add(rank, size);
  if (others.empty()) return {};
  return fmt::format(
      "{} makes this process rank {} of {}; variables of other launchers disagree and are ignored: "
      "{}",
      place.source, place.rank, place.size, others);
}

// Line about variables that suggest a launch, for a process that no launcher started.
std::string note_alone(const Reader& reader) {
  std::string why;
  if (const auto tasks = reader.text("SLURM_NTASKS"); tasks && *tasks != "1")
    why = fmt::format("SLURM_NTASKS is {}, but this process is not a task of a Slurm step", *tasks);
  for (const std::string_view name : {kRendezvous.rank, kRendezvous.size})
    if (const auto value = reader.text(name);
        why.empty() && value && (name == kRendezvous.rank || *value != "1"))
      why = fmt::format("{} is {}, but {} and MASTER_ADDR are not set", name, *value,
                        name == kRendezvous.rank ? kRendezvous.size : kRendezvous.rank);
  const auto add = [&](std::string_view name, std::string_view alone) {
    if (const auto value = reader.text(name); why.empty() && value && *value != alone)
      why = fmt::format("{} is {}, but neither RANK and WORLD_SIZE nor MPI's variables are set",
                        name, *value);
  };
  add(kRendezvous.local_size, "1");
  for (const auto& [rank, size] : kNotRead) add(size, "1");
  add(kRendezvous.local_rank, "0");
  for (const auto& [rank, size] : kNotRead) add(rank, "0");
  if (why.empty()) return {};
  return fmt::format(
      "this process runs alone: {}. Several processes are started with 'megatron launch', mpirun, "
      "srun or torchrun",
      why);
}

}  // namespace

Launch find_launch(const Variable& variable) {
  const Reader reader(variable);
  std::optional<ProcessPlace> place = read_complete_rendezvous(reader);
  if (!place || place->size == 1) {
    if (auto mpi = read_mpi(reader); mpi && (!place || mpi->size > 1)) place = mpi;
  }
  if (!place) place = read_rendezvous(reader);
  if (!place) return {std::nullopt, note_alone(reader)};
  return {place, note_of_others(reader, *place)};
}

Launch find_mpi_launch(const Variable& variable) {
  return find_launch([&variable](std::string_view name) {
    return name == kRendezvous.rank || name == kRendezvous.size ? std::nullopt : variable(name);
  });
}

Variable environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

}  // namespace megatron::comm
