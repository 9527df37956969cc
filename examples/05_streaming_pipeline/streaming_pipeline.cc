// A generator, a stage of tasks and a sink that run at the same time: the source never makes more than eight readings that nobody has read.
#include <argosy/argosy.h>

#include <cstdio>
#include <deque>

struct Reading {
  int number = 0;
  double value = 0;
};

argosy::Generator<Reading> Readings(int count) {
  for (int i = 0; i < count; ++i) {
    Reading reading{i, 0.5 * i};
    co_yield reading;
  }
}

double Smooth(const Reading& before, const Reading& now) { return (before.value + now.value) / 2; }

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);

  argosy::ObjectRef<Reading> before;
  std::deque<argosy::ObjectRef<double>> in_flight;
  double sum = 0;
  auto take = [&] {
    sum += argosy::Get(in_flight.front());
    in_flight.pop_front();
  };
  for (const argosy::ObjectRef<Reading>& now : argosy::Task<Readings>({.stream_ahead_max = 8}).Submit(100)) {
    if (!before.IsNull()) in_flight.push_back(argosy::Task<Smooth>().Submit(before, now));
    if (in_flight.size() == 16) take();   // bounds what the stage has in hand
    before = now;
  }
  while (!in_flight.empty()) take();
  std::printf("the sum of 99 smoothed readings is %.2f\n", sum);
  return sum == 2450.25 ? 0 : 1;
}
