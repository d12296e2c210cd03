// The test program. A launcher can start it, too: with --save-to=FOLDER its processes save a
// divided model there and load it again.
#include <cstdio>

#include "checkpoint/save.h"
#include "processes.h"

namespace megatron::checkpoint {
namespace {

void save_and_load(comm::Group& world, const std::string& folder) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const WholeModel model = model_of_processes();
  const WholeLists whole(model);
  for (const TestLayout& layout : layouts_of_processes(world.size())) {
    DividedModel held(model, layout, world.rank(), runtime);
    const std::string path = folder + "/" + std::to_string(layout.seed), bits = held.bits();
    Save save(path, contents_of(held, whole), world, runtime.stream(), system_files(),
              Save::Snapshot::none);
    save.write();
    save.finish();
    held.clear();
    const CheckpointDirectory directory(path);
    load(directory.model(), held.weights(), whole.weights);
    directory.load_optimizer(held.optimizer(), whole.optimizer);
    MG_CHECK(held.bits() == bits, "rank {} loads other bits with {}", world.rank(), layout.text());
  }
  world.barrier("loaded");
}

}  // namespace
}  // namespace megatron::checkpoint

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kFlag = "--save-to=";
  if (argc != 2 || !std::string_view(argv[1]).starts_with(kFlag)) return RUN_ALL_TESTS();
  try {
    const std::string folder(std::string_view(argv[1]).substr(kFlag.size()));
    megatron::comm::Processes processes;
    processes.run(processes.size(), [&](megatron::comm::Group& world) {
      megatron::checkpoint::save_and_load(world, folder);
    });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
