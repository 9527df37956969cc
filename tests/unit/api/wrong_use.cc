// What must not compile, one CASE each, with a message that says what is wrong. CASE 0 is right.

#include <argosy/argosy.h>

struct Closed {
  explicit Closed(int) {}   // no aggregate, no Codec
};
int Add(int a, int b) { return a + b; }
int Length(const std::string& text) { return static_cast<int>(text.size()); }
int Raw(int, const char* text) { return text == nullptr ? 0 : 1; }
int Changes(int, int, int& out) { return out = 1; }
int TakesClosed(int, Closed) { return 0; }
class Counter {
 public:
  int Value() { return 0; }
};
class Other {
 public:
  int Value() { return 0; }
};

void Use([[maybe_unused]] argosy::ObjectRef<std::string> text, [[maybe_unused]] argosy::Actor<Counter> counter) {
#if CASE == 0
  argosy::Task<Add>().Submit(1, 2);
  argosy::Task<Length>().Submit(text);
  counter.Call<&Counter::Value>();
#elif CASE == 1
  argosy::Task<Add>().Submit(1, "two");
#elif CASE == 2
  argosy::Task<Add>().Submit(text, 2);
#elif CASE == 3
  argosy::Task<Raw>().Submit(1, "text");
#elif CASE == 4
  argosy::Task<Changes>().Submit(1, 2, 3);
#elif CASE == 5
  argosy::Task<TakesClosed>().Submit(1, Closed(2));
#elif CASE == 6
  argosy::Task<Add>().Submit(1);
#elif CASE == 7
  counter.Call<&Other::Value>();
#elif CASE == 8
  argosy::Task<Add>().SubmitSplit(1, 2);
#elif CASE == 9
  argosy::Put(Closed(1));
#endif
}
