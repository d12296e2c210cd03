// Selection of the launcher and its options, for every kind and independent of this machine.
#include "comm/launch/launcher.h"

#include <gtest/gtest.h>

namespace megatron::comm::launch {
namespace {

using Words = std::vector<std::string>;

const Launcher kOpenMpi4{Mpi::open_mpi, "/usr/bin/mpirun", "4.1.4"};
const Launcher kOpenMpi5{Mpi::open_mpi, "/opt/ompi/bin/mpirun", "5.0.3"};
const Launcher kMpich{Mpi::mpich, "/usr/bin/mpiexec", "4.0.2"};

Words words_of(const Launcher& launcher, const LaunchEnvironment& environment) {
  Words words;
  for (const Option& option : launch_options(launcher, environment))
    words.insert(words.end(), option.words.begin(), option.words.end());
  return words;
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

  EXPECT_FALSE(launcher_of("x", ""));
  EXPECT_FALSE(launcher_of("x", "GNU bash, version 5.2"));
  EXPECT_EQ(launcher_of("x", "mpirun (Open MPI)")->major(), 0);  // a version may be missing
}

TEST(Launcher, IsThatOfTheProgramsMpi) {
  EXPECT_EQ(mpi_of("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"), Mpi::open_mpi);
  EXPECT_EQ(mpi_of("MPICH Version:\t4.0.2\nMPICH Release date: ..."), Mpi::mpich);
  EXPECT_FALSE(mpi_of("Intel(R) MPI Library 2021.5 for Linux* OS"));
  EXPECT_FALSE(mpi_of("another"));
}

TEST(Launcher, OptionsOfOpenMpi) {
  LaunchEnvironment s{.ranks = 2};
  EXPECT_EQ(words_of(kOpenMpi4, s), (Words{"-np", "2", "--oversubscribe", "--bind-to", "none"}));
  s.root = s.container = true;
  EXPECT_EQ(words_of(kOpenMpi4, s),
            (Words{"-np", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                   "--mca", "btl_vader_single_copy_mechanism", "none"}));
  EXPECT_EQ(words_of(kOpenMpi5, s),
            (Words{"-np", "2", "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to",
                   "none", "--mca", "smsc", "^cma"}));
}

TEST(Launcher, OptionsOfMpich) {
  EXPECT_EQ(words_of(kMpich, {.ranks = 3, .root = true, .container = true}), (Words{"-n", "3"}));
}

TEST(Launcher, SaysWhyOptionsAreThere) {
  EXPECT_EQ(explained(launch_options(kOpenMpi4, {.ranks = 3, .root = true})),
            "--allow-run-as-root (this is root), --oversubscribe (there may be more ranks than "
            "cores), --bind-to none (a rank places its threads on cores itself)");
  EXPECT_EQ(explained(launch_options(kMpich, {})), "");
}

}  // namespace
}  // namespace megatron::comm::launch
