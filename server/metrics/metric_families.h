// How families of metrics are made. Internal to this folder.
//
// Thread-safe: functions without state.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace moe {

// Canonical status codes: 0 (OK) to 16.
inline constexpr size_t kNumCodes = 17;

// "OK", "INVALID_ARGUMENT", ...: the canonical name of a status code.
std::string CodeName(absl::StatusCode code);
// As an index below kNumCodes; UNKNOWN for all that is not canonical.
size_t CodeIndex(absl::StatusCode code);

using CounterFamily = prometheus::Family<prometheus::Counter>;
using GaugeFamily = prometheus::Family<prometheus::Gauge>;
using HistogramFamily = prometheus::Family<prometheus::Histogram>;

// A family, without children; the registry owns it.
CounterFamily* MakeCounters(prometheus::Registry& registry, const char* name,
                            const char* help);
GaugeFamily* MakeGauges(prometheus::Registry& registry, const char* name,
                        const char* help);
HistogramFamily* MakeHistograms(prometheus::Registry& registry,
                                const char* name, const char* help);

// The only child of a family, which has no labels.
prometheus::Counter* MakeCounter(prometheus::Registry& registry,
                                 const char* name, const char* help);
prometheus::Gauge* MakeGauge(prometheus::Registry& registry, const char* name,
                             const char* help);
prometheus::Histogram* MakeHistogram(
    prometheus::Registry& registry, const char* name, const char* help,
    const prometheus::Histogram::BucketBoundaries& buckets);

// From 1 microsecond to 16 seconds: a token through a small layer takes
// microseconds, a large batch seconds.
prometheus::Histogram::BucketBoundaries SecondsBuckets();
// 1, 2, 4, ... 65536.
prometheus::Histogram::BucketBoundaries CountBuckets();

}  // namespace moe
