// Rates of this machine that are measured once and kept between runs, so that the shares of peak
// that runs print can be compared. One small JSON file per rate.
#pragma once

#include <functional>
#include <string>

#include "base/dtype.h"
#include "base/json.h"
#include "device/device.h"

namespace megatron::plan {

struct Rate {
  double value = 0;   // FLOP/s, or bytes/s
  double spread = 0;  // between its samples: (largest - smallest) / largest
  // Share of processor time that this process had during the measurement; 1 on a GPU.
  double share = 1;
  // "2026-11-23 04:24 UTC", when an earlier run measured it; empty: measured now
  std::string kept_since;
  std::string not_kept;  // why a rate measured now is not stored; empty: it is

  // Formats "kept from 2026-11-23 04:24 UTC (--measure-peak measures it again)", or "measured now,
  // ...".
  std::string origin() const;
};

struct RateKeeping {
  // Directory of the files, created on first write. Empty: nothing is read or kept.
  std::string folder;
  bool renew = false;   // measure even if rates are stored
  bool measure = true;  // if false, a rate that is not stored is 0
  // Text of not_kept if there is no folder.
  std::string no_folder = "no folder was given for it";
};

// The folder rates/ in that of base/user_cache.h.
RateKeeping user_rates(bool renew);

// Everything a rate depends on: processor and its features, the processors and threads that may be
// used, the device, and this program: its name and build, i.e. version and the file's size and
// time, since a newer build may compute faster. what: "gemm f32". program: path of another program;
// empty: this one.
Json rate_key(const std::string& what, Device device, int threads, const std::string& program = "");

// Returns the rate kept under the key, or else the result of `measure`, which is kept unless its
// samples spread over 15% or it had less than 80% of the processors' time. A file that cannot be
// read, is damaged, or has another key counts as absent; one that cannot be written is named in
// not_kept. Safe with several processes: files are written atomically, and the last one stays.
Rate kept_rate(const RateKeeping& keeping, const Json& key, const std::function<Rate()>& measure);

// FLOP/s of the program's own matrix products on all threads; a measurement takes about 0.6 s.
Rate gemm_peak(Device device, int threads, DType type, const RateKeeping& keeping);
// library_gemm_rate of plan/machine_rates.h; takes about 0.3 s if it is measured.
Rate library_gemm_peak(Device device, int threads, DType type, const RateKeeping& keeping);
// copy_bandwidth of plan/machine_rates.h, bytes/s.
Rate copy_rate(Device device, int threads, const RateKeeping& keeping);

}  // namespace megatron::plan
