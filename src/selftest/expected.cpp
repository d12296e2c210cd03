#include "selftest/expected.h"

#include "base/error.h"

namespace megatron::selftest {

std::vector<std::string> Expected::names() const {
  std::vector<std::string> names;
  for (const checkpoint::TensorInfo& info : file_.tensors()) names.push_back(info.name);
  return names;
}

const Shape& Expected::shape(const std::string& name) const {
  const checkpoint::TensorInfo* info = file_.find(name);
  MG_CHECK(info != nullptr, "{} has no tensor '{}', which is needed", file_.path(), name);
  return info->shape;
}

std::vector<double> Expected::doubles(const std::string& name) {
  shape(name);
  used_.insert(name);
  return file_.doubles(name);
}

std::vector<int64_t> Expected::integers(const std::string& name) {
  shape(name);
  used_.insert(name);
  return file_.integers(name);
}

void Expected::report_unused(Report& report) const {
  for (const std::string& name : names()) {
    if (!used_.contains(name))
      report.fail(fmt::format("{} is in {} but was not compared", name, file_.path()));
  }
}

}  // namespace megatron::selftest
