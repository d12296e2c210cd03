#include "inference/constraint/formats.h"

#include <fmt/core.h>

#include <array>

namespace megatron::inference {
namespace {

// Pattern of the valid dates of the Gregorian calendar.
std::string date_pattern() {
  const std::string year = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
  const std::string leap_year =
      "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  return "(?:" + year +
         "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
         "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" +
         leap_year + "-02-29)";
}

std::string time_pattern() {
  return "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?"
         "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))";
}

// RFC 3339, appendix A.
std::string duration_pattern() {
  const std::string n = "[0-9]{1,9}";
  const std::string seconds = n + "S", minutes = n + "M(?:" + seconds + ")?",
                    hours = n + "H(?:" + minutes + ")?";
  const std::string time = "T(?:" + hours + "|" + minutes + "|" + seconds + ")";
  const std::string days = n + "D", months = n + "M(?:" + days + ")?",
                    years = n + "Y(?:" + months + ")?";
  return "P(?:(?:" + days + "|" + months + "|" + years + ")(?:" + time + ")?|" + time + "|" + n +
         "W)";
}

constexpr const char* kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?";

std::string hostname_pattern() { return std::string(kLabel) + "(?:[.]" + kLabel + "){0,7}"; }

std::string email_pattern() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}";
  return atom + "(?:[.]" + atom + "){0,2}@" + kLabel + "(?:[.]" + kLabel + "){1,5}";
}

std::string ipv4_pattern() {
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return byte + "(?:[.]" + byte + "){3}";
}

// Eight groups, of which "::" stands for one or more; the last two may be an IPv4 address.
std::string ipv6_pattern() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const std::string last = "(?:" + group + ":" + group + "|" + ipv4_pattern() + ")";
  std::string all = "(?:" + group + ":){6}" + last;
  for (int before = 0; before <= 7; ++before) {
    const int behind = 7 - before;  // at most this many groups
    all += '|';
    if (before > 0) all += fmt::format("{0}(?::{0}){{{1}}}", group, before - 1);
    all += "::";
    if (behind >= 2)
      all += fmt::format("(?:(?:{}:){{0,{}}}{}|{})?", group, behind - 2, last, group);
    if (behind == 1) all += "(?:" + group + ")?";
  }
  return "(?:" + all + ")";
}

std::string uuid_pattern() {
  const std::string h = "[0-9A-Fa-f]";
  return h + "{8}-" + h + "{4}-" + h + "{4}-" + h + "{4}-" + h + "{12}";
}

// RFC 3986, with a scheme.
std::string uri_pattern() {
  const std::string plain = "A-Za-z0-9._~!$&'()*+,;=", percent = "%[0-9A-Fa-f]{2}";
  const auto any = [&](const std::string& more) {
    return "(?:[" + plain + more + "-]|" + percent + ")";
  };
  const std::string p = any(":@");
  const std::string authority =
      "(?:" + any(":") + "*@)?(?:" + any("") + "*|\\[" + ipv6_pattern() + "\\])(?::[0-9]*)?";
  const std::string path = "(?:/" + p + "*)*";
  return "[A-Za-z][A-Za-z0-9+.-]*:(?://" + authority + path + "|/(?:" + p + "+" + path + ")?|" + p +
         "+" + path + ")?(?:[?]" + any(":@/?") + "*)?(?:#" + any(":@/?") + "*)?";
}

constexpr std::array<std::string_view, 10> kNames = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"};

}  // namespace

std::string format_pattern(std::string_view format) {
  if (format == "date-time") return date_pattern() + "T" + time_pattern();
  if (format == "time") return time_pattern();
  if (format == "date") return date_pattern();
  if (format == "duration") return duration_pattern();
  if (format == "email") return email_pattern();
  if (format == "hostname") return hostname_pattern();
  if (format == "ipv4") return ipv4_pattern();
  if (format == "ipv6") return ipv6_pattern();
  if (format == "uri") return uri_pattern();
  if (format == "uuid") return uuid_pattern();
  return {};
}

std::string known_formats() {
  std::string all;
  for (const std::string_view name : kNames) {
    if (!all.empty()) all += name == kNames.back() ? " and " : ", ";
    all += name;
  }
  return all;
}

}  // namespace megatron::inference
