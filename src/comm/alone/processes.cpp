// Build without MPI: a process is always alone.
#include "comm/processes.h"

#include <exception>

#include "base/error.h"
#include "comm/tcp/star.h"

namespace megatron::comm {

struct Processes::State {
  std::unique_ptr<Group> world = single();
  std::unique_ptr<Star> star;
  int exceptions = std::uncaught_exceptions();
};

Processes::Processes(int64_t) : launch_(find_launch(environment())) {
  if (size() > 1 && !meets()) {
    wait_for_lead();
    fail(
        "a launcher started {} processes ({}), but this program was built without MPI: install "
        "libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and rebuild it, or start one "
        "process with {} ranks as its threads",
        size(), launch_.place->source, size());
  }
  state_ = std::make_unique<State>();
  if (meets())
    state_->star = make_star(rendezvous_address(environment()), rank(), size(), kRendezvousSeconds);
}

Processes::~Processes() {
  if (star() != nullptr) end_star(std::uncaught_exceptions() > state_->exceptions);
}

Group& Processes::group() { return star() != nullptr ? star()->world() : *state_->world; }
Star* Processes::star() { return state_->star.get(); }

std::string Processes::description() const {
  return meets() ? fmt::format("{} processes connected over TCP", size()) : "one process";
}

void Processes::abort(int code) {
  if (star() != nullptr) abort_star(code);
}
void Processes::body_begins(WaitLimits limits) {
  if (star() != nullptr) star()->body_begins(limits);
}
void Processes::body_ended() {}
void Processes::be_quiet() const {}

}  // namespace megatron::comm
