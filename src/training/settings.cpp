#include "training/settings.h"

namespace megatron::training {

Fields TrainSettings::fields() {
  Fields f;
  shape.fields(f);
  batch.fields(f);
  precision.fields(f);
  optimizer.fields(f);
  parallel.fields(f);
  recompute.fields(f);
  offload.fields(f);
  graphs.fields(f);
  data.fields(f);
  runtime.fields(f);
  run.fields(f);
  checkpoint.fields(f);
  log.fields(f);
  profile.fields(f);
  return f;
}

}  // namespace megatron::training
