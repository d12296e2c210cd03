#include "checkpoint/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of pickles are little-endian");

constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr int kFirstProtocol = 2, kLastProtocol = 5;

// The instructions that torch writes in protocols 2 to 5, and those that are refused by name.
enum class Instruction : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersistentId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kInstance = 'i',
  kLongBinGet = 'j',
  kObject = 'o',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kNewObjectEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// A name from a file, for an error text: at most 100 characters, without terminal control
// characters.
std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 100)) result += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > 100 ? result + "..." : result;
}

}  // namespace

// The stack machine that executes a pickle's program.
class PickleReader {
 public:
  using Kind = PickleValue::Kind;

  PickleReader(Pickle& pickle, std::span<const std::byte> bytes,
               std::span<const std::string_view> known, const std::string& where)
      : pickle_(pickle), bytes_(bytes), known_(known), where_(where) {}

  void read() {
    require(number<Instruction>() == Instruction::kProtocol, "it does not begin with a protocol");
    const int protocol = number<uint8_t>();
    MG_CHECK(protocol >= kFirstProtocol && protocol <= kLastProtocol,
             "{}: it is of protocol {}; {} to {} are read", where_, protocol, kFirstProtocol,
             kLastProtocol);
    while (step(number<Instruction>())) count(1);
    pickle_.root_ = pop();
    require(stack_.empty(), "it ends with more than one value");
    pickle_.size_ = at_;
  }

 private:
  void count(size_t steps) {
    MG_CHECK(steps <= left_, "{}: it has more than {} instructions; divide it into more files",
             where_, Pickle::kMaxSteps);
    left_ -= steps;
  }

  void require(bool condition, std::string_view what) const {
    MG_CHECK(condition, "{} is damaged, or no pickle of weights: {}, at byte {}", where_, what,
             at_);
  }

  std::string_view take(uint64_t length) {
    require(length <= bytes_.size() - at_, "it ends too early");
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                                bytes_.size() - at_);
    const size_t length = rest.find('\n');
    require(length != rest.npos, "a line does not end");
    at_ += length + 1;
    return rest.substr(0, length);
  }

  PickleValue* push(Kind kind) {
    stack_.push_back(&pickle_.values_.emplace_back());
    stack_.back()->kind = kind;
    return stack_.back();
  }
  void push_integer(int64_t value, Kind kind = Kind::integer) { push(kind)->integer = value; }
  void push_text(std::string_view text, Kind kind = Kind::text) { push(kind)->text = text; }

  // Values above the last mark are separate from those below.
  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }

  PickleValue* top() const {
    require(stack_.size() > bottom(), "a value is missing");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* const value = top();
    stack_.pop_back();
    return value;
  }

  // Pops the values above the last mark, and the mark.
  std::vector<const PickleValue*> pop_mark() {
    require(!marks_.empty(), "a mark is missing");
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_tuple(size_t count) {
    require(stack_.size() - bottom() >= count, "a value is missing");
    std::vector<const PickleValue*> items(stack_.end() - static_cast<ptrdiff_t>(count),
                                          stack_.end());
    stack_.resize(stack_.size() - count);
    push(Kind::tuple)->items = std::move(items);
  }

  void extend(const std::vector<const PickleValue*>& items, Kind kind) {
    PickleValue* const target = top();
    require(target->is(kind), kind == Kind::list ? "something is appended to what is no list"
                                                 : "a key is set in what is no dict");
    require(kind == Kind::list || items.size() % 2 == 0, "a key has no value");
    target->items.insert(target->items.end(), items.begin(), items.end());
  }

  void push_long(size_t length) {
    const std::string_view digits = take(length);
    if (length > sizeof(int64_t)) return push_text(digits, Kind::large_integer);
    uint64_t value = 0;
    std::memcpy(&value, digits.data(), length);
    const bool negative = length > 0 && (static_cast<uint8_t>(digits.back()) & 0x80) != 0;
    if (negative && length < sizeof value) value |= ~uint64_t{0} << (8 * length);
    push_integer(static_cast<int64_t>(value));
  }

  [[noreturn]] void refuse(const std::string& name) const {
    fail(
        "{}: it needs '{}', which is none of the few names that weights need. Nothing in it is "
        "executed; if you trust its source, load it with torch, and save the model with "
        "safe_serialization",
        where_, name);
  }

  void push_global(std::string_view module, std::string_view name) {
    const auto is_it = [&](std::string_view known) {
      return known.size() == module.size() + 1 + name.size() && known.starts_with(module) &&
             known[module.size()] == '.' && known.ends_with(name);
    };
    if (is_it(kOrderedDict)) return push_text(kOrderedDict, Kind::global);
    const auto known = std::ranges::find_if(known_, is_it);
    if (known == known_.end()) refuse(printable(module) + "." + printable(name));
    push_text(*known, Kind::global);
  }

  void stack_global() {
    const PickleValue *name = pop(), *module = pop();
    require(name->is(Kind::text) && module->is(Kind::text), "a callable's name is no text");
    push_global(module->text, name->text);
  }

  // Python 2 passes the items as a list of two-element lists, Python 3 passes none.
  void push_ordered_dict(const PickleValue& arguments) {
    std::vector<const PickleValue*> items;
    if (!arguments.items.empty()) {
      const PickleValue& pairs = *arguments.items[0];
      require(arguments.items.size() == 1 && pairs.is(Kind::list),
              "an OrderedDict is made of what is no list");
      count(pairs.items.size());
      for (const PickleValue* pair : pairs.items) {
        require(pair->is(Kind::list) && pair->items.size() == 2,
                "an OrderedDict is made of what is no list of pairs");
        items.insert(items.end(), pair->items.begin(), pair->items.end());
      }
    }
    push(Kind::dict)->items = std::move(items);
  }

  void reduce() {
    const PickleValue *arguments = pop(), *callable = pop();
    require(callable->is(Kind::global), "something is called that is not named");
    require(arguments->is(Kind::tuple), "the arguments of a call are no tuple");
    if (callable->is_global(kOrderedDict)) return push_ordered_dict(*arguments);
    push(Kind::call)->items = {callable, arguments};
  }

  void build() {
    pop();
    const PickleValue* const target = top();
    if (target->is(Kind::call)) refuse(std::string(target->items[0]->text) + ".__setstate__");
    require(target->is(Kind::dict), "attributes are set on what is no OrderedDict");
  }

  // An instance of a class, in one of the forms that torch.save does not use for weights.
  [[noreturn]] void instance(Instruction instruction) {
    using enum Instruction;
    if (instruction == kInstance) {
      const std::string_view module = line(), name = line();
      refuse(printable(module) + "." + printable(name));
    }
    const PickleValue* type = nullptr;
    if (instruction == kObject) {
      const std::vector<const PickleValue*> items = pop_mark();
      if (!items.empty()) type = items[0];
    } else {
      for (int arguments = instruction == kNewObject ? 1 : 2; arguments > 0; --arguments) pop();
      type = pop();
    }
    require(type != nullptr && type->is(Kind::global), "an object is made of what is no class");
    refuse(std::string(type->text));
  }

  void put(uint32_t place) { memo_[place] = top(); }
  void get(uint32_t place) {
    const auto found = memo_.find(place);
    require(found != memo_.end(), "a value is used that was not kept");
    stack_.push_back(found->second);
  }

  // Returns false at the end. Instructions handled neither here nor below are refused by their
  // code.
  bool step(Instruction instruction) {
    using enum Instruction;
    switch (instruction) {
      case kStop: return false;
      case kFrame: take(sizeof(uint64_t)); return true;
      case kMark: marks_.push_back(stack_.size()); return true;
      case kPop: pop(); return true;
      case kBinPut: put(number<uint8_t>()); return true;
      case kLongBinPut: put(number<uint32_t>()); return true;
      case kMemoize: put(static_cast<uint32_t>(memo_.size())); return true;
      case kBinGet: get(number<uint8_t>()); return true;
      case kLongBinGet: get(number<uint32_t>()); return true;
      case kNone: push(Kind::none); return true;
      case kNewTrue: push_integer(1, Kind::boolean); return true;
      case kNewFalse: push_integer(0, Kind::boolean); return true;
      case kBinInt: push_integer(number<int32_t>()); return true;
      case kBinInt1: push_integer(number<uint8_t>()); return true;
      case kBinInt2: push_integer(number<uint16_t>()); return true;
      case kLong1: push_long(number<uint8_t>()); return true;
      case kLong4: push_long(number<uint32_t>()); return true;
      case kBinFloat:
        take(sizeof(double));
        push(Kind::real);
        return true;
      default: step_of_containers(instruction); return true;
    }
  }

  void step_of_containers(Instruction instruction) {
    using enum Instruction;
    switch (instruction) {
      case kBinString:
      case kBinUnicode: return push_text(take(number<uint32_t>()));
      case kShortBinString:
      case kShortBinUnicode: return push_text(take(number<uint8_t>()));
      case kBinUnicode8: return push_text(take(number<uint64_t>()));
      case kBinBytes: return push_text(take(number<uint32_t>()), Kind::bytes);
      case kShortBinBytes: return push_text(take(number<uint8_t>()), Kind::bytes);
      case kBinBytes8: return push_text(take(number<uint64_t>()), Kind::bytes);
      case kEmptyTuple: return push_tuple(0);
      case kTuple1: return push_tuple(1);
      case kTuple2: return push_tuple(2);
      case kTuple3: return push_tuple(3);
      case kTuple: {
        std::vector<const PickleValue*> items = pop_mark();
        push(Kind::tuple)->items = std::move(items);
        return;
      }
      case kEmptyList: push(Kind::list); return;
      case kAppend: return extend({pop()}, Kind::list);
      case kAppends: return extend(pop_mark(), Kind::list);
      case kEmptyDict: push(Kind::dict); return;
      case kSetItem: {
        const PickleValue *value = pop(), *key = pop();
        return extend({key, value}, Kind::dict);
      }
      case kSetItems: return extend(pop_mark(), Kind::dict);
      default: step_of_objects(instruction);
    }
  }

  void step_of_objects(Instruction instruction) {
    using enum Instruction;
    switch (instruction) {
      case kGlobal: {
        const std::string_view module = line(), name = line();
        return push_global(module, name);
      }
      case kStackGlobal: return stack_global();
      case kReduce: return reduce();
      case kBuild: return build();
      case kInstance:
      case kObject:
      case kNewObject:
      case kNewObjectEx: instance(instruction);
      case kBinPersistentId: {
        const PickleValue* const id = pop();
        PickleValue* const value = push(Kind::persistent);
        value->items.push_back(id);
        pickle_.persistent_.push_back(value);
        return;
      }
      default:
        fail("{}: the instruction 0x{:02x} at byte {} is none that torch.save writes for weights",
             where_, static_cast<int>(instruction), at_ - 1);
    }
  }

  Pickle& pickle_;
  std::span<const std::byte> bytes_;
  std::span<const std::string_view> known_;
  const std::string& where_;
  size_t at_ = 0, left_ = Pickle::kMaxSteps;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::unordered_map<uint32_t, PickleValue*> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> known,
               const std::string& where) {
  PickleReader(*this, bytes, known, where).read();
}

}  // namespace megatron::checkpoint
