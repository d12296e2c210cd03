#include "autograd/offload.h"

#include "unit/autograd/products.h"

namespace megatron {
namespace {

constexpr int64_t kRoom = 192;  // bytes of [kRows, kWidth] f64 in an arena

class OffloadTest : public TapeTest {
 protected:
  int64_t used(MemoryClass c) { return runtime.arena(c).in_use(); }
  Parameter a = parameter("a"), b = parameter("b");
};

// Logs the bytes in the arenas when backward passes.
struct Watched {
  std::vector<int64_t>* host;
  Arena* arena;
};
void watch(Backward& backward) {
  const auto& w = backward.attributes<Watched>();
  w.host->push_back(w.arena->in_use());
}

TEST_F(OffloadTest, MovesEachStorageOnceAndComesBackBitForBit) {
  const Tensor dy = drawn({kRows, kWidth}, "dy");
  std::vector<std::vector<double>> resident;
  for (const bool offload : {false, true}) {
    for (const bool in_parts : {false, true}) {
      a.uses[0] = {.grad = a.uses[0].grad};
      Tape tape(runtime);
      const Var x = tape.leaf(drawn({kRows, kWidth}, "x"));
      const int64_t before = used(MemoryClass::activations);
      Var h = product(tape, x, b);
      const size_t first = tape.nodes();
      {
        // Two nodes with views of one storage, and a parameter that is saved like an activation.
        const Var upper(h.value.slice(0, 0, 2), h.id);
        tape.record_one({.name = "views", .inputs = {upper.id}, .saved = {upper.value, a.value}},
                        Tensor());
        h = product(tape, h, a);
      }
      h = product(tape, h, a);
      EXPECT_EQ(used(MemoryClass::activations) - before, 3 * kRoom);
      std::vector<int64_t> host;
      if (offload) {
        const Offloaded moved = Offloaded::move(tape, first);
        // The two inputs of a's products are kept, except x, which these nodes do not own; h flows
        // on.
        EXPECT_EQ(moved.storages(), 2u);
        EXPECT_EQ(used(MemoryClass::activations) - before, kRoom);
        EXPECT_EQ(used(MemoryClass::offload), 2 * kRoom);
        Node node{.name = "watch", .dgrad = watch, .root = true};
        node.attributes = Watched{&host, &runtime.arena(MemoryClass::offload)};
        tape.record(node, {});
        moved.bring_back_here(tape);
        tape.record(node, {});
      }
      tape.set_gradient(h, dy);
      if (in_parts) tape.backward(BackwardPart::input);
      tape.backward(in_parts ? BackwardPart::weight : BackwardPart::all);
      const std::vector<std::vector<double>> gradients = {to_doubles(tape.gradient(x)),
                                                          gradient(a)};
      if (resident.empty()) resident = gradients;
      EXPECT_EQ(gradients, resident);
      if (offload) {
        EXPECT_EQ(host, (std::vector<int64_t>{2 * kRoom, 0}));
      }
      EXPECT_EQ(used(MemoryClass::offload), 0);
    }
  }
}

TEST_F(OffloadTest, ComesBackWithoutBeingCalled) {
  const Tensor dy = drawn({kRows, kWidth}, "dy");
  Tape tape(runtime);
  const Var h = product(tape, tape.leaf(drawn({kRows, kWidth}, "x")), b);
  const Var y = product(tape, h, a);
  EXPECT_EQ(Offloaded::move(tape, 1).storages(), 1u);
  tape.set_gradient(y, dy);
  tape.backward();
  EXPECT_EQ(used(MemoryClass::offload), 0);
  const std::vector<double> moved = gradient(a);

  a.uses[0] = {.grad = a.uses[0].grad};
  Tape plain(runtime);
  const Var z = product(plain, product(plain, plain.leaf(drawn({kRows, kWidth}, "x")), b), a);
  plain.set_gradient(z, dy);
  plain.backward();
  EXPECT_EQ(moved, gradient(a));
}

TEST_F(OffloadTest, ATapeThatIsClearedFreesTheHost) {
  Tape tape(runtime);
  product(tape, product(tape, tape.leaf(drawn({kRows, kWidth}, "x")), b), a);
  Offloaded::move(tape, 0);
  EXPECT_GT(used(MemoryClass::offload), 0);
  tape.clear();
  EXPECT_EQ(used(MemoryClass::offload), 0);
}

}  // namespace
}  // namespace megatron
