#pragma once

#include <string>

struct Count {   // an aggregate of up to 32 fields travels as it is
  std::string word;
  int times = 0;
};

// How often `word` is in `text`.
Count CountWord(const std::string& text, const std::string& word);

// Adds up what it is told.
class Total {
 public:
  int Add(const Count& count);

 private:
  int total_ = 0;
};
