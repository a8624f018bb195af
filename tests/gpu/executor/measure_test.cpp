// A card measured: within its time, plausible numbers, and times that wait for the kernels.
#include "executor/measure.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "executor/device_memory.h"
#include "executor/measure_cases.h"
#include "tests/gpu/executor/card.h"
#include "tests/support/exported_models.h"

namespace weft::executor::testing {
namespace {

class GpuMeasure : public OnCard<> {
 protected:
  GpuMeasure() { options_.device = "cuda:0"; }
  MeasureOptions options_;
};

TEST_F(GpuMeasure, TheCardHasAProfile) {
  const double start = monotonic_seconds();
  const job::DeviceProfile profile = must(measure_device(options_));
  const double took = monotonic_seconds() - start;
  fmt::print("card profile: {}\n", job::profile_to_json(profile).dump());
  EXPECT_LT(took, 60);
  EXPECT_GT(profile.memory_free_bytes, uint64_t{1} << 30);
  EXPECT_LE(profile.memory_free_bytes, profile.memory_total_bytes);
  EXPECT_GT(profile.to_device_gbyte_s, 0.5);
  EXPECT_GT(profile.from_device_gbyte_s, 0.5);
  EXPECT_TRUE(job::profile_from_json(job::profile_to_json(profile)).ok());
  // A product of 4096 x 4096 x 8192 in single precision takes a card from a tenth of a millisecond
  // to a second; in half precision less.
  job::Work work;
  work.of(job::OpClass::kMatrix) = {1, 2.7e11, 5.5e11, 4e8, 4e8};
  const double single = job::seconds_of(work, profile, job::Precision::kFp32).forward;
  const double half = job::seconds_of(work, profile, job::Precision::kBf16).forward;
  fmt::print("a large product: {:.3g} ms fp32, {:.3g} ms bf16\n", 1e3 * single, 1e3 * half);
  EXPECT_GT(single, 1e-4);
  EXPECT_LT(single, 1);
  EXPECT_LT(half, single);
}

// A timing that does not wait would be the same for any size.
TEST_F(GpuMeasure, LargerProductsTakeLonger) {
  const CaseFamily family = measure_families().front();
  double loading = 0;
  const auto time = [&](int level) {
    return must(run_case(family.name, must(family.make(level)), family.op_class,
                         job::Precision::kFp32, options_, 10, loading));
  };
  const MeasuredCase small = time(3), large = time(7);
  EXPECT_GT(large.forward_s, 3 * small.forward_s);
  EXPECT_GT(large.backward_s, 3 * small.backward_s);
}

}  // namespace
}  // namespace weft::executor::testing
