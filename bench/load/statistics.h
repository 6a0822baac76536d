// Statistics of raw samples, as numpy computes them. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tramontane::load {

// Linear interpolation between the two nearest ranks. REQUIRES: samples ascending and not empty; 0 <= p <=
// 100.
double Percentile(const std::vector<double>& sorted, double p);

double Mean(const std::vector<double>& samples);
double StandardDeviation(const std::vector<double>& samples);  // of the population: over n

// Whether so few samples lie beyond a percentile that it says little: fewer than 10.
bool HasFewBeyond(int64_t samples, double p);

// The percentile of `sorted` and `failures` samples that are longer than everything; nothing where the rank,
// or the rank above that it leans on, falls on a failure, or there is no sample at all.
std::optional<double> CensoredPercentile(const std::vector<double>& sorted, int64_t failures, double p);

// "p99" of 99, "p99.9" of 99.9.
std::string PercentileName(double p);

}  // namespace tramontane::load
