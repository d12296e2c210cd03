// Multi-token prediction of which only the depths are trained by their losses.
#include <gtest/gtest.h>

#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

TEST(DetachedPrediction, TrainsTheDepthsAlone) {
  const auto gradients = [](bool detached, bool predicts) {
    TinyModel tiny = predicting_model();
    tiny.flags.mtp_detach_heads = detached;
    models::Model model = tiny.model();
    if (!predicts) model = model->with({.prediction = models::PredictionChange{}});
    const Environment environment;
    return Experiment(model, DeviceKind::reference, DType::f64, DType::f64,
                      settings::LossScope::token, 2, 12, environment)
        .gradients({.micro_batch = 1});
  };
  const TensorMap detached = gradients(true, true), joint = gradients(false, true),
                  alone = gradients(false, false);
  EXPECT_EQ(detached.size(), joint.size());
  int trunk = 0, depths = 0;
  for (const auto& [name, gradient] : detached) {
    if (alone.contains(name)) {
      EXPECT_EQ(gradient, alone.at(name)) << name;
      EXPECT_NE(gradient, joint.at(name)) << name;
      ++trunk;
    } else {
      EXPECT_EQ(gradient, joint.at(name)) << name;
      ++depths;
    }
  }
  EXPECT_GT(trunk, 0);
  EXPECT_GT(depths, 0);
}

}  // namespace
}  // namespace megatron::selftest
