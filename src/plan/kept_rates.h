// Rates of this machine that are measured once and kept between runs, so that the shares of them
// that runs print can be compared. One small JSON file a rate.
#pragma once

#include <functional>
#include <string>

#include "base/dtype.h"
#include "base/json.h"
#include "device/device.h"

namespace megatron::plan {

struct Rate {
  double value = 0;   // FLOP/s, or bytes/s
  double spread = 0;  // of its samples: (largest - smallest) / largest
  // Of the processors' time while it was measured, the share that this process had; 1 on a GPU.
  double share = 1;
  std::string kept_since;  // "2026-11-23 04:24 UTC", of an earlier run; empty: measured now
  std::string not_kept;    // why one that was measured now is not kept; empty: it is

  // "kept from 2026-11-23 04:24 UTC (--measure-peak measures it again)", or "measured now, ...".
  std::string origin() const;
};

struct RateKeeping {
  // Where the files lie; it is made when there is something to keep. Empty: none is read or kept.
  std::string folder;
  bool renew = false;  // measure, whatever is kept
  // What not_kept says where there is no folder.
  std::string no_folder = "no folder was given for it";
};

// rates/ in base/user_cache.h's folder.
RateKeeping user_rates(bool renew);

// What a rate depends on: processor and its features, the processors and threads that may be used,
// the device, and this program: its name, and the build: version and the file's size and time, since
// a build may compute faster than the one before. what: "gemm f32". program: another one's file; empty: this one's.
Json rate_key(const std::string& what, Device device, int threads, const std::string& program = "");

// The rate that is kept under the key, or else what `measure` finds, which is kept unless its
// samples spread over 15% or it had less than 80% of the processors' time. A file that cannot be
// read, is damaged, or has another key counts as none; one that cannot be written is named in
// not_kept. Safe among processes: files appear whole, the last one stays.
Rate kept_rate(const RateKeeping& keeping, const Json& key, const std::function<Rate()>& measure);

// Of matrix products by all the threads, FLOP/s; takes about 0.6 s where it is measured. Of the program's own.
Rate gemm_peak(Device device, int threads, DType type, const RateKeeping& keeping);
// plan/machine_rates.h's library_gemm_rate; takes about 0.3 s where it is measured.
Rate library_gemm_peak(Device device, int threads, DType type, const RateKeeping& keeping);
// plan/machine_rates.h's copy_bandwidth, bytes/s.
Rate copy_rate(Device device, int threads, const RateKeeping& keeping);

}  // namespace megatron::plan
