// Counts words: a task for each text, whose counts go to the reducer that each word belongs to, and a task for each reducer.
#include <argosy/argosy.h>

#include <array>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using Counts = std::map<std::string, int>;
constexpr size_t kReducers = 3;

// One object for each reducer, so that each fetches only its own.
std::array<Counts, kReducers> CountWords(const std::string& text) {
  std::array<Counts, kReducers> parts;
  std::istringstream words(text);
  for (std::string word; words >> word;) ++parts[std::hash<std::string>()(word) % kReducers][word];
  return parts;
}

Counts Add(const std::vector<argosy::ObjectRef<Counts>>& parts) {
  Counts sum;
  for (const Counts& part : argosy::Get(parts)) {
    for (const auto& [word, count] : part) sum[word] += count;
  }
  return sum;
}

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  const std::vector<std::string> texts = {"a ship a sail", "a sail on a sea", "the sea the ship", "a sea"};

  std::array<std::vector<argosy::ObjectRef<Counts>>, kReducers> parts;
  for (const std::string& text : texts) {
    std::array<argosy::ObjectRef<Counts>, kReducers> mapped = argosy::Task<CountWords>().SubmitSplit(text);
    for (size_t i = 0; i < kReducers; ++i) parts[i].push_back(mapped[i]);
  }
  Counts total;
  for (Counts& reduced : argosy::Map<Add>(std::vector(parts.begin(), parts.end()))) total.merge(reduced);

  for (const auto& [word, count] : total) std::printf("%-5s %d\n", word.c_str(), count);
  return total["a"] == 5 && total["sea"] == 3 && total.size() == 6 ? 0 : 1;
}
