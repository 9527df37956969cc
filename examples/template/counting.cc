#include "counting.h"

Count CountWord(const std::string& text, const std::string& word) {
  Count count{word};
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++count.times;
  return count;
}

int Total::Add(const Count& count) { return total_ += count.times; }
