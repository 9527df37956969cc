#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace argosy::bench {

double SecondsSince(std::chrono::steady_clock::time_point begin);
double Median(std::vector<double> values);   // the upper of two; not of none

// One line of the table and of the JSON: `value` in `unit`, and beside it what this machine could do at most, by the limits of the same run.
struct Row {
  std::string name;
  double value = 0;
  double deviation = 0;      // between the rounds
  std::string unit;
  double limit = 0;          // in the same unit; 0: no limit applies
  std::string limit_name;
};

struct MeasureOptions {
  std::chrono::duration<double> warm_up{0.2};
  std::chrono::duration<double> round{0.4};
  int rounds = 3;
};

// What the machine allows, measured in this process: a row's figure means little without it.
// Per second: one byte to and fro between two processes over a Unix socket. On one core it is about ten times as fast as on two, since
// nobody has to be woken elsewhere; which of both a kernel chooses for two processes that are left alone changes from run to run.
struct PingPong { double two_cores = 0; double one_core = 0; };
PingPong MeasurePingPong();
// GB/s of two threads: copying memory that was touched before; filling fresh pages of a memfd (0: there is none to be had).
double MeasureWarmCopy();
double MeasureFirstTouch(size_t size);

// GB/s of one TCP connection over loopback between two threads, `size` bytes of one buffer into another (what iperf3 measures with -l 1M).
double MeasureLoopback(size_t size);

// Runs `step` again and again; each run counts as `per_step` operations. Mean and deviation of the rounds' rates.
Row MeasureRate(const std::string& name, const std::string& unit, double per_step, const std::function<void()>& step, MeasureOptions options = {});

// Times single runs of `step`: the given quantile (0..1) in microseconds.
struct Latency { double p50_us = 0; double p99_us = 0; };
Latency MeasureLatency(const std::function<void()>& step, int count);

// Of the processes together: memory by proportional set size, and CPU time of user and system since their start.
double ProportionalMiB(const std::vector<int>& pids);
double CpuSeconds(const std::vector<int>& pids);

}  // namespace argosy::bench
