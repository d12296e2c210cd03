#include "comm/processes.h"

#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "comm/mpi/group.h"
#include "comm/mpi/watch.h"
#include "comm/tcp/star.h"

namespace megatron::comm {

struct Processes::State {
  std::optional<TermSignal> signal;
  std::shared_ptr<Session> session;  // null with a single process
  std::unique_ptr<Group> world;
  std::unique_ptr<Watch> watch;  // null with a single process
  std::unique_ptr<Star> star;    // used instead of MPI
  int exceptions = std::uncaught_exceptions();
};

namespace {

std::string other_launcher(const Launch& launch, const Session& session) {
  const ProcessPlace& place = *launch.place;
  const std::string& library = session.library();
  const std::string slurm = library.starts_with("Open MPI") ? " or 'srun --mpi=pmix'"
                            : library.starts_with("MPICH")  ? " or 'srun --mpi=pmi2'"
                                                            : "";
  return fmt::format(
      "the launcher named rank {} of {} processes ({}), but {}, which this program was built with, "
      "found rank {} of {}: that launcher is not one of {}. Start the program with 'megatron "
      "launch', or with the mpirun of {}{}{}",
      place.rank, place.size, place.source, library, session.rank(), session.size(), library,
      library, slurm, launch.note.empty() ? "" : ". " + launch.note);
}

}  // namespace

Processes::Processes(int64_t largest_message)
    : launch_(find_launch(environment())), state_(std::make_unique<State>()) {
  MG_ASSERT(largest_message > 0);
  if (size() == 1) {
    state_->world = single();
    return;
  }
  if (meets()) {
    state_->star = make_star(rendezvous_address(environment()), rank(), size(), kRendezvousSeconds);
    return;
  }
  state_->signal.emplace();
  state_->session = std::make_shared<Session>();
  const Session& session = *state_->session;
  if (session.size() != launch_.place->size || session.rank() != launch_.place->rank) {
    wait_for_lead();
    throw Error(other_launcher(launch_, session));
  }
  launch_.place->local_rank = session.local_rank();
  launch_.place->local_size = session.local_size();
  state_->world = mpi_world(state_->session, largest_message);
  state_->watch = std::make_unique<Watch>(state_->session, *state_->signal);
}

Processes::~Processes() {
  if (state_->star != nullptr) end_star(std::uncaught_exceptions() > state_->exceptions);
  if (state_->session == nullptr || std::uncaught_exceptions() > state_->exceptions) return;
  try {
    state_->world.reset();
    state_->watch->close();
    state_->session->finalize();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
    state_->session->abort(1);
  }
}

Group& Processes::group() {
  return state_->star != nullptr ? state_->star->world() : *state_->world;
}
Star* Processes::star() { return state_->star.get(); }

std::string Processes::description() const {
  if (size() == 1) return "one process";
  if (meets()) return fmt::format("{} processes connected over TCP", size());
  return fmt::format("{} processes under {}", size(), state_->session->library());
}

void Processes::body_begins(WaitLimits limits) {
  if (state_->star != nullptr) state_->star->body_begins(limits);
  if (state_->watch != nullptr) state_->watch->body_begins(limits);
}

void Processes::body_ended() {
  if (state_->watch != nullptr) state_->watch->body_ended();
}

void Processes::be_quiet() const {
  if (state_ != nullptr && state_->watch != nullptr) state_->watch->be_quiet();
}

void Processes::abort(int code) {
  be_quiet();
  if (state_->star != nullptr) return abort_star(code);
  if (state_->session != nullptr) state_->session->abort(code);
}

}  // namespace megatron::comm
