// The runtime's microbenchmark: the loops of the peer's `ray microbenchmark`, under the names that it prints, and a few of our own.
//
//   argosy bench [--json FILE] [--only PATTERN] [--address HOST:PORT]
//
// Without a cluster it starts a local one of two CPUs. Every run measures the machine's own limits first.
#include <argosy/argosy.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/runtime/harness.h"
#include "nlohmann/json.hpp"

namespace {

using argosy::Actor;
using argosy::Get;
using argosy::ObjectRef;
using argosy::Put;
using argosy::Spawn;
using argosy::Task;
using argosy::bench::MeasureRate;
using argosy::bench::Median;
using argosy::bench::Row;
using argosy::bench::SecondsSince;

constexpr int kBatch = 1000;
constexpr size_t kLarge = size_t{100} << 20;

int SmallValue() { return 0; }

// What one of several submitters does: a batch of tasks, all results awaited.
void SubmitBatch(int count) {
  std::vector<ObjectRef<int>> refs;
  refs.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) refs.push_back(Task<SmallValue>().Submit());
  Get(refs);
}

std::vector<ObjectRef<int>> ManyRefs(int count) {
  std::vector<ObjectRef<int>> refs;
  for (int i = 0; i < count; ++i) refs.push_back(Put(1));
  return refs;
}

struct Process { int pid = 0; int parent = 0; };

class Server {
 public:
  int Value() { return 0; }
  Process Self() { return {::getpid(), ::getppid()}; }
  double SecondsOfPut() {
    std::vector<char> bytes(kLarge, 1);
    argosy::Array<char> array(bytes.data(), bytes.size(), nullptr);
    auto begin = std::chrono::steady_clock::now();
    Put(array);
    return SecondsSince(begin);
  }
};

// Its calls are coroutines.
class AsyncServer {
 public:
  argosy::Async<int> Value() { co_return 0; }
};

void CallServers(const std::vector<Actor<Server>>& servers, int count) {
  std::vector<ObjectRef<int>> refs;
  refs.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) refs.push_back(servers[static_cast<size_t>(i) % servers.size()].Call<&Server::Value>());
  Get(refs);
}

class Client {
 public:
  explicit Client(std::vector<Actor<Server>> servers) : servers_(std::move(servers)) {}
  void Batch(int count) { CallServers(servers_, count); }
  void TaskBatch(int count) { SubmitBatch(count); }

 private:
  std::vector<Actor<Server>> servers_;
};

Actor<Server> StartServer(argosy::ActorOptions options = {}) {
  Actor<Server> server = Spawn<Server>(std::move(options));
  Get(server.Call<&Server::Value>());
  return server;
}

class Bench {
 public:
  explicit Bench(std::string only) : only_(std::move(only)), pattern_(only_) {
    argosy::bench::PingPong rates = argosy::bench::MeasurePingPong();
    ping_pong_ = rates.two_cores;
    std::printf("Unix-socket ping-pong of this machine: %.0f/s between two cores (the limit below), %.0f/s on one\n", rates.two_cores, rates.one_core);
  }

  bool Wants(const std::string& name) const { return only_.empty() || std::regex_search(name, pattern_); }
  // Asked for by name, for what a run of everything leaves out.
  bool Names(const std::string& name) const { return !only_.empty() && std::regex_search(name, pattern_); }
  bool WantsAny(std::initializer_list<const char*> names) const {
    return std::any_of(names.begin(), names.end(), [this](const char* name) { return Wants(name); });
  }

  void Rate(const std::string& name, double per_step, const std::function<void()>& step, double limit = 0, const char* limit_name = "",
            const std::string& unit = "/s") {
    if (!Wants(name)) return;
    Row row = MeasureRate(name, unit, per_step, step);
    row.limit = limit;
    row.limit_name = limit_name;
    Add(std::move(row));
  }
  void Latency(const std::string& name, const std::function<void()>& step) {
    if (!Wants(name)) return;
    argosy::bench::Latency latency = argosy::bench::MeasureLatency(step, 3000);
    double round_trip = 1e6 / ping_pong_;
    Add({.name = name + " p50", .value = latency.p50_us, .unit = "us", .limit = round_trip, .limit_name = "ping-pong"});
    Add({.name = name + " p99", .value = latency.p99_us, .unit = "us", .limit = round_trip, .limit_name = "ping-pong"});
  }
  void Add(Row row) {
    std::printf("%-46s %12.4g %-5s +- %-9.3g", row.name.c_str(), row.value, row.unit.c_str(), row.deviation);
    if (row.limit > 0) std::printf("  %.2f of %s (%.4g)", row.value / row.limit, row.limit_name.c_str(), row.limit);
    std::printf("\n");
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }
  const std::vector<Row>& rows() const { return rows_; }
  double ping_pong() const { return ping_pong_; }

 private:
  std::string only_;
  std::regex pattern_;
  double ping_pong_ = 0;
  std::vector<Row> rows_;
};

void Objects(Bench& bench) {
  ObjectRef<int> small = Put(0);
  bench.Rate("single client get calls", kBatch, [&] {
    for (int i = 0; i < kBatch; ++i) Get(small);
  });
  bench.Rate("single client put calls", kBatch, [] {
    for (int i = 0; i < kBatch; ++i) Put(0);
  });
  if (bench.WantsAny({"single client put gigabytes", "put gigabytes into fresh pages", "put gigabytes through a new mapping"})) {
    const double warm_copy = argosy::bench::MeasureWarmCopy();
    std::printf("two threads of this machine: warm memcpy %.1f GB/s\n", warm_copy);
    std::vector<char> bytes(kLarge, 1);
    argosy::Array<char> array(bytes.data(), bytes.size(), nullptr);
    if (bench.Wants("put gigabytes into fresh pages")) {
      std::vector<ObjectRef<argosy::Array<char>>> held;
      std::vector<double> rates, limits;   // in turns: the kernel's pages come now faster, now slower
      for (int i = 0; i < 5; ++i) {
        limits.push_back(argosy::bench::MeasureFirstTouch(kLarge));
        auto begin = std::chrono::steady_clock::now();
        held.push_back(Put(array));
        rates.push_back(kLarge / 1e9 / SecondsSince(begin));
      }
      bench.Add({.name = "put gigabytes into fresh pages", .value = Median(rates), .unit = "GB/s", .limit = Median(limits),
                 .limit_name = "two threads' first touch"});
    }
    if (bench.Wants("put gigabytes through a new mapping")) {
      std::vector<double> rates;
      for (int i = 0; i < 5; ++i) {
        Actor<Server> fresh = StartServer();   // its process has written nothing into the store
        rates.push_back(kLarge / 1e9 / Get(fresh.Call<&Server::SecondsOfPut>()));
        Kill(fresh);
      }
      bench.Add({.name = "put gigabytes through a new mapping", .value = Median(rates), .unit = "GB/s", .limit = warm_copy,
                 .limit_name = "two threads' warm memcpy"});
    }
    bench.Rate("single client put gigabytes", kLarge / 1e9, [&] { Put(array); }, warm_copy, "two threads' warm memcpy", "GB/s");
  }
  for (auto [size, readable] : {std::pair(size_t{100'000}, "100 KB"), {size_t{100} << 20, "100 MiB"}, {size_t{1} << 30, "1 GiB"}}) {
    const std::string again = std::string("single client get ") + readable + " that is held (microseconds)";
    const std::string first = std::string("single client get ") + readable + " (microseconds)";
    if (!bench.WantsAny({again.c_str(), first.c_str()})) continue;
    std::vector<char> bytes(size, 1);
    ObjectRef<argosy::Array<char>> large = Put(argosy::Array<char>(bytes.data(), bytes.size(), nullptr));
    if (bench.Wants(first)) {   // nothing else holds what it gets
      argosy::bench::Latency latency = argosy::bench::MeasureLatency([&] { Get(large); }, 1000);
      double round_trip = 1e6 / bench.ping_pong();
      bench.Add({.name = first, .value = latency.p50_us, .unit = "us", .limit = round_trip, .limit_name = "ping-pong"});
    }
    if (bench.Wants(again)) {
      argosy::Array<char> held = Get(large);
      argosy::bench::Latency latency = argosy::bench::MeasureLatency([&] { Get(large); }, 1000);
      bench.Add({.name = again, .value = latency.p50_us, .unit = "us"});
    }
  }
  if (bench.Wants("single client get object containing 10k refs")) {
    ObjectRef<std::vector<ObjectRef<int>>> many = Task<ManyRefs>().Submit(10'000);
    Get(many);
    bench.Rate("single client get object containing 10k refs", 1, [&] { Get(many); });
  }
}

void Tasks(Bench& bench) {
  double ping_pong = bench.ping_pong();
  Get(Task<SmallValue>().Submit());
  bench.Rate("single client tasks sync", 1, [] { Get(Task<SmallValue>().Submit()); }, ping_pong, "ping-pong");
  bench.Rate("single client tasks async", kBatch, [] { SubmitBatch(kBatch); });
  bench.Rate("single client tasks and get batch", 1, [] { SubmitBatch(kBatch); });
  bench.Rate("single client wait 1k refs", 1, [] {
    std::vector<ObjectRef<int>> pending;
    for (int i = 0; i < kBatch; ++i) pending.push_back(Task<SmallValue>().Submit());
    while (!pending.empty()) pending = argosy::Wait(std::move(pending)).pending;
  });
  if (bench.Wants("one wait of 1k ready refs (microseconds)")) {
    std::vector<ObjectRef<int>> ready;
    for (int i = 0; i < kBatch; ++i) ready.push_back(Put(i));
    argosy::bench::Latency latency = argosy::bench::MeasureLatency([&] { argosy::Wait(ready, ready.size()); }, 200);
    bench.Add({.name = "one wait of 1k ready refs (microseconds)", .value = latency.p50_us, .unit = "us"});
  }
  if (bench.Wants("10,000 no-op tasks (seconds)")) {
    auto begin = std::chrono::steady_clock::now();
    SubmitBatch(10'000);
    bench.Add({.name = "10,000 no-op tasks (seconds)", .value = SecondsSince(begin), .unit = "s"});
  }
  bench.Latency("task latency", [] { Get(Task<SmallValue>().Submit()); });
  if (bench.Wants("multi client tasks async")) {
    std::vector<Actor<Client>> clients;
    for (int i = 0; i < 4; ++i) clients.push_back(Spawn<Client>({}, std::vector<Actor<Server>>()));
    bench.Rate("multi client tasks async", 4 * kBatch, [&] {
      std::vector<ObjectRef<void>> all;
      for (Actor<Client>& client : clients) all.push_back(client.Call<&Client::TaskBatch>(kBatch));
      Get(all);
    });
    for (Actor<Client>& client : clients) Kill(client);
  }
}

void Actors(Bench& bench) {
  double ping_pong = bench.ping_pong();
  if (bench.WantsAny({"1:1 actor calls sync", "1:1 actor calls async", "1:1 actor calls concurrent", "actor call latency"})) {
    Actor<Server> server = StartServer();
    bench.Rate("1:1 actor calls sync", 1, [&] { Get(server.Call<&Server::Value>()); }, ping_pong, "ping-pong");
    bench.Rate("1:1 actor calls async", kBatch, [&] { CallServers({server}, kBatch); });
    bench.Latency("actor call latency", [&] { Get(server.Call<&Server::Value>()); });
    Kill(server);
    if (bench.Wants("1:1 actor calls concurrent")) {
      Actor<Server> concurrent = StartServer({.max_concurrency = 16});
      bench.Rate("1:1 actor calls concurrent", kBatch, [&] { CallServers({concurrent}, kBatch); });
      Kill(concurrent);
    }
  }
  if (bench.WantsAny({"1:1 async-actor calls sync", "1:1 async-actor calls async"})) {
    Actor<AsyncServer> server = Spawn<AsyncServer>({});
    Get(server.Call<&AsyncServer::Value>());
    bench.Rate("1:1 async-actor calls sync", 1, [&] { Get(server.Call<&AsyncServer::Value>()); }, ping_pong, "ping-pong");
    bench.Rate("1:1 async-actor calls async", kBatch, [&] {
      std::vector<ObjectRef<int>> refs;
      refs.reserve(kBatch);
      for (int i = 0; i < kBatch; ++i) refs.push_back(server.Call<&AsyncServer::Value>());
      Get(refs);
    });
    Kill(server);
  }
  if (bench.WantsAny({"1:n actor calls async", "n:n actor calls async"})) {
    std::vector<Actor<Server>> servers;
    for (int i = 0; i < 2; ++i) servers.push_back(StartServer());
    if (bench.Wants("1:n actor calls async")) {
      Actor<Client> client = Spawn<Client>({}, servers);
      bench.Rate("1:n actor calls async", 2 * kBatch, [&] { Get(client.Call<&Client::Batch>(2 * kBatch)); });
      Kill(client);
    }
    if (bench.Wants("n:n actor calls async")) {
      std::vector<Actor<Client>> clients;
      for (int i = 0; i < 4; ++i) clients.push_back(Spawn<Client>({}, servers));
      bench.Rate("n:n actor calls async", 4 * kBatch, [&] {
        std::vector<ObjectRef<void>> all;
        for (Actor<Client>& client : clients) all.push_back(client.Call<&Client::Batch>(kBatch));
        Get(all);
      });
      for (Actor<Client>& client : clients) Kill(client);
    }
    for (Actor<Server>& server : servers) Kill(server);
  }
  if (bench.Wants("actor create and first call")) {
    bench.Rate("actor create and first call", 1, [] { Kill(StartServer()); });
  }
  if (bench.Wants("worker process start to first call")) {
    // Variables of its own: no worker that was started ahead fits.
    int number = 0;
    argosy::bench::Latency latency = argosy::bench::MeasureLatency([&] {
      Kill(StartServer({.env_vars = {{"NUMBER", std::to_string(number++)}}}));
    }, 20);
    bench.Add({.name = "worker process start to first call", .value = latency.p50_us / 1000, .unit = "ms"});
  }
}

// Takes half a minute and a thousand processes: runs only when --only names it.
void IdleActors(Bench& bench, int count) {
  if (!bench.Names("1,000 idle actors")) return;
  constexpr int kStep = 100;
  std::vector<Actor<Server>> servers;
  std::vector<double> rates;
  std::vector<int> pids;
  int node = 0;
  for (int made = 0; made < count; made += kStep) {
    auto begin = std::chrono::steady_clock::now();
    std::vector<ObjectRef<Process>> selves;
    for (int i = 0; i < kStep; ++i) {
      servers.push_back(Spawn<Server>({}));
      selves.push_back(servers.back().Call<&Server::Self>());
    }
    for (const Process& self : Get(selves)) {
      pids.push_back(self.pid);
      node = self.parent;
    }
    rates.push_back(kStep / SecondsSince(begin));
  }
  bench.Add({.name = "1,000 idle actors: first hundred created", .value = rates.front(), .unit = "/s"});
  bench.Add({.name = "1,000 idle actors: last hundred created", .value = rates.back(), .unit = "/s"});
  bench.Add({.name = "1,000 idle actors: memory each", .value = argosy::bench::ProportionalMiB(pids) / count, .unit = "MiB"});
  pids.push_back(node);
  std::this_thread::sleep_for(std::chrono::seconds(2));   // what their start set off has ended
  auto begin = std::chrono::steady_clock::now();
  double before = argosy::bench::CpuSeconds(pids);
  std::this_thread::sleep_for(std::chrono::seconds(10));
  double seconds = SecondsSince(begin);
  bench.Add({.name = "1,000 idle actors: they and their node", .value = 100 * (argosy::bench::CpuSeconds(pids) - before) / seconds, .unit = "% CPU"});
  for (Actor<Server>& server : servers) Kill(server);
}

void Groups(Bench& bench) {
  bench.Rate("placement group create/removal", 100, [] {
    std::vector<argosy::PlacementGroup> groups;
    for (int i = 0; i < 100; ++i) groups.push_back(argosy::CreatePlacementGroup({.bundles = {{.resources = {{"CPU", 0.001}}}}}));
    for (argosy::PlacementGroup& group : groups) group.Ready();
    for (argosy::PlacementGroup& group : groups) Remove(group);
  });
}

void WriteJson(const Bench& bench, const std::string& path) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : bench.rows()) {
    rows.push_back({{"name", row.name}, {"value", row.value}, {"deviation", row.deviation}, {"unit", row.unit}});
    rows.back()["limit"] = row.limit > 0 ? nlohmann::json(row.limit) : nlohmann::json(nullptr);
  }
  std::ofstream(path) << rows.dump(2) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  std::string json, only, address;
  CLI::App app("The runtime's microbenchmark");
  app.add_option("--json", json, "Write the rows {name, value, unit, limit} to this file");
  app.add_option("--only", only, "Run the rows whose name this regular expression finds");
  app.add_option("--address", address, "The head, HOST:PORT; a local cluster when not given");
  CLI11_PARSE(app, argc, argv);

  try {
    std::regex check(only);
  } catch (const std::regex_error& error) {
    std::fprintf(stderr, "--only %s: %s\n", only.c_str(), error.what());
    return 2;
  }
  argosy::Runtime runtime = argosy::Connect(argc, argv, {.address = address, .num_cpus = 2});
  Bench bench(only);
  Objects(bench);
  Tasks(bench);
  Actors(bench);
  Groups(bench);
  IdleActors(bench, 1000);
  if (!json.empty()) WriteJson(bench, json);
  return 0;
}
