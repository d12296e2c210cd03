// A build without MPI: a process is alone.
#include "comm/processes.h"

#include "base/error.h"

namespace megatron::comm {

struct Processes::State {
  std::unique_ptr<Group> world = single();
};

Processes::Processes(int64_t) : place_(process_place(environment())) {
  if (size() > 1) {
    wait_for_lead();
    fail(
        "a launcher started {} processes ({}), but this program was built without MPI: install "
        "libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and build it again, or start "
        "one process with {} ranks as its threads",
        size(), place_->told_by, size());
  }
  state_ = std::make_unique<State>();
}

Processes::~Processes() = default;

Group& Processes::group() { return *state_->world; }

std::string Processes::description() const { return "one process"; }

void Processes::abort(int) {}
void Processes::body_begins(double) {}
void Processes::body_ended() {}
void Processes::be_quiet() const {}

}  // namespace megatron::comm
