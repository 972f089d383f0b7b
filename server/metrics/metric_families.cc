#include "server/metrics/metric_families.h"

#include <cmath>

namespace moe {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

// first, 2 first, 4 first, ...
Histogram::BucketBoundaries Doubling(double first, int count) {
  Histogram::BucketBoundaries bounds;
  bounds.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) bounds.push_back(std::ldexp(first, i));
  return bounds;
}

}  // namespace

std::string CodeName(absl::StatusCode code) {
  return absl::StatusCodeToString(code);
}

size_t CodeIndex(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kNumCodes ? index
                           : static_cast<size_t>(absl::StatusCode::kUnknown);
}

CounterFamily* MakeCounters(Registry& registry, const char* name,
                            const char* help) {
  return &prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

GaugeFamily* MakeGauges(Registry& registry, const char* name,
                        const char* help) {
  return &prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

HistogramFamily* MakeHistograms(Registry& registry, const char* name,
                                const char* help) {
  return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

Counter* MakeCounter(Registry& registry, const char* name, const char* help) {
  return &MakeCounters(registry, name, help)->Add({});
}

Gauge* MakeGauge(Registry& registry, const char* name, const char* help) {
  return &MakeGauges(registry, name, help)->Add({});
}

Histogram* MakeHistogram(Registry& registry, const char* name, const char* help,
                         const Histogram::BucketBoundaries& buckets) {
  return &MakeHistograms(registry, name, help)->Add({}, buckets);
}

Histogram::BucketBoundaries SecondsBuckets() { return Doubling(1e-6, 25); }

Histogram::BucketBoundaries CountBuckets() { return Doubling(1, 17); }

}  // namespace moe
