#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "comm/processes.h"

namespace megatron::comm {
namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

Variable variables(const Environment& environment) {
  return [&environment](std::string_view name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
}

// Returns text such as "2 of 4, 0 of 2 here, by OMPI_COMM_WORLD_RANK".
std::string text(const Environment& environment) {
  const auto p = find_launch(variables(environment)).place;
  if (!p) return "none";
  return fmt::format("{} of {}, {} of {} here, by {}", p->rank, p->size, p->local_rank,
                     p->local_size, p->source);
}

void expect_error(const Environment& environment, std::initializer_list<std::string_view> parts) {
  try {
    ADD_FAILURE() << text(environment) << ", and no error with " << *parts.begin();
  } catch (const Error& error) {
    for (const auto part : parts) {
      EXPECT_NE(std::string_view(error.what()).find(part), std::string::npos)
          << "'" << part << "' in: " << error.what();
    }
  }
}

Environment with(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_RANK", "2"}};
const Environment kHydra = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "6"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
// Environment of an sbatch script with -n 4.
const Environment kBatch = {{"SLURM_JOB_ID", "17"},        {"SLURM_PROCID", "0"},
                            {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "0"},
                            {"SLURM_NTASKS", "4"},         {"SLURM_NPROCS", "4"},
                            {"SLURM_TASKS_PER_NODE", "4"}, {"SLURM_TASK_PID", "4711"}};
const Environment kStep = {{"SLURM_JOB_ID", "17"},        {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "5"},         {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "2"},         {"SLURM_NTASKS", "7"},
                           {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
const Environment kTorchrun = {{"RANK", "1"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "host0"},
                               {"MASTER_PORT", "29500"}};

TEST(ProcessPlace, OfAProcessStartedByItself) {
  EXPECT_EQ(text({}), "none");
  EXPECT_EQ(text({{"HOME", "/root"}, {"OMPI_COMM_WORLD_RANK", ""}, {"OMPI_COMM_WORLD_SIZE", ""}}),
            "none");
}

TEST(ProcessPlace, OpenMpi) {
  EXPECT_EQ(text(kOpenMpi), "2 of 4, 0 of 2 here, by OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(text({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            "0 of 1, 0 of 1 here, by OMPI_COMM_WORLD_RANK");
  expect_error(with(kOpenMpi, {{"PMIX_RANK", "3"}}),
               {"OMPI_COMM_WORLD_RANK=2", "PMIX_RANK=3", "contradict"});
}

TEST(ProcessPlace, Hydra) {
  EXPECT_EQ(text(kHydra), "3 of 6, 1 of 2 here, by PMI_RANK");
  EXPECT_EQ(text({{"PMI_RANK", "3"}, {"PMI_SIZE", "6"}}), "3 of 6, 0 of 1 here, by PMI_RANK");
  // One of the two variables is missing.
  EXPECT_EQ(text({{"PMI_RANK", "3"}, {"PMI_SIZE", "6"}, {"MPI_LOCALRANKID", "1"}}),
            "3 of 6, 0 of 1 here, by PMI_RANK");
}

TEST(ProcessPlace, SlurmStep) {
  EXPECT_EQ(text(kStep), "5 of 7, 1 of 2 here, by SLURM_PROCID");
  const Environment last =
      with(kStep, {{"SLURM_PROCID", "6"}, {"SLURM_NODEID", "3"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(text(last), "6 of 7, 0 of 1 here, by SLURM_PROCID");
  // A step smaller than its job.
  EXPECT_EQ(text({{"SLURM_STEP_ID", "3"},
                  {"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "8"},
                  {"SLURM_STEP_NUM_TASKS", "2"}}),
            "1 of 2, 0 of 1 here, by SLURM_PROCID");
  EXPECT_EQ(text({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}),
            "1 of 2, 0 of 1 here, by SLURM_PROCID");
  // The list does not include this node.
  EXPECT_EQ(text(with(kStep, {{"SLURM_NODEID", "9"}})), "5 of 7, 0 of 1 here, by SLURM_PROCID");
  expect_error({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}, {"SLURM_STEP_NUM_TASKS"});
  expect_error(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "two"}}),
               {"SLURM_STEP_TASKS_PER_NODE", "'two'"});
  expect_error(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}), {"'2(x'"});
  expect_error(with(kStep, {{"SLURM_STEP_ID", "first"}}), {"SLURM_STEP_ID", "'first'"});
}

TEST(ProcessPlace, SlurmBatchScriptsAndShellsWereNotLaunched) {
  EXPECT_EQ(text(kBatch), "none");
  // Slurm's numbers for the batch script, the extern step and the interactive step.
  for (const char* step : {"4294967291", "4294967292", "4294967290"})
    EXPECT_EQ(text(with(kStep, {{"SLURM_STEP_ID", step}})), "none");
  // The shell of salloc has only the allocation's numbers.
  EXPECT_EQ(text({{"SLURM_JOB_ID", "17"}, {"SLURM_NTASKS", "4"}}), "none");
  Environment without_rank = kStep;
  without_rank.erase("SLURM_PROCID");
  EXPECT_EQ(text(without_rank), "none");
}

TEST(ProcessPlace, PmixTellsARankAndItsLauncherTheSize) {
  EXPECT_EQ(text(with(kStep, {{"PMIX_RANK", "5"}})), "5 of 7, 1 of 2 here, by PMIX_RANK");
  expect_error(with(kStep, {{"PMIX_RANK", "4"}}), {"PMIX_RANK=4", "SLURM_PROCID=5", "contradict"});
  expect_error({{"PMIX_RANK", "0"}}, {"PMIX_RANK", "number of ranks"});
  expect_error(with(kBatch, {{"PMIX_RANK", "0"}}), {"PMIX_RANK", "number of ranks"});
}

TEST(ProcessPlace, RankAndWorldSizeNeedAMasterAddress) {
  EXPECT_EQ(text(kTorchrun), "1 of 8, 1 of 4 here, by RANK");
  expect_error({{"RANK", "1"}, {"WORLD_SIZE", "8"}},
               {"RANK=1", "WORLD_SIZE=8", "MASTER_ADDR", "unset"});
  EXPECT_EQ(text({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "0 of 1, 0 of 1 here, by RANK");
  EXPECT_EQ(text({{"RANK", "1"}}), "none");
  EXPECT_EQ(text({{"WORLD_SIZE", "8"}}), "none");
  EXPECT_EQ(text({{"MASTER_ADDR", "host0"}}), "none");
  expect_error({{"MASTER_ADDR", "host0"}, {"RANK", "1"}}, {"RANK is set", "WORLD_SIZE is not"});
}

// Variables of outer launchers with one process.
const Environment kOneOfOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}};
const Environment kOneOfHydra = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
const Environment kOneOfSlurm = {{"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"},
                                 {"SLURM_NTASKS", "1"},         {"SLURM_PROCID", "0"},
                                 {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_LOCALID", "0"}};
const Environment kOneOfTorchrun = {
    {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "host0"}, {"MASTER_PORT", "29500"}};
// srun starts one task per node, and its torchrun starts four ranks.
const Environment kTaskANode = with(kOneOfSlurm, {{"SLURM_NTASKS", "2"},
                                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                                  {"SLURM_PROCID", "1"},
                                                  {"SLURM_NODEID", "1"}});
const Environment kShell = {{"SLURM_JOB_ID", "17"}, {"SLURM_NTASKS", "4"}};

Environment without(Environment a, std::initializer_list<const char*> names) {
  for (const char* name : names) a.erase(name);
  return a;
}

struct Nesting {
  const char* what;
  Environment environment;
  std::string place;  // beginning of text()
  std::string note;   // part of the note; "" if there is none
};

std::vector<Nesting> nestings() {
  const std::string torch = "1 of 8, 1 of 4 here, by RANK", ompi = "2 of 4, 0 of 2 here, by OMPI",
                    hydra = "3 of 6, 1 of 2 here, by PMI_RANK",
                    slurm = "5 of 7, 1 of 2 here, by SLURM_PROCID";
  const Environment half = without(kTorchrun, {"MASTER_PORT"});
  return {
      {"torchrun in a step of one", with(kOneOfSlurm, kTorchrun), torch,
       "SLURM_PROCID=0, SLURM_ST"},
      {"torchrun in a task a node", with(kTaskANode, kTorchrun), torch, "SLURM_STEP_NUM_TASKS=2"},
      {"torchrun in mpirun -np 1", with(kOneOfOpenMpi, kTorchrun), torch, "OMPI_COMM_WORLD_SIZE=1"},
      {"torchrun in mpirun", with(kOpenMpi, kTorchrun), torch, "OMPI_COMM_WORLD_RANK=2"},
      {"torchrun in mpiexec -n 1", with(kOneOfHydra, kTorchrun), torch, "PMI_RANK=0, PMI_SIZE=1"},
      {"torchrun in a task of PMIx", with(with(kTaskANode, {{"PMIX_RANK", "1"}}), kTorchrun), torch,
       "SLURM_PROCID=1"},
      {"torchrun in PMIx alone", with({{"PMIX_RANK", "1"}}, kTorchrun), torch, ""},
      {"torchrun in PMIx of one", with({{"PMIX_RANK", "0"}}, kTorchrun), torch, "PMIX_RANK=0"},
      {"torchrun in Flux of one",
       with({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}, kTorchrun), torch,
       "FLUX_TASK_RANK=0, FLUX_JOB_SIZE=1"},
      {"torchrun in Flux of as many",
       with({{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "8"}}, kTorchrun), torch, ""},
      {"torchrun in a task a node of jsrun",
       with({{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}}, kTorchrun), torch,
       "JSM_NAMESPACE_RANK=1, JSM_NAMESPACE_SIZE=2"},
      {"torchrun in mpirun_rsh of one",
       with({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "1"}}, kTorchrun), torch,
       "MV2_COMM_WORLD_SIZE=1"},
      {"torchrun in a batch script", with(kBatch, kTorchrun), torch, ""},
      {"torchrun in a shell of salloc", with(kShell, kTorchrun), torch, ""},
      {"torchrun of one in all", with(with(kOneOfSlurm, kOneOfOpenMpi), kOneOfTorchrun),
       "0 of 1, 0 of 1 here, by RANK", ""},
      {"variables made from srun's",
       with(kStep,
            {{"RANK", "5"}, {"WORLD_SIZE", "7"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}),
       "5 of 7, 0 of 1 here, by RANK", ""},
      {"mpirun in torchrun of one", with(kOneOfTorchrun, kOpenMpi), ompi, "RANK=0, WORLD_SIZE=1"},
      {"mpiexec in torchrun of one", with(kOneOfTorchrun, kHydra), hydra, "RANK=0, WORLD_SIZE=1"},
      {"srun in torchrun of one", with(kOneOfTorchrun, kStep), slurm, "RANK=0, WORLD_SIZE=1"},
      {"mpirun in a step", with(kStep, kOpenMpi), ompi, "SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=7"},
      {"mpirun in a batch script", with(kBatch, kOpenMpi), ompi, ""},
      {"mpirun in mpiexec", with(kHydra, kOpenMpi), ompi, "PMI_RANK=3, PMI_SIZE=6"},
      {"mpiexec in a step", with(kStep, kHydra), hydra, "SLURM_PROCID=5"},
      {"mpiexec in mpirun -np 1", with(kOneOfOpenMpi, kHydra), hydra, "OMPI_COMM_WORLD_SIZE=1"},
      {"srun in mpirun -np 1", with(kOneOfOpenMpi, with(kStep, {{"PMIX_RANK", "5"}})), slurm,
       "OMPI_COMM_WORLD_RANK=0"},
      {"mpirun -np 1 in a step of one", with(kOneOfSlurm, kOneOfOpenMpi),
       "0 of 1, 0 of 1 here, by OMPI", ""},
      {"mpirun with half of torchrun's", with(half, kOpenMpi), ompi, "RANK=1, WORLD_SIZE=8"},
      {"srun with half of torchrun's", with(without(kTorchrun, {"RANK"}), kStep), slurm,
       "WORLD_SIZE=8"},
      {"srun with the address alone", with({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, kStep),
       slurm, ""},
      {"srun with empty variables of torchrun",
       with({{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", ""}}, kStep), slurm, ""},
      {"torchrun with empty ones of srun and mpirun",
       with({{"SLURM_STEP_ID", ""}, {"SLURM_PROCID", ""}, {"OMPI_COMM_WORLD_RANK", ""}}, kTorchrun),
       torch, ""},
      {"a batch script without srun", kBatch, "none",
       "SLURM_NTASKS is 4, but this process is not a task"},
      {"an interactive step", with(kStep, {{"SLURM_STEP_ID", "4294967290"}}), "none",
       "SLURM_NTASKS is 7"},
      {"a shell of salloc", kShell, "none", "SLURM_NTASKS is 4"},
      {"a shell of salloc for one", {{"SLURM_JOB_ID", "17"}, {"SLURM_NTASKS", "1"}}, "none", ""},
      {"a rank alone", {{"RANK", "1"}}, "none", "RANK is 1, but WORLD_SIZE"},
      {"a size alone", {{"WORLD_SIZE", "8"}}, "none", "WORLD_SIZE is 8, but RANK"},
      {"torchrun's local variables alone",
       {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}},
       "none",
       "LOCAL_WORLD_SIZE is 2, but neither"},
      {"a launcher that is not read", {{"PALS_RANKID", "3"}}, "none", "PALS_RANKID is 3"},
      {"local variables of one", {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}, "none", ""},
      {"nothing", {{"HOME", "/root"}}, "none", ""},
  };
}

TEST(ProcessPlace, TheInnermostLauncherCountsAndTheOthersAreNamed) {
  for (const Nesting& n : nestings()) {
    EXPECT_EQ(text(n.environment).substr(0, n.place.size()), n.place) << n.what;
    const std::string note = find_launch(variables(n.environment)).note;
    EXPECT_EQ(note.empty(), n.note.empty()) << n.what << ": " << note;
    EXPECT_NE(note.find(n.note), note.npos) << n.what << ": " << note;
    EXPECT_EQ(note.find('\n'), note.npos) << n.what;
  }
}

TEST(ProcessPlace, WhatMpiHasJustStartedIsNoRankOfATorchrunAround) {
  const auto place = [](const Environment& e) { return find_mpi_launch(variables(e)).place; };
  EXPECT_EQ(place(with(kTorchrun, kOpenMpi))->source, "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(place(with(kTorchrun, kStep))->source, "SLURM_PROCID");
  EXPECT_FALSE(place(kTorchrun).has_value());
}

TEST(ProcessPlace, ContradictionsAndHalves) {
  expect_error(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "2"}}),
               {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2", "contradict"});
  expect_error(with(kHydra, {{"PMI_SIZE", "0"}}), {"PMI_RANK=3", "PMI_SIZE=0"});
  expect_error(with(kHydra, {{"MPI_LOCALRANKID", "2"}}),
               {"MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=2"});
  expect_error(with(kHydra, {{"MPI_LOCALNRANKS", "7"}}), {"MPI_LOCALNRANKS=7", "PMI_SIZE=6"});
  expect_error({{"OMPI_COMM_WORLD_RANK", "0"}}, {"OMPI_COMM_WORLD_SIZE is not"});
  expect_error({{"PMI_SIZE", "2"}}, {"PMI_SIZE is set", "PMI_RANK is not"});
}

TEST(ProcessPlace, OnlyNumbersFromZero) {
  for (const char* wrong : {"x", "1x", " 1", "-1", "1.0", "99999999999", "0x1", "+1"}) {
    expect_error(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", wrong}}),
                 {"OMPI_COMM_WORLD_RANK", fmt::format("'{}'", wrong)});
    expect_error(with(kTorchrun, {{"LOCAL_RANK", wrong}}), {"LOCAL_RANK"});
  }
}

TEST(ProcessPlace, ComesFromTheEnvironment) {
  ::setenv("MEGATRON_TEST_VARIABLE", "7", 1);
  EXPECT_EQ(environment()("MEGATRON_TEST_VARIABLE"), "7");
  ::unsetenv("MEGATRON_TEST_VARIABLE");
  EXPECT_EQ(environment()("MEGATRON_TEST_VARIABLE"), std::nullopt);
}

}  // namespace
}  // namespace megatron::comm
