#include "checkpoint/pickle.h"

#include "support.h"

namespace megatron::checkpoint {
namespace {

using namespace std::string_literals;
using Kind = PickleValue::Kind;

constexpr std::string_view kKnown[] = {"torch.make"};

// Pickle program of protocol 2: `body`, then STOP.
std::string program(const std::string& body) { return "\x80\x02" + body + "."; }

// The texts of the result point into `bytes`.
Pickle read(const std::string& bytes) { return {std::as_bytes(std::span(bytes)), kKnown, "x.bin"}; }

std::string pickle_error(const std::string& bytes) {
  return error_of([&] { read(bytes); });
}

TEST(Pickle, ReadsNumbersAndTexts) {
  const std::string bytes = program(
      "(K\xffM\x34\x12J\xfe\xff\xff\xff\x8a\x00\x8a\x01\x80\x8a\x02\xff\x00"
      "\x8b\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80"
      "\x88\x89NX\x02\x00\x00\x00hiU\x01y\x8c\x01zC\x02"
      "ab\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01t"s);
  const Pickle pickle = read(bytes);
  EXPECT_EQ(pickle.size(), bytes.size());
  ASSERT_TRUE(pickle.root().is(Kind::tuple));
  const auto& items = pickle.root().items;
  ASSERT_EQ(items.size(), 15u);
  const int64_t integers[] = {255, 0x1234, -2, 0, -128, 255, INT64_MIN};
  for (size_t i = 0; i < std::size(integers); ++i) {
    EXPECT_TRUE(items[i]->is(Kind::integer));
    EXPECT_EQ(items[i]->integer, integers[i]) << i;
  }
  EXPECT_TRUE(items[7]->is(Kind::boolean) && items[7]->integer == 1);
  EXPECT_TRUE(items[8]->is(Kind::boolean) && items[8]->integer == 0);
  EXPECT_TRUE(items[9]->is(Kind::none));
  EXPECT_EQ(items[10]->text, "hi");
  EXPECT_EQ(items[11]->text, "y");
  EXPECT_EQ(items[12]->text, "z");
  EXPECT_TRUE(items[13]->is(Kind::bytes) && items[13]->text == "ab");
  EXPECT_TRUE(items[14]->is(Kind::large_integer) && items[14]->text.size() == 9);
}

TEST(Pickle, ReadsContainersAndWhatTheyShare) {
  const std::string bytes = program(
      "}q\x00(U\x01"
      "a](K\x01K\x02"
      "eq\x01U\x01"
      "bh\x01uU\x01"
      "c(K\x07tsU\x01"
      "dh\x00s"s);
  const Pickle pickle = read(bytes);
  const auto& items = pickle.root().items;
  ASSERT_TRUE(pickle.root().is(Kind::dict));
  ASSERT_EQ(items.size(), 8u);
  EXPECT_EQ(items[1], items[3]);  // one list under two keys
  ASSERT_TRUE(items[1]->is(Kind::list));
  EXPECT_EQ(items[1]->items[1]->integer, 2);
  EXPECT_TRUE(items[5]->is(Kind::tuple));
  EXPECT_EQ(items[7], &pickle.root());  // the dict contains itself
}

TEST(Pickle, KeepsCallsAndIdsAsValues) {
  const std::string bytes = program("ctorch\nmake\n(U\x01kQK\x05tR"s);
  const Pickle pickle = read(bytes);
  const PickleValue& root = pickle.root();
  ASSERT_TRUE(root.is(Kind::call));
  EXPECT_TRUE(root.items[0]->is_global("torch.make"));
  const auto& arguments = root.items[1]->items;
  ASSERT_EQ(arguments.size(), 2u);
  ASSERT_TRUE(arguments[0]->is(Kind::persistent));
  EXPECT_EQ(arguments[0]->items[0]->text, "k");
  EXPECT_EQ(pickle.persistent(), (std::vector<const PickleValue*>{arguments[0]}));
}

TEST(Pickle, OrderedDictsAreDicts) {
  for (const std::string& body : {"ccollections\nOrderedDict\n)R(U\x01"
                                  "aK\x01u}U\x09_metadata}sb"s,
                                  "ccollections\nOrderedDict\n](](U\x01"
                                  "aK\x01"
                                  "ee\x85R"s,  // Python 2
                                  "\x8c\x0b"
                                  "collections\x94\x8c\x0bOrderedDict\x94\x93)R(U\x01"
                                  "aK\x01u"s}) {
    const std::string bytes = program(body);
    const Pickle pickle = read(bytes);
    ASSERT_TRUE(pickle.root().is(Kind::dict)) << body;
    ASSERT_EQ(pickle.root().items.size(), 2u) << body;
    EXPECT_EQ(pickle.root().items[0]->text, "a");
    EXPECT_EQ(pickle.root().items[1]->integer, 1);
  }
}

TEST(Pickle, CallsNothingAndNamesWhatItWouldCall) {
  const struct {
    std::string body, name;
  } cases[] = {
      {"cposix\nsystem\nU\x02ls\x85R", "'posix.system'"},
      {"cbuiltins\neval\n", "'builtins.eval'"},
      {"U\x05posixU\x06system\x93", "'posix.system'"},
      {"(U\x02lsiposix\nsystem\n", "'posix.system'"},
      {"(ctorch\nmake\nU\x02lso", "'torch.make'"},
      {"ctorch\nmake\n)\x81", "'torch.make'"},
      {"ctorch\nmake\n)}\x92", "'torch.make'"},
      {"ccollections\nOrderedDict\n)\x81", "'collections.OrderedDict'"},
      {"ctorch\nmake\n)R}b", "'torch.make.__setstate__'"},
      {"ctorch.make\n\n", "'torch.make.'"},
      {"c\x1b[2J\nf\xc3\xa4\n",
       "'?[2J.f?"
       "?'"},
      {"c" + std::string(300, 'x') + "\nf\n", "xxx....f'"},
  };
  for (const auto& c : cases) {
    const std::string error = pickle_error(program(c.body));
    EXPECT_TRUE(contains(error, "x.bin") && contains(error, c.name)) << c.body << "\n" << error;
    EXPECT_TRUE(contains(error, "Nothing in it was executed")) << error;
    EXPECT_TRUE(contains(error, "safe_serialization")) << error;
  }
}

TEST(Pickle, RefusesDamage) {
  const struct {
    std::string bytes, reason;
  } cases[] = {
      {"", "ends too early"},
      {"N.", "does not begin with a protocol"},
      {"\x80\x01N.", "uses pickle protocol 1; 2 to 5 are supported"},
      {"\x80\x06N.", "uses pickle protocol 6"},
      {"\x80\x02N", "ends too early"},
      {"\x80\x02.", "a value is missing"},
      {program("NN"), "more than one value"},
      {program("X\xff\xff\xff\x7f"s), "ends too early"},
      {program("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s), "ends too early"},
      {program("\x8b\xff\xff\xff\xff"s), "ends too early"},
      {program("ctorch"), "a line is not terminated"},
      {program("ctorch\nmake"), "a line is not terminated"},
      {program("NN\x87"), "a value is missing"},
      {program("N(\x85"), "a value is missing"},
      {program("N(0"), "a value is missing"},
      {program("t"), "a mark is missing"},
      {program("Na"), "a value is missing"},
      {program("NNa"), "a value that is not a list"},
      {program("]NNs"), "a value that is not a dict"},
      {program("}(Nu"), "a key has no value"},
      {program("h\x07"), "not stored there"},
      {program("j\x07\x00\x00\x00"s), "not stored there"},
      {program("q\x07"), "a value is missing"},
      {program("N)R"), "no named callable"},
      {program("ctorch\nmake\nNR"), "not a tuple"},
      {program("ccollections\nOrderedDict\nN\x85R"), "not a list"},
      {program("ccollections\nOrderedDict\n]Na\x85R"), "not a list of pairs"},
      {program("NN\x93"), "not a string"},
      {program("N)\x81"), "not a class"},
      {program("(o"), "not a class"},
      {program("N}b"), "not an OrderedDict"},
      {program("\x8f"), "0x8f at byte 2"},
      {program("P1\n"), "0x50 at byte 2"},
  };
  for (const auto& c : cases) {
    const std::string error = pickle_error(c.bytes);
    EXPECT_TRUE(contains(error, c.reason)) << c.bytes << "\n" << error;
    EXPECT_TRUE(error.starts_with("x.bin")) << error;
  }
}

TEST(Pickle, HasALimitOfSteps) {
  std::string endless = "\x80\x02Nq\x01";
  for (size_t i = 0; i < Pickle::kMaxSteps / 2; ++i)
    endless +=
        "h\x01"
        "0";
  EXPECT_TRUE(contains(pickle_error(endless + "."), "more than 5000000 instructions"));
  // Many calls each copy a list of pairs.
  std::string copies =
      "\x80\x02(](K\x01K\x02"
      "eq\x01"
      "0](";
  for (int i = 0; i < 3000; ++i) copies += "h\x01";
  copies +=
      "e\x85q\x02"
      "0ccollections\nOrderedDict\nq\x03"
      "0";
  for (int i = 0; i < 3000; ++i) copies += "h\x03h\x02R";
  EXPECT_TRUE(contains(pickle_error(copies + "t."), "more than 5000000 instructions"));
}

}  // namespace
}  // namespace megatron::checkpoint
