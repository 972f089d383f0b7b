// What tests of metrics share: a scrape, and batches to count.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "prometheus/metric_family.h"
#include "server/metrics/metrics.h"

namespace moe {

using Labels = std::map<std::string, std::string>;

inline Labels LabelsOf(const prometheus::ClientMetric& metric) {
  Labels labels;
  for (const auto& label : metric.label) labels[label.name] = label.value;
  return labels;
}

// Everything a scrape would show, by family and labels.
class Scrape {
 public:
  explicit Scrape(const Metrics& metrics) {
    for (prometheus::MetricFamily& family : metrics.registry()->Collect()) {
      families_[family.name] = std::move(family);
    }
  }

  const std::map<std::string, prometheus::MetricFamily>& families() const {
    return families_;
  }
  const std::vector<prometheus::ClientMetric>& All(
      const std::string& name) const {
    const auto found = families_.find(name);
    return found == families_.end() ? none_ : found->second.metric;
  }
  const prometheus::ClientMetric& Find(const std::string& name,
                                       const Labels& labels = {}) const {
    for (const prometheus::ClientMetric& metric : All(name)) {
      if (LabelsOf(metric) == labels) return metric;
    }
    ADD_FAILURE() << "no " << name << " with these labels";
    return missing_;
  }
  double Counter(const std::string& name, const Labels& labels = {}) const {
    return Find(name, labels).counter.value;
  }
  double Gauge(const std::string& name, const Labels& labels = {}) const {
    return Find(name, labels).gauge.value;
  }

 private:
  const std::vector<prometheus::ClientMetric> none_;
  const prometheus::ClientMetric missing_;
  std::map<std::string, prometheus::MetricFamily> families_;
};

inline LayerCost Layer(int index, int64_t num_experts) {
  return {.layer = index, .num_experts = num_experts};
}

// Offsets of experts with these numbers of rows.
inline std::vector<int32_t> Offsets(const std::vector<int32_t>& rows) {
  std::vector<int32_t> offsets{0};
  for (const int32_t count : rows) offsets.push_back(offsets.back() + count);
  return offsets;
}

inline ForwardStats StatsOf(double experts_seconds) {
  ForwardStats stats;
  stats.stage_seconds[static_cast<size_t>(Stage::kExperts)] = experts_seconds;
  return stats;
}

}  // namespace moe
