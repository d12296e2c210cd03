#include "report/log/record.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace megatron::report {

double perplexity(double loss) { return std::exp(std::isnan(loss) ? loss : std::min(20.0, loss)); }

std::string readable(std::string_view text) {
  std::string out;
  append_lossy(text, true, out);
  return out;
}

}  // namespace megatron::report
