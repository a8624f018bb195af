// LandmarkTable: how far sites are from some landmarks, and what that says of how far they are from
// each other. Built once for many questions. Pure.
#pragma once

#include <vector>

#include "broker/links/structure.h"

namespace weft::broker {

class LandmarkTable {
 public:
  // sites: those that are asked about.
  LandmarkTable(const Structure& structure, const std::vector<size_t>& landmarks,
                const std::vector<size_t>& sites);

  // One way, to the landmark of this place in the list; NaN: not measured.
  double latency_s(size_t site, size_t landmark) const {
    return seconds_[site * marks_ + landmark];
  }

  struct Bounds {
    double low_s = 0, high_s = 0;
    size_t landmarks = 0;  // that both have been measured against
  };
  // Of the latency between two sites, by the triangle inequality.
  Bounds bounds(size_t site_a, size_t site_b) const;

 private:
  size_t marks_;
  std::vector<double> seconds_;  // [site * marks + landmark]
};

}  // namespace weft::broker
