// Fits y = 3 x + 2 by stochastic gradient descent: an actor holds the parameters, workers pull them and push gradients, each at its own pace.
#include <argosy/argosy.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using Parameters = std::array<double, 2>;   // slope, offset

class ParameterServer {
 public:
  Parameters Pull() { return parameters_; }
  void Push(const Parameters& gradient) {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i] -= 0.1 * gradient[i];
  }

 private:
  Parameters parameters_{};
};

void Train(argosy::Actor<ParameterServer> server, int seed, int steps) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<double> any(-1, 1);
  for (int step = 0; step < steps; ++step) {
    Parameters now = argosy::Get(server.Call<&ParameterServer::Pull>());
    Parameters gradient{};
    for (int row = 0; row < 16; ++row) {
      double x = any(random), error = now[0] * x + now[1] - (3 * x + 2);
      gradient[0] += error * x / 16;
      gradient[1] += error / 16;
    }
    argosy::Get(server.Call<&ParameterServer::Push>(gradient));
  }
}

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  auto server = argosy::Spawn<ParameterServer>({.name = "parameters"});

  std::vector<argosy::ObjectRef<void>> workers;
  for (int seed = 0; seed < 4; ++seed) workers.push_back(argosy::Task<Train>().Submit(server, seed, 150));
  argosy::Get(workers);

  Parameters fitted = argosy::Get(server.Call<&ParameterServer::Pull>());
  std::printf("y = %.3f x + %.3f\n", fitted[0], fitted[1]);
  return std::abs(fitted[0] - 3) < 0.01 && std::abs(fitted[1] - 2) < 0.01 ? 0 : 1;
}
