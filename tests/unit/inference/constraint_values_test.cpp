// Numbers within bounds and string formats, checked by independent methods.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "constraint_cases.h"
#include "inference/constraint/grammar.h"

namespace megatron::inference {
namespace {

bool has(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  return reads(grammar, text) == 1;
}

TEST(ConstraintNumber, IntegersLieWithinTheirBounds) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    int64_t low = static_cast<int64_t>(random() % 400) - 200;
    int64_t high = low + static_cast<int64_t>(random() % 300);
    const bool exclusive = round % 3 == 0, has_low = round % 5 != 0, has_high = round % 7 != 0;
    const int64_t divisor = round % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 30);
    if (exclusive) high += 2 * divisor + 2;
    Json schema = Json::Object{{"type", "integer"}};
    if (has_low) schema.set(exclusive ? "exclusiveMinimum" : "minimum", low);
    if (has_high) schema.set(exclusive ? "exclusiveMaximum" : "maximum", high);
    if (divisor > 1) schema.set("multipleOf", divisor);
    if (low + divisor > high) continue;  // there may be none
    if (exclusive) ++low, --high;
    const auto grammar = Grammar::from_json_schema(schema);
    for (int64_t value = -450; value <= 1200; value += 1 + (value % 5 == 0)) {
      const bool wanted =
          (!has_low || value >= low) && (!has_high || value <= high) && value % divisor == 0;
      ASSERT_EQ(has(grammar, std::to_string(value)), wanted) << schema.dump() << " " << value;
    }
  }
}

TEST(ConstraintNumber, NumbersLieWithinTheirBounds) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 60; ++round) {
    const double low = static_cast<double>(static_cast<int64_t>(random() % 4000) - 2000) / 100;
    const double high =
        std::stod(fmt::format("{:.3f}", low + static_cast<double>(1 + random() % 3000) / 1000));
    const bool exclusive = round % 2 == 0, has_low = round % 5 != 0, has_high = round % 7 != 0;
    Json schema = Json::Object{{"type", "number"}};
    if (has_low) schema.set(exclusive ? "exclusiveMinimum" : "minimum", low);
    if (has_high) schema.set(exclusive ? "exclusiveMaximum" : "maximum", high);
    if (!has_low && !has_high) continue;
    const auto grammar = Grammar::from_json_schema(schema);
    for (int i = 0; i < 200; ++i) {
      const int places = static_cast<int>(random() % 4);
      const double near = low + (high - low) * (static_cast<double>(random() % 2000) / 1000 - 0.5);
      std::string text = i % 20 == 0 ? fmt::format("{}", i % 40 == 0 ? low : high)
                                     : fmt::format("{:.{}f}", near, places);
      const double value = std::stod(text);
      const bool is_zero = value == 0 && text[0] == '-';  // "-0.0" is excluded
      const bool wanted = (!has_low || value > low || (value == low && !exclusive)) &&
                          (!has_high || value < high || (value == high && !exclusive));
      ASSERT_EQ(has(grammar, text), wanted && !is_zero) << schema.dump() << " " << text;
    }
  }
}

TEST(ConstraintNumber, HasOneSpelling) {
  const auto integer = Grammar::from_json_schema(Json::parse(R"({"type":"integer"})"));
  for (const char* text : {"0", "-1", "999999999999999999", "-999999999999999999"})
    EXPECT_TRUE(has(integer, text)) << text;
  for (const char* text : {"-0", "01", "1.0", "1e3", "+1", "", "-", "1000000000000000000"})
    EXPECT_FALSE(has(integer, text)) << text;
  const auto number = Grammar::from_json_schema(Json::parse(R"({"type":"number"})"));
  for (const char* text : {"0", "-0.5", "1e10", "1.5E-7", "12.25e+01"})
    EXPECT_TRUE(has(number, text)) << text;
  for (const char* text : {".5", "1.", "01", "1e", "1e999", "NaN"})
    EXPECT_FALSE(has(number, text)) << text;
  const auto cents = Grammar::from_json_schema(
      Json::parse(R"({"type":"number","multipleOf":0.01,"minimum":0,"maximum":1e300})"));
  EXPECT_TRUE(has(cents, "19.99"));
  EXPECT_TRUE(has(cents, "7"));
  EXPECT_FALSE(has(cents, "19.999"));
  EXPECT_FALSE(has(cents, "-1"));
  const auto tens = Grammar::from_json_schema(
      Json::parse(R"({"type":"number","multipleOf":10,"exclusiveMinimum":-1e-9})"));
  EXPECT_TRUE(has(tens, "0"));
  EXPECT_TRUE(has(tens, "120"));
  EXPECT_FALSE(has(tens, "125"));
  EXPECT_FALSE(has(tens, "-10"));
}

std::shared_ptr<const Grammar> format(const std::string& name) {
  return Grammar::from_json_schema(Json::Object{{"type", "string"}, {"format", name}});
}

TEST(ConstraintFormat, DatesAreThoseOfTheCalendar) {
  const auto date = format("date");
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  for (const int year : {0, 1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 2400, 9996}) {
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    for (int month = 0; month <= 13; ++month) {
      for (int day = 0; day <= 32; ++day) {
        const bool wanted = year > 0 && month >= 1 && month <= 12 && day >= 1 &&
                            day <= kDays[month - 1] + (month == 2 && leap ? 1 : 0);
        const std::string text = fmt::format("\"{:04}-{:02}-{:02}\"", year, month, day);
        ASSERT_EQ(has(date, text), wanted) << text;
      }
    }
  }
}

TEST(ConstraintFormat, ReadsEach) {
  struct Case {
    std::string format;
    std::vector<std::string> good, bad;
  };
  const std::vector<Case> cases = {
      {"time",
       {"00:00:00Z", "23:59:59.123456+05:30"},
       {"24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00Z", "12:00:00.Z"}},
      {"date-time",
       {"2024-02-29T12:00:00Z", "1999-12-31T23:59:59.5-08:00"},
       {"2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:00:00"}},
      {"duration",
       {"P1D", "P1Y2M3DT4H5M6S", "PT36H", "P2W", "P1YT1S"},
       {"P", "PT", "P1", "1D", "P1H", "PT1D", "P1Y1D", "P1W1D", "PT1H1S"}},
      {"email",
       {"a@b.co", "first.last+tag@mail.example.org"},
       {"a@b", "@b.co", "a@", "a..b@c.de", ".a@b.co", "a@-b.co", "a b@c.de"}},
      {"hostname",
       {"localhost", "a-b.example.com", "1.2.3"},
       {"", "-a", "a-", "a..b", "a_b", ".a", "a."}},
      {"ipv4", {"0.0.0.0", "255.255.255.255", "1.20.103.9"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
      {"ipv6",
       {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2", "::ffff:192.168.0.1", "1::3:4:5:6:7:8",
        "1:2:3:4:5:6:7::", "1:2:3:4:5:6:1.2.3.4", "2001:DB8::a"},
       {":", ":::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3",
        "12345::", "g::", "1:2:3:4:5:6:7:8::", "::1.2.3", "1.2.3.4::"}},
      {"uuid",
       {"123e4567-e89b-12d3-a456-426614174000"},
       {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"}}};
  for (const Case& one : cases) {
    const auto grammar = format(one.format);
    for (const auto& text : one.good)
      EXPECT_TRUE(has(grammar, "\"" + text + "\"")) << one.format << " " << text;
    for (const auto& text : one.bad)
      EXPECT_FALSE(has(grammar, "\"" + text + "\"")) << one.format << " " << text;
  }
}

}  // namespace
}  // namespace megatron::inference
