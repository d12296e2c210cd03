// Megatron-LM's flags for which a command has no field.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "cli/flags/table.h"

namespace megatron::cli {

// Throws Error with the error, or with a list if there are several. Does nothing if there are none.
void throw_together(const std::vector<std::string>& errors);

class ForeignFlags {
 public:
  // fields: the command's fields, borrowed.
  explicit ForeignFlags(Fields& fields) : fields_(fields) {}

  // Null if Megatron-LM has no such flag. flag: with its dashes.
  const FlagRow* find(std::string_view flag) const { return table_.find(flag); }

  // Another spelling of a field sets the field, and the last of several spellings counts; an
  // ignored flag is noted, a refused one is kept for finish(). Throws Error for a value that
  // Megatron-LM would not accept, and for a flag that only other commands have.
  void take(const FlagRow& row, const std::vector<std::string>& values);

  // Sets the file and line, "run.yaml:3", of the flags that follow, for errors; empty: none.
  void stand_in(const std::string& where) { place_ = where.empty() ? "" : where + ": "; }

  // Adds an error that finish() reports, for a flag that neither program has.
  void refuse(const std::string& error) {
    if (std::ranges::find(unknown_, error) == unknown_.end()) unknown_.push_back(error);
  }

  // Throws one Error that names all refused flags, each with its reason. Call after all fields are
  // set.
  void finish();

  // For the log; valid after finish().
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Refused {
    const FlagRow* row;
    std::string shown;  // the flag with its value
  };
  struct Spelling {  // an alternative spelling of a field
    const FlagRow* row;
    const Field* field;
    std::string shown;        // the flag with its value
    std::string set, before;  // value that it sets, and an earlier one given for the field
  };
  void set_other_spelling(const FlagRow& row, const std::vector<std::string>& values);
  bool holds(std::string_view condition) const;
  void note_spellings();
  void note_ignored();

  Fields& fields_;
  FlagTable table_;
  std::vector<const FlagRow*> ignored_;
  std::vector<Refused> refused_;
  std::vector<std::string> unknown_;
  std::vector<Refused> accepted_;  // refused flags that request the default behaviour
  std::vector<Spelling> spellings_;
  std::vector<std::string> notes_;
  std::string place_;
};

}  // namespace megatron::cli
