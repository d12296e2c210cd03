// Which launcher, and with which options: for every kind, whatever this machine has.
#include "comm/launch/launcher.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace megatron::comm::launch {
namespace {

using Words = std::vector<std::string>;

const Launcher kOpenMpi4{Mpi::open_mpi, "/usr/bin/mpirun", "4.1.4"};
const Launcher kOpenMpi5{Mpi::open_mpi, "/opt/ompi/bin/mpirun", "5.0.3"};
const Launcher kMpich{Mpi::mpich, "/usr/bin/mpiexec", "4.0.2"};
const Launcher kIntel{Mpi::intel_mpi, "/opt/intel/bin/mpiexec", "2021.5"};
const Launcher kSlurm{Mpi::slurm, "/usr/bin/srun", "22.05.8"};

Words words_of(const Launcher& launcher, const Situation& situation) {
  Words words;
  for (const Option& option : launch_options(launcher, situation))
    words.insert(words.end(), option.words.begin(), option.words.end());
  return words;
}

std::string refusal(const Launcher& launcher, const Situation& situation) {
  try {
    launch_options(launcher, situation);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string host_refusal(const std::string& text) {
  try {
    parse_hosts(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Launcher, IsKnownByWhatItSaysOfItself) {
  const auto open = launcher_of("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs to ...");
  ASSERT_TRUE(open);
  EXPECT_EQ(open->mpi, Mpi::open_mpi);
  EXPECT_EQ(open->version, "4.1.4");
  EXPECT_EQ(open->major(), 4);
  EXPECT_EQ(open->description(), "Open MPI 4.1.4 (/usr/bin/mpirun)");
  EXPECT_EQ(launcher_of("x", "mpirun (Open MPI) 5.0.3rc1")->version, "5.0.3");
  EXPECT_EQ(launcher_of("x", "mpiexec (OpenRTE) 4.1.2\n")->mpi, Mpi::open_mpi);
  EXPECT_EQ(launcher_of("x", "mpiexec (OpenRTE) 4.1.2\n")->version, "4.1.2");

  const auto mpich = launcher_of(
      "x", "HYDRA build details:\n    Version:        4.0.2\n    Release Date:   Thu Apr 7 2022\n");
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->mpi, Mpi::mpich);
  EXPECT_EQ(mpich->version, "4.0.2");

  const auto intel = launcher_of(
      "x", "Intel(R) MPI Library for Linux* OS, Version 2021.5 Build 20211102 (id: 9279b7d62)\n");
  ASSERT_TRUE(intel);
  EXPECT_EQ(intel->mpi, Mpi::intel_mpi);
  EXPECT_EQ(intel->version, "2021.5");

  EXPECT_EQ(launcher_of("x", "slurm-wlm 22.05.8\n")->version, "22.05.8");
  EXPECT_EQ(launcher_of("x", "slurm 23.11.4\n")->mpi, Mpi::slurm);

  EXPECT_FALSE(launcher_of("x", ""));
  EXPECT_FALSE(launcher_of("x", "GNU bash, version 5.2"));
  EXPECT_EQ(launcher_of("x", "mpirun (Open MPI)")->major(), 0);  // a version is not certain
}

TEST(Launcher, IsThatOfTheProgramsMpi) {
  EXPECT_EQ(mpi_of("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"), Mpi::open_mpi);
  EXPECT_EQ(mpi_of("MPICH Version:\t4.0.2\nMPICH Release date: ..."), Mpi::mpich);
  EXPECT_EQ(mpi_of("Intel(R) MPI Library 2021.5 for Linux* OS"), Mpi::intel_mpi);
  EXPECT_FALSE(mpi_of("another"));
  EXPECT_EQ(launcher_names(Mpi::slurm), Words{"srun"});
  for (const Mpi mpi : {Mpi::open_mpi, Mpi::mpich, Mpi::intel_mpi}) {
    for (const std::string& name : launcher_names(mpi)) EXPECT_NE(name, "srun");
  }
}

TEST(Launcher, OptionsOfOpenMpi) {
  Situation s;
  s.ranks = 2;
  s.cores = 2;
  EXPECT_EQ(words_of(kOpenMpi4, s), (Words{"-np", "2", "--bind-to", "none"}));
  s.root = true;
  s.container = true;
  s.ranks = 3;
  EXPECT_EQ(words_of(kOpenMpi4, s),
            (Words{"-np", "3", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                   "--mca", "btl_vader_single_copy_mechanism", "none"}));
  EXPECT_EQ(words_of(kOpenMpi5, s),
            (Words{"-np", "3", "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to",
                   "none", "--mca", "smsc", "^cma"}));
}

TEST(Launcher, OptionsOfOpenMpiForOtherHosts) {
  Situation s;
  s.ranks = 8;
  s.cores = 2;  // of this machine, which need not take part
  s.hosts = parse_hosts("a:4,b:4");
  s.variables = {"OMP_NUM_THREADS", "PATH"};
  EXPECT_EQ(words_of(kOpenMpi4, s), (Words{"-np", "8", "--host", "a:4,b:4", "--bind-to", "none",
                                           "-x", "OMP_NUM_THREADS", "-x", "PATH"}));
  s.hosts.clear();
  s.batch_system = true;  // the launcher asks it for hosts and slots
  EXPECT_EQ(words_of(kOpenMpi4, s),
            (Words{"-np", "8", "--bind-to", "none", "-x", "OMP_NUM_THREADS", "-x", "PATH"}));
  std::vector<Option> options;
  export_rendezvous(kOpenMpi4, options);
  ASSERT_EQ(options.size(), 1u);
  EXPECT_EQ(options[0].words, (Words{"-x", "MEGATRON_LAUNCH"}));
  options.clear();
  for (const Launcher& l : {kMpich, kIntel, kSlurm}) export_rendezvous(l, options);
  EXPECT_TRUE(options.empty());  // these pass on the whole environment
}

TEST(Launcher, OptionsOfMpichAndIntel) {
  Situation s;
  s.ranks = 3;
  s.cores = 2;
  s.root = s.container = true;  // neither needs a word
  EXPECT_EQ(words_of(kMpich, s), (Words{"-n", "3"}));
  EXPECT_EQ(words_of(kIntel, s), (Words{"-n", "3", "-genv", "I_MPI_PIN", "off"}));
  s.hosts = parse_hosts("a:2,b:2");
  EXPECT_EQ(words_of(kMpich, s), (Words{"-n", "3", "-hosts", "a:2,b:2"}));
  EXPECT_EQ(words_of(kIntel, s),
            (Words{"-n", "3", "-hosts", "a,b", "-ppn", "2", "-genv", "I_MPI_PIN", "off"}));
  s.hosts = parse_hosts("a:2,b:1");
  EXPECT_NE(refusal(kIntel, s).find("give each 2 slots"), std::string::npos);
}

TEST(Launcher, OptionsOfSlurm) {
  Situation s;
  s.ranks = 16;
  s.cores = 1;
  s.batch_system = true;
  const Words plain = {"--ntasks=16", "--export=ALL", "--kill-on-bad-exit=1", "--cpu-bind=none"};
  EXPECT_EQ(words_of(kSlurm, s), plain);

  s.slurm_cpus_per_task = "4";
  s.program_mpi = Mpi::open_mpi;
  s.slurm_mpi_types = {"pmix", "pmi2"};
  Words more = plain;
  more.insert(more.end(), {"--cpus-per-task=4", "--mpi=pmix"});
  EXPECT_EQ(words_of(kSlurm, s), more);
  s.program_mpi = Mpi::mpich;
  more.back() = "--mpi=pmi2";
  EXPECT_EQ(words_of(kSlurm, s), more);
  s.slurm_mpi_types = {"pmix"};
  more.back() = "--mpi=pmix";
  EXPECT_EQ(words_of(kSlurm, s), more);

  s.hosts = parse_hosts("a:16");
  EXPECT_NE(refusal(kSlurm, s).find("--hosts a:16 is not for srun"), std::string::npos);
}

TEST(Launcher, SaysWhyOptionsAreThere) {
  Situation s;
  s.ranks = 3;
  s.cores = 1;
  s.root = true;
  EXPECT_EQ(explained(launch_options(kOpenMpi4, s)),
            "--allow-run-as-root (this is root), --oversubscribe (3 ranks share 1 core), "
            "--bind-to none (a rank places its threads on cores itself)");
  EXPECT_EQ(explained(launch_options(kMpich, s)), "");
}

TEST(Launcher, RefusesWhatHasNoRoom) {
  Situation s;
  s.cores = 2;
  s.ranks = 0;
  EXPECT_EQ(refusal(kOpenMpi4, s), "-np is 0; it must lie in [1, 65536]");
  s.ranks = kMostRanks + 1;
  EXPECT_EQ(refusal(kOpenMpi4, s), "-np is 65537; it must lie in [1, 65536]");
  s.ranks = 65;
  EXPECT_NE(refusal(kMpich, s).find("32 ranks for each of the 2 cores"), std::string::npos);
  s.hosts = parse_hosts("a:4,b");
  s.ranks = 6;
  EXPECT_EQ(refusal(kMpich, s),
            "-np 6 is more than the 5 slots of --hosts a:4,b:1; name more hosts, or more slots "
            "per host");
  s.ranks = 5;
  EXPECT_EQ(refusal(kMpich, s), "");
}

TEST(Launcher, ReadsHosts) {
  const std::vector<Host> hosts = parse_hosts("node-1.cluster:4,10.0.0.7,c_3:65536");
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[0].name, "node-1.cluster");
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].name, "10.0.0.7");
  EXPECT_EQ(hosts[1].slots, 1);
  EXPECT_EQ(hosts[2].slots, 65536);

  for (const char* text : {"", ",", "a:4,", ",a", "a,,b", ":4", "a b:2", "-x:1", "a;b", "a$(x)"})
    EXPECT_NE(host_refusal(text).find("is not a host"), std::string::npos) << text;
  for (const char* text : {"a:", "a:0", "a:-1", "a:x", "a:4x", "a:65537", "a:99999999999"})
    EXPECT_NE(host_refusal(text).find("is not a number of slots"), std::string::npos) << text;
  EXPECT_EQ(host_refusal("a:2,b:2,a:1"),
            "--hosts a:2,b:2,a:1 names a twice; write it once, with all its slots");
}

TEST(Launcher, OtherHostsGetWhatRanksNeed) {
  EXPECT_EQ(exported_variables({"HOME", "PATH", "OMP_NUM_THREADS", "SECRET", "LC_ALL", "NCCL_DEBUG",
                                "PATHS", "LD_LIBRARY_PATH", "OMPI_MCA_btl"}),
            (Words{"LC_ALL", "LD_LIBRARY_PATH", "NCCL_DEBUG", "OMP_NUM_THREADS", "PATH"}));
}

TEST(Launcher, ShowsWordsAsAShellReadsThem) {
  EXPECT_EQ(shell_line({"mpirun", "-np", "2", "a b", "", "it's", "$(x)", "--x=1,2:3"}),
            "mpirun -np 2 'a b' '' 'it'\\''s' '$(x)' --x=1,2:3");
}

}  // namespace
}  // namespace megatron::comm::launch
