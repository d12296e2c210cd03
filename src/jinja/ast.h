// The syntax tree of a template, and its parser.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/operators.h"
#include "jinja/value.h"

namespace megatron::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
  std::string keyword;  // empty: by position
  int stars = 0;        // 1: *value, 2: **value
  ExpressionPtr value;
};

struct Comparison {
  Order order;
  ExpressionPtr right;
};

struct Expression {
  enum class Kind {
    constant,     // constant
    name,         // name
    list,         // operands
    tuple,        // operands
    dict,         // operands: key, value, key, value, ...
    attribute,    // operands[0].name
    element,      // operands[0][operands[1]]
    slice,        // operands[0][operands[1] : operands[2] : operands[3]], null if omitted
    call,         // operands[0](arguments)
    filter,       // operands[0] | name(arguments)
    test,         // operands[0] is name(arguments)
    negative,     // -operands[0]
    positive,     // +operands[0]
    negation,     // not operands[0]
    both,         // operands[0] and operands[1]
    either,       // operands[0] or operands[1]
    compare,      // operands[0] with each of comparisons, in a chain
    calculate,    // operands[0] op operands[1]
    concatenate,  // operands joined by ~
    conditional,  // operands[0] if operands[1] else operands[2], which may be null
  };

  Kind kind;
  int line = 0;
  int height = 1;  // of the tree, limited to bound the recursion
  std::string name;
  Value constant;
  Operator op = Operator::add;
  std::vector<ExpressionPtr> operands;
  std::vector<Argument> arguments;
  std::vector<Comparison> comparisons;
};

// Target of an assignment: a name, a member of a namespace, or several of them.
struct Target {
  std::string name;
  std::string member;
  std::vector<Target> parts;
  bool many = false;
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr initial;  // null if there is none
};

struct Branch {
  ExpressionPtr condition;  // null for else
  Body body;
};

struct Assignment {
  Target target;
  ExpressionPtr value;
};

struct Statement {
  enum class Kind {
    text,        // text
    output,      // value
    set,         // target = body filtered by value, a chain of filters over kCaptured
    set_block,   // target = body through value, a chain of filters over kCaptured
    filter,      // body filtered by value, as above
    condition,   // branches
    loop,        // target in value if condition: body, otherwise
    macro,       // text: name; parameters, body
    call,        // value: a call, with (parameters) body as its caller
    with,        // assignments, body; also autoescape false, which only opens a scope
    generation,  // body
    leave,       // break
    next,        // continue
  };

  Kind kind;
  int line = 0;
  std::string text;
  ExpressionPtr value, condition;
  Target target;
  Body body, otherwise;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<Assignment> assignments;
  // True if a macro's body reads these names, so that surplus arguments are not an error.
  bool reads_varargs = false, reads_kwargs = false, reads_caller = false;
  bool recursive = false;  // a loop whose `loop` can be called
};

// Variable that holds the output of a block; templates cannot name it.
inline constexpr const char* kCaptured = "(captured)";

struct Parsed {
  Body body;
  std::set<std::string> names;  // all variables that are read
  bool marks_generation = false;
};

// Throws TemplateError naming the line.
Parsed parse(std::string_view source, const std::string& name);

}  // namespace megatron::jinja
