// An object that lives in a process of its own, and a task's result as an argument of its method.
#include <argosy/argosy.h>

#include <cstdio>

int Square(int x) { return x * x; }

class Counter {
 public:
  explicit Counter(int start) : value_(start) {}
  int Add(int n) { return value_ += n; }

 private:
  int value_;
};

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);

  argosy::ObjectRef<int> nine = argosy::Task<Square>().Submit(3);
  argosy::Actor<Counter> counter = argosy::Spawn<Counter>({.name = "counter", .resources = {{"CPU", 1}}}, 10);
  argosy::ObjectRef<int> sum = counter.Call<&Counter::Add>(nine);   // a ref is an argument like any other
  std::printf("10 + 9 = %d\n", argosy::Get(sum));
  return argosy::Get(sum) == 19 ? 0 : 1;
}
