#include <algorithm>
#include <utility>

#include "base/error.h"
#include "parallel/schedule.h"

namespace megatron::parallel {
namespace {

using Kind = Action::Kind;

// Assigns micro-batches in ascending order to each chunk's forwards, backwards and weights. Actions
// of micro-batches that the step does not have are omitted: the rest remains executable, since
// micro-batches do not depend on one another.
class Writer {
 public:
  explicit Writer(int micro_batches) : micro_batches_(micro_batches) {}

  void forward(int chunk) { add(Kind::forward, chunk); }
  void backward(int chunk) { add(Kind::backward, chunk); }
  void weight(int chunk) { add(Kind::weight, chunk); }
  int forwards(int chunk) const { return next_[0][chunk]; }
  bool owes_weight(int chunk) const { return next_[2][chunk] < next_[1][chunk]; }

  Schedule take() { return std::move(schedule_); }

 private:
  void add(Kind kind, int chunk) {
    const int m = next_[static_cast<int>(kind)][chunk]++;
    if (m < micro_batches_) schedule_.push_back({kind, chunk, m});
  }

  int micro_batches_;
  int next_[3][2] = {};  // by kind and chunk
  Schedule schedule_;
};

}  // namespace

Schedule zero_bubble_h1(int stage, int stages, int micro_batches) {
  MG_ASSERT(stages >= 1 && stage >= 0 && stage < stages && micro_batches >= 0);
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  Writer writer(micro_batches);
  for (int m = 0; m < warm_up; ++m) writer.forward(0);
  // A stage that began with fewer forwards than the first defers correspondingly more weights:
  // every stage then keeps as many micro-batches alive as 1F1B's first stage.
  for (int m = 0; m < micro_batches; ++m) {
    if (m + warm_up < micro_batches) writer.forward(0);
    writer.backward(0);
    if (m >= stage) writer.weight(0);
  }
  while (writer.owes_weight(0)) writer.weight(0);
  return writer.take();
}

Schedule zero_bubble_v(int stage, int stages, int micro_batches) {
  MG_ASSERT(stages >= 1 && stage >= 0 && stage < stages && micro_batches >= 0);
  const int below = stages - stage;  // stages from this one to the turning point
  Writer writer(micro_batches);
  // Forwards until the first micro-batch has passed down and back up.
  for (int i = 0; i < 2 * below - 1; ++i) writer.forward(0);
  for (int i = 0; i < stage; ++i) {
    writer.forward(1);
    writer.forward(0);
  }
  // Backwards of the upper arm, until the first has passed down it and back up the lower one.
  for (int i = 0; i < below; ++i) {
    writer.forward(1);
    writer.backward(1);
    writer.weight(1);
  }
  const int total = std::max(micro_batches, 2 * stages - 1);
  while (writer.forwards(1) < total) {
    if (writer.forwards(0) < total) writer.forward(0);
    writer.backward(0);
    writer.weight(0);
    writer.forward(1);
    writer.backward(1);
    writer.weight(1);
  }
  // Input gradients that other stages wait for come first; weights fill the remaining time.
  for (int i = 0; i < stage; ++i) {
    writer.backward(0);
    writer.backward(1);
  }
  for (int i = 0; i < below; ++i) {
    writer.backward(0);
    writer.weight(0);
  }
  while (writer.owes_weight(1)) writer.weight(1);
  while (writer.owes_weight(0)) writer.weight(0);
  return writer.take();
}

}  // namespace megatron::parallel
