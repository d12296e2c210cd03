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
constexpr uint8_t kProtocol = 0x80;  // PROTO, the first instruction
constexpr int kFirstProtocol = 2, kLastProtocol = 5;

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
    require(number<uint8_t>() == kProtocol, "it does not begin with a protocol number");
    const int protocol = number<uint8_t>();
    MG_CHECK(protocol >= kFirstProtocol && protocol <= kLastProtocol,
             "{}: it uses pickle protocol {}; {} to {} are supported", where_, protocol,
             kFirstProtocol, kLastProtocol);
    while (step(number<uint8_t>())) count(1);
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
    MG_CHECK(condition, "{} is damaged or is not a pickle of weights: {}, at byte {}", where_, what,
             at_);
  }

  std::string_view take(uint64_t length) {
    require(length <= bytes_.size() - at_, "the file ends too early");
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
    require(length != rest.npos, "a line is not terminated");
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
    require(target->is(kind), kind == Kind::list
                                  ? "an item is appended to a value that is not a list"
                                  : "a key is set in a value that is not a dict");
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
        "{}: it refers to '{}', which files of weights do not need, so it is not read. Nothing in "
        "it was executed; if you trust its source, load it with torch, and save the model with "
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
    require(name->is(Kind::text) && module->is(Kind::text),
            "the name of a callable is not a string");
    push_global(module->text, name->text);
  }

  // Python 2 passes the items as a list of two-element lists, Python 3 passes none.
  void push_ordered_dict(const PickleValue& arguments) {
    std::vector<const PickleValue*> items;
    if (!arguments.items.empty()) {
      const PickleValue& pairs = *arguments.items[0];
      require(arguments.items.size() == 1 && pairs.is(Kind::list),
              "an OrderedDict is built from a value that is not a list");
      count(pairs.items.size());
      for (const PickleValue* pair : pairs.items) {
        require(pair->is(Kind::list) && pair->items.size() == 2,
                "an OrderedDict is built from a value that is not a list of pairs");
        items.insert(items.end(), pair->items.begin(), pair->items.end());
      }
    }
    push(Kind::dict)->items = std::move(items);
  }

  void reduce() {
    const PickleValue *arguments = pop(), *callable = pop();
    require(callable->is(Kind::global), "a call has no named callable");
    require(arguments->is(Kind::tuple), "the arguments of a call are not a tuple");
    if (callable->is_global(kOrderedDict)) return push_ordered_dict(*arguments);
    push(Kind::call)->items = {callable, arguments};
  }

  void build() {
    pop();
    const PickleValue* const target = top();
    if (target->is(Kind::call)) refuse(std::string(target->items[0]->text) + ".__setstate__");
    require(target->is(Kind::dict), "attributes are set on a value that is not an OrderedDict");
  }

  // Refuses an instance of a class, in a form that torch.save does not use for weights.
  [[noreturn]] void instance(uint8_t instruction) {
    if (instruction == 'i') {  // INST
      const std::string_view module = line(), name = line();
      refuse(printable(module) + "." + printable(name));
    }
    const PickleValue* type = nullptr;
    if (instruction == 'o') {  // OBJ
      const std::vector<const PickleValue*> items = pop_mark();
      if (!items.empty()) type = items[0];
    } else {
      const bool extended = instruction == 0x92;  // NEWOBJ_EX
      for (int arguments = extended ? 2 : 1; arguments > 0; --arguments) pop();
      type = pop();
    }
    require(type != nullptr && type->is(Kind::global),
            "an object is created from a value that is not a class");
    refuse(std::string(type->text));
  }

  void put(uint32_t place) { memo_[place] = top(); }
  void get(uint32_t place) {
    const auto found = memo_.find(place);
    require(found != memo_.end(), "a value is read from the memo but was not stored there");
    stack_.push_back(found->second);
  }

  // Executes an instruction: one that torch writes in protocols 2 to 5, or one that is refused by
  // the name of its class; all others are refused by their code. Returns false at the end. The
  // comments have the names of Python's pickletools.
  bool step(uint8_t instruction) {
    switch (instruction) {
      case '.': return false;                                            // STOP
      case 0x95: take(sizeof(uint64_t)); return true;                    // FRAME
      case '(': marks_.push_back(stack_.size()); return true;            // MARK
      case '0': pop(); return true;                                      // POP
      case 'q': put(number<uint8_t>()); return true;                     // BINPUT
      case 'r': put(number<uint32_t>()); return true;                    // LONG_BINPUT
      case 0x94: put(static_cast<uint32_t>(memo_.size())); return true;  // MEMOIZE
      case 'h': get(number<uint8_t>()); return true;                     // BINGET
      case 'j': get(number<uint32_t>()); return true;                    // LONG_BINGET
      case 'N': push(Kind::none); return true;                           // NONE
      case 0x88: push_integer(1, Kind::boolean); return true;            // NEWTRUE
      case 0x89: push_integer(0, Kind::boolean); return true;            // NEWFALSE
      case 'J': push_integer(number<int32_t>()); return true;            // BININT
      case 'K': push_integer(number<uint8_t>()); return true;            // BININT1
      case 'M': push_integer(number<uint16_t>()); return true;           // BININT2
      case 0x8a: push_long(number<uint8_t>()); return true;              // LONG1
      case 0x8b: push_long(number<uint32_t>()); return true;             // LONG4
      case 'G':                                                          // BINFLOAT
        take(sizeof(double));
        push(Kind::real);
        return true;
      default: step_of_containers(instruction); return true;
    }
  }

  void step_of_containers(uint8_t instruction) {
    switch (instruction) {
      case 'T':                                                            // BINSTRING
      case 'X': return push_text(take(number<uint32_t>()));                // BINUNICODE
      case 'U':                                                            // SHORT_BINSTRING
      case 0x8c: return push_text(take(number<uint8_t>()));                // SHORT_BINUNICODE
      case 0x8d: return push_text(take(number<uint64_t>()));               // BINUNICODE8
      case 'B': return push_text(take(number<uint32_t>()), Kind::bytes);   // BINBYTES
      case 'C': return push_text(take(number<uint8_t>()), Kind::bytes);    // SHORT_BINBYTES
      case 0x8e: return push_text(take(number<uint64_t>()), Kind::bytes);  // BINBYTES8
      case ')': return push_tuple(0);                                      // EMPTY_TUPLE
      case 0x85: return push_tuple(1);                                     // TUPLE1
      case 0x86: return push_tuple(2);                                     // TUPLE2
      case 0x87: return push_tuple(3);                                     // TUPLE3
      case 't': {                                                          // TUPLE
        std::vector<const PickleValue*> items = pop_mark();
        push(Kind::tuple)->items = std::move(items);
        return;
      }
      case ']': push(Kind::list); return;               // EMPTY_LIST
      case 'a': return extend({pop()}, Kind::list);     // APPEND
      case 'e': return extend(pop_mark(), Kind::list);  // APPENDS
      case '}': push(Kind::dict); return;               // EMPTY_DICT
      case 's': {                                       // SETITEM
        const PickleValue *value = pop(), *key = pop();
        return extend({key, value}, Kind::dict);
      }
      case 'u': return extend(pop_mark(), Kind::dict);  // SETITEMS
      default: step_of_objects(instruction);
    }
  }

  void step_of_objects(uint8_t instruction) {
    switch (instruction) {
      case 'c': {  // GLOBAL
        const std::string_view module = line(), name = line();
        return push_global(module, name);
      }
      case 0x93: return stack_global();  // STACK_GLOBAL
      case 'R': return reduce();         // REDUCE
      case 'b': return build();          // BUILD
      case 'i':                          // INST
      case 'o':                          // OBJ
      case 0x81:                         // NEWOBJ
      case 0x92: instance(instruction);  // NEWOBJ_EX
      case 'Q': {                        // BINPERSID
        const PickleValue* const id = pop();
        PickleValue* const value = push(Kind::persistent);
        value->items.push_back(id);
        pickle_.persistent_.push_back(value);
        return;
      }
      default:
        fail(
            "{}: the instruction 0x{:02x} at byte {} is not one that torch.save writes for weights",
            where_, instruction, at_ - 1);
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
