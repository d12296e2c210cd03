// Entities in the labels of words, named as in CoNLL's data sets: B-PER begins one of type PER,
// I-PER continues it, O is outside of entities.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace megatron::corpus {

// Counts entities of texts by seqeval's rules: an entity is a run of words of one type; it ends
// before a word with B- or S-, and after one with E- or S-. A run may begin with I-.
class EntityCounts {
 public:
  struct Counts {
    int64_t real = 0, predicted = 0, right = 0;  // right: equal in type, first and last word
    double precision() const;                    // NaN: nothing is predicted
    double recall() const;                       // NaN: there are none
    double f1() const;  // 0 if nothing is right; NaN: neither real nor predicted
    Counts& operator+=(const Counts& more);
  };

  // True if the names are those of parts of entities: "O", or a prefix (B-, I-, E-, S-) and a type.
  static bool are_parts(std::span<const std::string> names);

  explicit EntityCounts(std::span<const std::string> names);
  // Classes of a text's words. Both have a class for each word.
  void add(std::span<const int32_t> real, std::span<const int32_t> predicted);
  const std::map<std::string, Counts>& by_type() const { return by_type_; }
  Counts all() const;

 private:
  struct Part {
    char prefix = 'O';
    std::string type;
  };
  struct Entity {
    const std::string* type;
    size_t first, last;
    bool operator==(const Entity& other) const {
      return *type == *other.type && first == other.first && last == other.last;
    }
  };
  std::vector<Entity> entities(std::span<const int32_t> classes) const;

  std::vector<Part> parts_;  // of each class
  std::map<std::string, Counts> by_type_;
};

}  // namespace megatron::corpus
