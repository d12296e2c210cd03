// POST /admin/reload
#include "base/log.h"
#include "server/endpoints.h"
#include "server/parameters.h"

namespace megatron::server {

HttpAnswer reload(const Api& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Parameters p(body);
  const std::optional<std::string> directory = p.text("load");
  if (directory && directory->empty())
    p.fail("load", "is empty; give a directory, or leave it out to reload the current one");
  if (directory && directory->find('\0') != directory->npos)
    p.fail("load", "contains a zero byte; give the path of a directory");
  const Clock::time_point begin = Clock::now();
  api.engine.reload(directory);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  log::info("new requests use the new weights from now on");
  return {.body = Json(Json::Object{{"status", "reloaded"}, {"seconds", seconds}}).dump()};
}

}  // namespace megatron::server
