#include "checkpoint/packed_tensor.h"

#include "base/error.h"
#include "checkpoint/fp8_tensor.h"
#include "checkpoint/mxfp4.h"

namespace megatron::checkpoint {

std::optional<Packing> take_packing(Json& config, const std::string& path) {
  constexpr std::string_view kKey = "quantization_config";
  const Json* const quantization = config.find(kKey);
  if (quantization == nullptr) return std::nullopt;
  std::optional<Packing> packing;
  if (!quantization->is_null()) {
    const Json* const method =
        quantization->is_object() ? quantization->find("quant_method") : nullptr;
    MG_CHECK(method != nullptr && method->is_string(),
             "'{}': {} is not an object with a quant_method", path, kKey);
    if (method->as_string() == "mxfp4") packing = mxfp4_packing();
    else if (method->as_string() == "fp8") packing = fp8_packing(*quantization, path);
    else
      fail(
          "'{}': the weights are quantized ({}.quant_method is '{}'), and only mxfp4 and fp8 are "
          "supported. Use a directory with weights in one of these, in bf16, fp16 or fp32",
          path, kKey, method->as_string());
  }
  std::erase_if(config.as_object(), [](const Json::Member& m) { return m.first == kKey; });
  return packing;
}

}  // namespace megatron::checkpoint
