// A function that runs somewhere in the cluster.
#include <argosy/argosy.h>

#include <cstdio>

int Square(int x) { return x * x; }

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);

  std::vector<argosy::ObjectRef<int>> squares;
  for (int i = 0; i < 10; ++i) squares.push_back(argosy::Task<Square>().Submit(i));

  int sum = 0;
  for (int square : argosy::Get(squares)) sum += square;
  std::printf("the squares of 0..9 add up to %d\n", sum);
  return sum == 285 ? 0 : 1;
}
