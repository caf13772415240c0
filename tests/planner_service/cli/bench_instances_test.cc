#include "planner_service/cli/bench_instances.h"

#include "gtest/gtest.h"
#include "planner_service/core/topology.h"

namespace relibra::cli {
namespace {

TEST(BenchInstancesTest, ExpertsDivideOverTheRanksOfEveryInstance) {
  for (const auto& suite : {QualityInstances(), SpeedInstances()}) {
    EXPECT_FALSE(suite.empty());
    for (const BenchInstance& instance : suite) {
      const Topology topology{.nodes = instance.nodes, .gpus_per_node = instance.gpus_per_node};
      EXPECT_TRUE(Validate(topology, instance.experts).ok()) << instance.name;
    }
  }
}

}  // namespace
}  // namespace relibra::cli
