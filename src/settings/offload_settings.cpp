#include "settings/offload_settings.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::settings {

void OffloadSettings::fields(Fields& f) {
  f.begin_group("memory");
  f.add("cpu-offloading-num-layers", &num_layers,
        "offload the activations that the first N layers of each pipeline stage's chunk save for "
        "backward to host memory; they are prefetched one layer ahead");
  f.add_switch("optimizer-cpu-offload", &optimizer, true,
               "keep optimizer state and master weights in host memory between steps");
  f.add("optimizer-offload-fraction", &optimizer_fraction,
        "share of the elements, in model order, that --optimizer-cpu-offload applies to; default "
        "1");
}

void OffloadSettings::check(int64_t chunk_layers, std::vector<SettingNote>& notes) const {
  MG_CHECK(num_layers >= 0 && (num_layers == 0 || num_layers < chunk_layers),
           "--cpu-offloading-num-layers is {}; it must lie in [0, {}], fewer than the layers of "
           "a pipeline stage's chunk: the last one is needed immediately",
           num_layers, std::max<int64_t>(chunk_layers - 1, 0));
  const double fraction = optimizer_fraction.value_or(1);
  MG_CHECK(fraction >= 0 && fraction <= 1,
           "--optimizer-offload-fraction is {}; it must lie in [0, 1]", fraction);
  if (optimizer_fraction && !optimizer)
    notes.push_back(
        {"optimizer-offload-fraction", "0", "it has no effect without --optimizer-cpu-offload"});
}

}  // namespace megatron::settings
